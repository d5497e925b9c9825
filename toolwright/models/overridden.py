"""A model folder whose config.json says something else in places: links to all of its other files."""

from __future__ import annotations

import atexit
import functools
import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolwright.failures import UserError
from toolwright.models.folder import read_json

CONFIG = "config.json"


def overridden(folder: Path, settings: Mapping[str, Any]) -> Path:
    """The folder with these settings in its config.json. It is there as long as this process."""
    return _made(folder.resolve(), json.dumps(dict(settings), sort_keys=True))


@functools.cache
def _made(folder: Path, settings: str) -> Path:
    if not (folder / CONFIG).is_file():
        raise UserError(f"{folder} is not a model folder: it has no {CONFIG}")
    place = Path(tempfile.mkdtemp(prefix="toolwright-model-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    for file in folder.iterdir():
        if file.name != CONFIG:
            (place / file.name).symlink_to(file)
    own = {**read_json(folder / CONFIG), **json.loads(settings)}
    (place / CONFIG).write_text(json.dumps(own, indent=2) + "\n", encoding="utf-8")
    return place
