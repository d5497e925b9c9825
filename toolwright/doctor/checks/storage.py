"""Disks: where runs are kept, and where temporary files go."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

from toolwright.doctor.checks import CHECKS
from toolwright.doctor.result import CheckResult, ok, problem, warning

GIB = 1 << 30
LITTLE, TOO_LITTLE = 2 * GIB, GIB // 8
FEW_INODES = 10_000
TRIED = 1 << 20  # bytes that are written to find out


@CHECKS.register("disk of runs")
def runs() -> CheckResult:
    place = Path("runs").absolute()
    there = next(folder for folder in (place, *place.parents) if folder.is_dir())
    return room_in(there, remedy="make room, or keep runs elsewhere: run.dir=FOLDER")


@CHECKS.register("disk of temporary files")
def temporary() -> CheckResult:
    try:
        place = Path(tempfile.gettempdir())
    except FileNotFoundError as error:
        return problem(str(error), "make room, or export TMPDIR=FOLDER")
    asked = os.environ.get("TMPDIR")
    if asked and Path(asked).absolute() != place.absolute():  # Python takes another one without a word
        return warning(
            f"TMPDIR={asked} cannot be written, so {place} is used", f"mkdir -p {asked}, or unset TMPDIR"
        )
    return room_in(place, remedy="make room, or export TMPDIR=FOLDER")


def room_in(folder: Path, *, remedy: str) -> CheckResult:
    """Looks at what is free, and writes a file: quotas and limits show nowhere else."""
    room = os.statvfs(folder)
    free = room.f_bavail * room.f_frsize
    text = f"{free / GIB:.1f} of {room.f_blocks * room.f_frsize / GIB:.1f} GiB free in {folder}"
    refused = write_error(folder)
    if refused and refused.errno in (errno.EROFS, errno.EACCES):
        return problem(f"nothing can be written in {folder}: {refused.strerror}", remedy)
    if free < TOO_LITTLE:
        return problem(f"the disk is full: {text}", remedy)
    if room.f_files and room.f_favail < FEW_INODES:
        return problem(f"the disk is full: {room.f_favail:,} more files fit in {folder}", remedy)
    if refused:
        return problem(f"nothing can be written in {folder}: {refused.strerror}; {text}", remedy)
    return warning(text, remedy) if free < LITTLE else ok(text)


def write_error(folder: Path) -> OSError | None:
    """Write a file there, and return the error if that fails."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(TRIED))
            file.flush()
    except OSError as error:
        return error
    return None
