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


def save(folder: Path, step: int, state: dict[str, Any], tensors: dict[str, Any], *, keep: int) -> Path:
    """Written beside its place, flushed to disk, then renamed into it; older ones beyond `keep` go last."""
    import torch

    target = folder / f"step_{step}"
    partial = folder / f"step_{step}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        torch.save(tensors, partial / TENSORS)
        (partial / STATE).write_text(json.dumps(state))
        for name in (TENSORS, STATE):
            _flush(partial / name)
        _flush(partial)
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)
        if not isinstance(error, OSError | RuntimeError):  # torch reports a full disk as a RuntimeError
            raise
        last = latest(folder)
        rest = f"the last whole one is {last}" if last else "there is no earlier one"
        raise UserError(
            f"could not write checkpoint {target}: {error}; {rest}; "
            "see that there is room on the disk, then go on with the run by run.resume=true"
        ) from error
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)
    _flush(folder)
    for old in _whole(folder)[:-keep]:
        # Renamed first: a removal that is cut short must not leave half a checkpoint under a good name.
        doomed = old.with_name(old.name + ".partial")
        old.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)
    return target


def latest(folder: Path) -> Path | None:
    whole = _whole(folder)
    return whole[-1] if whole else None


def load(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    import torch

    try:
        state = json.loads((path / STATE).read_text())
        return state, torch.load(path / TENSORS, map_location="cpu", weights_only=True)
    except (OSError, ValueError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise UserError(
            f"checkpoint {path} cannot be read: {error}; remove it to go on from the one before it"
        ) from error


def _whole(folder: Path) -> list[Path]:
    found = [p for p in folder.glob("step_*") if p.is_dir() and p.name.removeprefix("step_").isdigit()]
    return sorted(found, key=lambda p: int(p.name.removeprefix("step_")))


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
