"""The JSON files of a Hugging Face folder, a folder with other settings, and the library that reads them."""

from __future__ import annotations

import atexit
import functools
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from toolwright.failures import UserError

CONFIG = "config.json"


def read_json(path: Path) -> dict[str, Any]:
    """The object in the file; empty if there is no file."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise UserError(f"{path} must hold a JSON object, and holds a {type(value).__name__}")
    return value


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


def quiet_transformers() -> Any:
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers


@contextmanager
def foreign_code(trouble: str) -> Iterator[None]:
    """Run code of the library, or what a stranger's folder makes it do: whatever it raises is told as
    `trouble`, with the first line of the error."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{trouble}: {first_line(error)}") from None


def first_line(error: Exception) -> str:
    """The start of a message that may be a page long."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
