"""The parameters of a request to the page's server."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import parse_qs

from toolwright.ui.problem import PageProblem

Steps = list[tuple[int, int]]  # ranges, both ends included


@dataclass(frozen=True)
class Query:
    """The parameters after the question mark. `path`: what follows the name of the view."""

    values: dict[str, str] = field(default_factory=dict)
    path: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: bytes, path: Sequence[str] = ()) -> Query:
        """Parse a query string. If a name occurs several times, its last value counts."""
        try:
            found = parse_qs(text.decode("latin-1"), keep_blank_values=True, max_num_fields=100)
        except ValueError:
            raise PageProblem(400, "this address has too many parameters") from None
        return cls({name: values[-1] for name, values in found.items()}, tuple(path))

    def text(self, name: str, default: str = "") -> str:
        return self.values.get(name, default)

    def choice(self, name: str, known: Sequence[str], default: str) -> str:
        value = self.text(name) or default
        if value not in known:
            raise PageProblem(400, f"{name}={value[:100]!r} is not known; known: {', '.join(known)}")
        return value

    def flag(self, name: str) -> bool | None:
        """True, false, or None if it is not given."""
        value = self.text(name).lower()
        if value not in ("", "true", "false", "1", "0"):
            raise PageProblem(400, f"{name}={value[:100]!r}: expected true or false")
        return None if value == "" else value in ("true", "1")

    def number(self, name: str) -> float | None:
        value = self.text(name)
        if value == "":
            return None
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise PageProblem(400, f"{name}={value[:100]!r}: expected a number")
        return number

    def whole(self, name: str, default: int, *, most: int, least: int = 0) -> int:
        return whole_number(name, self.text(name) or str(default), most=most, least=least)

    def page(self) -> tuple[int, int]:
        """The first row that is asked for, and how many."""
        return self.whole("offset", 0, most=1 << 40), self.whole("limit", 100, most=1000)

    def listed(self, name: str) -> list[str]:
        return [word for word in self.text(name).split(",") if word]

    def steps(self, name: str = "step") -> Steps | None:
        """`3`, `3-9`, `3,5` or none."""
        ranges = []
        for word in self.listed(name):
            low, dash, high = word.partition("-")
            first = whole_number(name, low)
            ranges.append((first, whole_number(name, high) if dash else first))
        return ranges or None


def whole_number(name: str, text: str, *, most: int = 1 << 60, least: int = 0) -> int:
    """A number that is not negative, between its bounds."""
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise PageProblem(400, f"{name}={text[:100]!r}: expected a whole number from {least} on")
    return max(least, min(int(text), most))
