"""Waiting for what has to come to pass, however long a busy machine takes over it."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], what: str, limit_s: float = 240) -> None:
    limit = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < limit, f"waited {limit_s:g} s until {what}"
        time.sleep(0.02)
