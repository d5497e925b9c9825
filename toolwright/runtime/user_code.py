"""Makes a user's own code importable on every node.

Three things may be named in a configuration: a file (`path.py:name`), which is sent with the modules beside
it; a module (`package.module:name`) that is not installed but lies in an editable checkout or on PYTHONPATH;
and a file of tasks, whose folder may hold the modules that go with it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from toolwright.config.keys import mapped

PACKAGE = "toolwright_user_code"
FILE = re.compile(r"^(?P<path>[^\n]+\.py):(?P<name>\w+)$")
MODULE = re.compile(r"^(?P<module>[A-Za-z_][\w.]*):(?P<name>\w+)$")
MOST_BYTES = 64 << 20  # of one folder: code, not the data beside it


def strings(tree: Any) -> Iterator[str]:
    """Yield every string of a configuration, with the keys of open blocks: `reward.parts` names scorers by
    key."""
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from strings(key)
            yield from strings(value)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from strings(value)


def folders(trees: Any) -> list[Path]:
    """Return the folders of the code that a configuration names, unless it is installed."""
    found: dict[Path, None] = {}
    for text in strings(trees):
        if match := FILE.match(text):
            path = Path(match["path"]).expanduser()
            if path.is_file():
                found[path.resolve().parent] = None
        elif match := MODULE.match(text):
            where = _checkout(match["module"])
            if where is not None:
                found[where] = None
        elif text.endswith((".jsonl", ".parquet", ".json")) and Path(text).expanduser().is_file():
            folder = Path(text).expanduser().resolve().parent
            if any(folder.glob("*.py")):
                found[folder] = None
    return list(found)


def absolute(tree: Any) -> Any:
    """Return the configuration with absolute paths to user code: workers have another working directory."""

    def change(value: Any) -> Any:
        match = FILE.match(value) if isinstance(value, str) else None
        path = Path(match["path"]).expanduser() if match else None
        return f"{path.resolve()}:{match['name']}" if match and path and path.is_file() else value

    return mapped(tree, change)


def python_path() -> list[str]:
    """Return the driver's import path without the entries that every interpreter of this environment has."""
    own = {Path(place).resolve() for place in sysconfig.get_paths().values()}
    entries = [Path(entry or os.getcwd()).resolve() for entry in sys.path]
    kept = [e for e in entries if e.is_dir() and not any(e == o or e.is_relative_to(o) for o in own)]
    return list(dict.fromkeys(map(str, [Path(__file__).resolve().parents[2], *kept])))


def stage(found: list[Path], target: Path) -> dict[str, str]:
    """Copy the Python code of these folders to `target`, to be sent along. Returns where each of them
    went."""
    moved = {}
    for folder in found:
        name = f"{folder.name}_{hashlib.sha1(str(folder).encode()).hexdigest()[:8]}"
        _copy(folder, target / PACKAGE / name)
        moved[str(folder)] = name
    if moved:
        (target / PACKAGE / "__init__.py").touch()
    return moved


def arrive(moved: Mapping[str, str]) -> dict[str, str]:
    """Make the folders' code importable in a worker. Returns where each of them is here."""
    sent = importlib.util.find_spec(PACKAGE) if any(moved.values()) else None
    root = Path(sent.origin or "").parent if sent else None
    here = {}
    for folder, name in moved.items():
        place = str(root / name) if root and name else folder
        here[folder] = place
        if place not in sys.path:
            sys.path.append(place)
    return here


def relocated(tree: Any, here: Mapping[str, str]) -> Any:
    """Return a role's configuration with the paths that its files have on this node."""
    moves = {folder: place for folder, place in here.items() if folder != place}

    def change(value: Any) -> Any:
        if isinstance(value, str):
            match = FILE.match(value)
            folder = str(Path(match["path"]).parent) if match else ""
            return value.replace(folder, moves[folder], 1) if folder in moves else value
        if hasattr(value, "model_dump"):
            return type(value).model_validate(mapped(value.model_dump(), change))
        if is_dataclass(value) and not isinstance(value, type):
            return replace(value, **{f.name: mapped(getattr(value, f.name), change) for f in fields(value)})
        return value

    return mapped(tree, change) if moves else tree


def _checkout(module: str) -> Path | None:
    """Return the folder to put on the path for this module, or None if it is installed or missing."""
    top = module.partition(".")[0]
    if top == "toolwright":
        return None
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    origin = spec.origin if spec else None
    places = list(spec.submodule_search_locations or []) if spec else []
    if origin in ("built-in", "frozen") or not (origin or places):
        return None
    where = Path(places[0]).resolve().parent if places else Path(origin or "").resolve().parent
    installed = {Path(place).resolve() for place in sysconfig.get_paths().values()}
    return None if any(where == o or where.is_relative_to(o) for o in installed) else where


def _copy(folder: Path, target: Path) -> None:
    """Copy modules and packages, but no data and nothing that only looks like code."""
    spent = 0
    for source in [*folder.glob("*.py"), *(p for p in folder.iterdir() if (p / "__init__.py").is_file())]:
        if source.is_dir():
            shutil.copytree(
                source,
                target / source.name,
                ignore=shutil.ignore_patterns("__pycache__", ".*"),
                dirs_exist_ok=True,
            )
            continue
        spent += source.stat().st_size
        if spent <= MOST_BYTES:
            (target / source.name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target / source.name)
