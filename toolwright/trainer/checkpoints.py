"""Checkpoints: complete or absent, never half; the newest whole one is where a run goes on."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

from toolwright.failures import UserError

STATE, TENSORS = "state.json", "tensors.pt"
SHARDS = "tensors"  # in place of TENSORS, where several ranks wrote it: see sharded_checkpoints.py


def save(folder: Path, step: int, state: dict[str, Any], tensors: dict[str, Any], *, keep: int) -> Path:
    """Written beside its place, flushed to disk, then renamed into it; older ones beyond `keep` go last."""
    import torch

    partial = begin(folder, step)
    try:
        partial.mkdir(parents=True)
        torch.save(tensors, partial / TENSORS)
        _flush(partial / TENSORS)
        write_state(partial, state)
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)
        if not isinstance(error, OSError | RuntimeError):  # torch reports a full disk as a RuntimeError
            raise
        raise unwritten(folder, step, error) from error
    return settle(folder, step, keep=keep)


def begin(folder: Path, step: int) -> Path:
    """Where the checkpoint of this step is written; nothing is there yet."""
    partial = folder / f"step_{step}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    return partial


def write_state(partial: Path, state: dict[str, Any]) -> None:
    (partial / STATE).write_text(json.dumps(state))
    _flush(partial / STATE)
    _flush(partial)


def settle(folder: Path, step: int, *, keep: int) -> Path:
    """All of it is on the disk: give it its name, and let go of those beyond `keep`."""
    target = folder / f"step_{step}"
    shutil.rmtree(target, ignore_errors=True)
    (folder / f"step_{step}.partial").rename(target)
    _flush(folder)
    for old in _whole(folder)[:-keep]:
        # Renamed first: a removal that is cut short must not leave half a checkpoint under a good name.
        doomed = old.with_name(old.name + ".partial")
        old.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)
    return target


def unwritten(folder: Path, step: int, error: BaseException) -> UserError:
    last = latest(folder)
    rest = f"the last whole one is {last}" if last else "there is no earlier one"
    return UserError(
        f"could not write checkpoint {folder / f'step_{step}'}: {error}; {rest}; "
        "see that there is room on the disk, then go on with the run by run.resume=true"
    )


def latest(folder: Path) -> Path | None:
    whole = _whole(folder)
    return whole[-1] if whole else None


def step_of(path: Path) -> int:
    return int(path.name.removeprefix("step_"))


def load(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Plain values, and tensors, whole: whoever wrote them."""
    import torch

    try:
        state = read_state(path)
        if (path / SHARDS).is_dir():
            from toolwright.trainer import sharded_checkpoints

            return state, sharded_checkpoints.whole(path / SHARDS)
        return state, torch.load(path / TENSORS, map_location="cpu", weights_only=True)
    except (OSError, ValueError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise unreadable(path, error) from error


def plain(path: Path) -> dict[str, Any]:
    """Its plain values alone."""
    try:
        return read_state(path)
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error


def read_state(path: Path) -> dict[str, Any]:
    state: dict[str, Any] = json.loads((path / STATE).read_text())
    return state


def unreadable(path: Path, error: BaseException) -> UserError:
    return UserError(f"checkpoint {path} cannot be read: {error}; remove it to go on from the one before it")


def _whole(folder: Path) -> list[Path]:
    found = [p for p in folder.glob("step_*") if p.is_dir() and p.name.removeprefix("step_").isdigit()]
    return sorted(found, key=step_of)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
