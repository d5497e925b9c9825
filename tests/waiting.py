"""Waiting for what has to come to pass, however long a busy machine takes over it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path


def wait_until(condition: Callable[[], object], what: str, limit_s: float = 240) -> None:
    limit = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < limit, f"waited {limit_s:g} s until {what}"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """Whether it runs; one that nobody has waited for is dead all the same."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
