"""Checkpoints: complete or absent, never half; the newest whole one is where a run goes on.

Every file is listed with its size and CRC-32 in `checksums.json`, and compared when the checkpoint is read.
Checkpoints that were written before there were checksums have no such file, and are read without.
"""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from toolwright.failures import UserError

STATE, TENSORS, CHECKSUMS = "state.json", "tensors.pt", "checksums.json"
SHARDS = "tensors"  # in place of TENSORS, where several ranks wrote it: see sharded_checkpoints.py
READ_AT_ONCE = 1 << 20

Checksums = dict[str, tuple[int, int]]  # size and CRC-32 of a file, by its path within the checkpoint


class BrokenCheckpoint(UserError):
    """A checkpoint that is not what was once written. An older one may still be whole."""

    def __init__(self, path: Path | str, why: str) -> None:
        super().__init__(path, why)  # both, so that it can be pickled
        self.path, self.why = Path(path), why

    def __str__(self) -> str:
        return f"checkpoint {self.path} cannot be read: {self.why}"


def save(folder: Path, step: int, state: dict[str, Any], tensors: dict[str, Any], *, keep: int) -> Path:
    """Written beside its place, flushed to disk, then renamed into it; older ones beyond `keep` go last."""
    import torch

    partial = begin(folder, step)
    try:
        partial.mkdir()
        torch.save(tensors, partial / TENSORS)
        seal(partial, state)
        return settle(folder, step, keep=keep)
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)
        if not isinstance(error, OSError | RuntimeError):  # torch reports a full disk as a RuntimeError
            raise
        raise unwritten(folder, step, error) from error


def begin(folder: Path, step: int) -> Path:
    """Remove what is left of an earlier try, and return the folder to write this step's checkpoint to."""
    partial = folder / f"step_{step}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    return partial


def seal(partial: Path, state: dict[str, Any], known: Mapping[str, tuple[int, int]] | None = None) -> None:
    """Adds the plain values and the checksums of all files, and flushes everything to disk.

    Files in `known` have their checksum and were flushed by whoever wrote them. The others are summed up
    while the disk still writes them, which costs next to nothing beside that.
    """
    (partial / STATE).write_text(json.dumps(state))
    sums: Checksums = dict(known or {})
    names = [str(p.relative_to(partial)) for p in sorted(partial.rglob("*")) if p.is_file()]
    fresh = [name for name in names if name not in sums]
    with ThreadPoolExecutor() as pool:
        flushed = [pool.submit(_flush, partial / name) for name in fresh]
        sums.update(zip(fresh, pool.map(checksum, [partial / name for name in fresh]), strict=True))
        for one in flushed:
            one.result()
    (partial / CHECKSUMS).write_text(json.dumps(sums))
    _flush(partial / CHECKSUMS)
    _flush(partial)


def settle(folder: Path, step: int, *, keep: int) -> Path:
    """Give a checkpoint that is on the disk its name, and remove those beyond `keep`."""
    target = folder / f"step_{step}"
    shutil.rmtree(target, ignore_errors=True)
    (folder / f"step_{step}.partial").rename(target)
    _flush(folder)
    for old in newest_first(folder)[keep:]:
        discard(old)
    return target


def discard(checkpoint: Path) -> None:
    """Remove a checkpoint. It is renamed first: a removal that is cut short must not leave half of one under
    a good name."""
    doomed = checkpoint.with_name(checkpoint.name + ".partial")
    checkpoint.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def unwritten(folder: Path, step: int, error: BaseException) -> UserError:
    if not folder.is_dir():
        return UserError(f"could not write checkpoint {folder / f'step_{step}'}: its folder is gone")
    last = latest(folder)
    rest = f"the last whole one is {last}" if last else "there is no earlier one"
    return UserError(
        f"could not write checkpoint {folder / f'step_{step}'}: {_line(error)}; {rest}; "
        "make room on the disk, then continue the run with run.resume=true"
    )


def newest_first(folder: Path) -> list[Path]:
    """All that have a checkpoint's name."""
    found = [p for p in folder.glob("step_*") if p.is_dir() and p.name.removeprefix("step_").isdigit()]
    return sorted(found, key=step_of, reverse=True)


def latest(folder: Path) -> Path | None:
    return next(iter(newest_first(folder)), None)


def step_of(path: Path) -> int:
    return int(path.name.removeprefix("step_"))


def set_aside(path: Path) -> None:
    """A broken one keeps its files and loses its name: it must not push out whole ones as the newest."""
    aside = path.with_name(path.name + ".broken")
    shutil.rmtree(aside, ignore_errors=True)
    path.rename(aside)


def load(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Load the plain values and the whole tensors of a checkpoint, whether one process or several ranks wrote
    it."""
    import torch

    verify(path)
    state = plain(path)
    try:
        if (path / SHARDS).is_dir():
            from toolwright.learner import shards

            return state, shards.whole(path / SHARDS)
        return state, torch.load(path / TENSORS, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged bytes can make an unpickler raise anything
        raise unreadable(path, error) from error


def plain(path: Path) -> dict[str, Any]:
    """The plain values of a checkpoint, without tensors."""
    verify(path, [STATE])
    try:
        state = json.loads((path / STATE).read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise unreadable(path, error) from error
    if not isinstance(state, dict):
        raise BrokenCheckpoint(path, f"{STATE} is not an object")
    return state


def verify(path: Path, names: Iterable[str] | None = None) -> None:
    """Raises BrokenCheckpoint unless these files, or all, are what was written."""
    known = checksums(path)
    listed = {name: known[name] for name in names if name in known} if names is not None else known

    def damage(name: str) -> str:
        size, crc = listed[name]
        try:
            found = checksum(path / name)
        except FileNotFoundError:
            return f"{name} is missing"
        except OSError as error:
            return f"{name}: {error.strerror or error}"
        if found[0] != size:
            return f"{name} has {found[0]:,} bytes, {size:,} were written"
        return "" if found[1] == crc else f"{name} is damaged: its checksum differs from the recorded one"

    with ThreadPoolExecutor() as pool:
        for why in pool.map(damage, listed):
            if why:
                raise BrokenCheckpoint(path, why)


def checksums(path: Path) -> Checksums:
    """The checksums as they were written; empty for a checkpoint without any."""
    try:
        listed = json.loads((path / CHECKSUMS).read_text())
        return {str(name): (int(size), int(crc)) for name, (size, crc) in listed.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        raise BrokenCheckpoint(path, f"{CHECKSUMS} is damaged") from None


def checksum(file: Path) -> tuple[int, int]:
    """Size and CRC-32: they detect damage by a disk or a copy, at gigabytes a second."""
    size = crc = 0
    with file.open("rb", buffering=0) as stream:
        buffer = memoryview(bytearray(READ_AT_ONCE))
        while count := stream.readinto(buffer):
            size, crc = size + count, zlib.crc32(buffer[:count], crc)
    return size, crc


def unreadable(path: Path, error: BaseException) -> BrokenCheckpoint:
    return BrokenCheckpoint(path, f"{type(error).__name__}: {_line(error)}")


def _line(error: BaseException) -> str:
    """Shorten an error to one line: torch adds a stack to some of its messages."""
    return " ".join(str(error).split())[:300]


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
