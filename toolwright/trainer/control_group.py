"""Limits of this process's control group, such as those of a container, and how much of each is left."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from toolwright.sandbox.cgroup import own_paths

ROOT = Path("/sys/fs/cgroup")


def folders(controller: str) -> Iterator[Path]:
    """This process's control group and its parents, in version 2 or 1. The limits of all of them apply."""
    second = (ROOT / "cgroup.controllers").exists()
    root = ROOT if second else ROOT / controller
    path = root / own_paths().get("" if second else controller, "")
    for folder in (path, *path.parents):
        if folder.is_relative_to(root) and folder.is_dir():
            yield folder


def cpu_quota() -> float | None:
    """Return the CPU time that the group may use, in cores. None means no limit."""
    found = []
    for folder in folders("cpu"):
        with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
            if (folder / "cpu.max").exists():
                quota, period = (folder / "cpu.max").read_text().split()
            else:
                quota = (folder / "cpu.cfs_quota_us").read_text()
                period = (folder / "cpu.cfs_period_us").read_text()
            if int(quota) > 0:
                found.append(int(quota) / int(period))
    return min(found, default=None)


def memory_left() -> tuple[int, int] | None:
    """Return (limit, bytes left below it) of the group with the least left, or None without a limit."""
    found = []
    for folder in folders("memory"):
        for limit, used in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            with contextlib.suppress(OSError, ValueError):
                most = int((folder / limit).read_text())
                in_use = int((folder / used).read_text()) - _reclaimable(folder)
                if most < 1 << 60:  # version 1 writes no limit as the largest number there is
                    found.append((most, max(0, most - in_use)))
    return min(found, key=lambda pair: pair[1], default=None)


def _reclaimable(folder: Path) -> int:
    """Bytes of files that the kernel drops as soon as memory is asked for."""
    for line in (folder / "memory.stat").read_text().splitlines():
        name, _, size = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file"):
            return int(size)
    return 0


def processes_left() -> int | None:
    """Return how many processes and threads may still be started, or None without a limit."""
    found = []
    for folder in folders("pids"):
        with contextlib.suppress(OSError, ValueError):
            found.append(int((folder / "pids.max").read_text()) - int((folder / "pids.current").read_text()))
    return min(found, default=None)
