"""Agents and rewards that fail, each at a place that a test can foresee. Loaded by path."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from toolwright.agents.attempt import Attempt
from toolwright.failures import InfrastructureFailure, TaskFailure

tries: Counter[str] = Counter()


class Careful:
    async def attempt(self, attempt: Attempt) -> None:
        attempt.prompt(attempt.task.prompt)
        await attempt.act()


class SometimesLost(Careful):
    """The second attempt at a task whose digit is even cannot be judged."""

    async def attempt(self, attempt: Attempt) -> None:
        await super().attempt(attempt)
        if int(attempt.task.id[1]) % 2 == 0 and attempt.trajectory.index == 1:
            raise TaskFailure("the dog ate it")


class AlwaysLost(Careful):
    async def attempt(self, attempt: Attempt) -> None:
        await super().attempt(attempt)
        raise TaskFailure("the dog ate it")


class LostFromTheThirdStepOn(Careful):
    async def attempt(self, attempt: Attempt) -> None:
        await super().attempt(attempt)
        if attempt.trajectory.group.startswith("3."):
            raise TaskFailure("the dog ate it")


class LostFromTheSecondTimeOn(Careful):
    """Held-out tasks can be judged the first time that they are tried, and never again."""

    async def attempt(self, attempt: Attempt) -> None:
        await super().attempt(attempt)
        tries[attempt.id] += 1
        if attempt.trajectory.group.startswith("held_out/") and tries[attempt.id] > 1:
            raise TaskFailure("the dog ate it")


class LostOnce(Careful):
    """Every attempt is lost to infrastructure the first time."""

    async def attempt(self, attempt: Attempt) -> None:
        await super().attempt(attempt)
        tries[attempt.id] += 1
        if tries[attempt.id] == 1:
            raise InfrastructureFailure("the network was down")


class Endless(Careful):
    """Every attempt is cut, wherever the policy would have ended it."""

    async def attempt(self, attempt: Attempt) -> None:
        await super().attempt(attempt)
        attempt.finish("length")


class Nameless(Careful):
    """Takes two steps and does not say in which states."""

    async def attempt(self, attempt: Attempt) -> None:
        await super().attempt(attempt)
        attempt.observe("1")
        await attempt.act()


def moody(solution_str: str, ground_truth: str) -> float:
    if solution_str.startswith("a"):
        raise ValueError("I do not judge answers that begin with a")
    return 1.0


def constant(completions: Sequence[str], **columns: Any) -> list[float]:
    return [0.5] * len(completions)


def longer_is_better(solution_str: str) -> dict[str, float]:
    """Never right, whatever it gives."""
    return {"score": len(solution_str) / 10, "acc": 0.0}


def digits_at_a_cost(solution_str: str) -> dict[str, float]:
    """Right if it begins with a digit, and never worth anything."""
    right = float(solution_str[:1].isdigit())
    return {"score": right - 2.0, "acc": right}


def digits_with_a_bonus(solution_str: str) -> dict[str, float]:
    """Right if it begins with a digit, and always worth something."""
    right = float(solution_str[:1].isdigit())
    return {"score": right + 0.1, "acc": right}


def exactly(solution_str: str, ground_truth: str) -> float:
    return float(solution_str == ground_truth)


def variety(completions: Sequence[str], **columns: Any) -> list[float]:
    """Different for most answers, so that most groups have something to compare."""
    return [sum(map(ord, answer)) / 1000 for answer in completions]
