"""The JSON files of a Hugging Face folder, read with a complaint that names the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from toolwright.failures import UserError


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
