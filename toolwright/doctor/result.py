"""The result of a check: how bad it is, in words, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warning", "problem"]


@dataclass(frozen=True)
class CheckResult:
    status: Status
    text: str
    remedy: str = ""


def ok(text: str) -> CheckResult:
    return CheckResult("ok", text)


def warning(text: str, remedy: str = "") -> CheckResult:
    return CheckResult("warning", text, remedy)


def problem(text: str, remedy: str = "") -> CheckResult:
    return CheckResult("problem", text, remedy)
