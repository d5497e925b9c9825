"""Tools of a user's: what a file named by path may hold."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from typing import Annotated, Literal, Optional

import aiohttp
from pydantic import Field

from toolwright.tools.offer import ToolError


def forecast(
    city: str,
    days: int = 1,
    unit: Literal["celsius", "fahrenheit"] = "celsius",
    hours: Optional[list[int]] = None,  # noqa: UP045 - people write it so
    *,
    attempt: str = "",
) -> str:
    """Forecast the weather.

    A second paragraph.

    Args:
        city (str): the name of the city,
            with its country
        days: how many days
        hours: of the day

    Returns:
        the forecast
    """
    return f"{city} {days + 1} {unit} {hours} {attempt}"


def sphinx(json: str, model_config: float) -> dict[str, object]:
    """Names that a model of pydantic's may not have.

    :param json: some text
    :param model_config: some number
    """
    return {"json": json, "model_config": model_config}


def annotated(
    city: Annotated[str, "its name"],
    days: Annotated[int, Field(ge=1, description="how many")] = 2,
    unit: Annotated[str, "celsius or kelvin"] = "celsius",
) -> str:
    """Describe parameters where they are declared.

    Args:
        unit: what the docstring says of it
    """
    return f"{city} {days} {unit}"


def counting(most: int):
    """Count to a number."""
    yield from range(most)


def mistyped(when: time.struct_tme) -> str:  # type: ignore[name-defined]
    """Take a type that its module does not have."""
    return str(when)


def broken(how: str) -> str:
    """Goes wrong in a way of your choice."""
    if how == "exit":
        sys.exit(1)
    if how == "stop":
        raise StopIteration
    if how == "told":
        raise ToolError("not today")
    raise ValueError("no such luck")


async def broken_async(how: str) -> str:
    """Goes wrong in a way of your choice."""
    if how == "exit":
        sys.exit(1)
    if how == "cancel":
        raise asyncio.CancelledError
    raise ValueError("no such luck")


def hang() -> str:
    """Does not return for ten minutes."""
    time.sleep(600)
    return ""


async def hang_async() -> str:
    """Cannot even be cancelled."""
    until = time.monotonic() + 6
    while time.monotonic() < until:
        try:
            await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            continue
    return ""


async def quick() -> str:
    """Answers at once."""
    return "here"


def talkative(size: int) -> str:
    """Answers at length."""
    return "a" * (size - 1) + "z"


def untyped(x):  # type: ignore[no-untyped-def]
    """Has no types."""


def undocumented(x: int) -> int:
    return x


class Weather:
    """Tell the weather."""

    def __init__(self, *, unit: Literal["celsius", "fahrenheit"] = "celsius", retries: int = 3) -> None:
        self.unit, self.retries = unit, retries
        # What cannot be sent anywhere: it belongs to this process and this loop.
        self.loop = asyncio.get_running_loop()
        self.session = aiohttp.ClientSession()
        self.lock, self.asyncio_lock = threading.Lock(), asyncio.Lock()
        self.ended: list[str] = []

    async def __call__(self, city: str, *, attempt: str) -> str:
        async with self.asyncio_lock:
            with self.lock:
                assert asyncio.get_running_loop() is self.loop
                assert not self.session.closed
                return f"{city}: 20 {self.unit}, for {attempt}"

    async def end(self, attempt: str) -> None:
        self.ended.append(attempt)

    async def close(self) -> None:
        await self.session.close()


class Sulky:
    """Answer, and go with bad grace."""

    def __call__(self) -> str:
        return "fine"

    def end(self, attempt: str) -> None:
        raise OSError("not today")

    def close(self) -> None:
        raise OSError("not today")


class SulkyAsync(Sulky):
    """Answer, and go with bad grace."""

    async def end(self, attempt: str) -> None:  # type: ignore[override]
        raise OSError("not today")

    async def close(self) -> None:  # type: ignore[override]
        raise OSError("not today")


class Notes:
    """Several tools that share their state."""

    def __init__(self) -> None:
        self.kept: list[str] = []

    async def tools(self) -> list[object]:
        return [self.write, self.read]

    async def write(self, note: str) -> None:
        """Write a note."""
        self.kept.append(note)

    def read(self) -> list[str]:
        """Read all notes."""
        return self.kept


def unusual(kind: str) -> object:
    """Return what is neither text nor a plain value."""
    import datetime
    import fractions

    import numpy as np

    day = datetime.date(2026, 1, 2)
    return {
        "number": np.int64(408),
        "truth": np.bool_(True),
        "row": np.arange(2, dtype=np.float32),
        "nested": {"sum": np.int64(408), "day": day},
        "day": day,
        "fraction": fractions.Fraction(1, 3),
    }[kind]
