"""`auto`: a value that a run decides when it starts, by its model, its tasks and its memory."""

from __future__ import annotations

from typing import Literal

from toolwright.failures import UserError

Auto = Literal["auto"]


def decided(value: int | Auto, key: str) -> int:
    """The number, where by now it must be one."""
    if value == "auto":
        raise UserError(f"{key}=auto is decided when a run starts; here it must be a number")
    return value
