"""Environments with a loop of their own: what they ask, the policy reads and answers."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from toolwright.tasks import Outcome, OwnLoop
from toolwright.trajectory import Task, Trajectory

from .functions import attempted

DOUBLE = {
    "type": "function",
    "function": {
        "name": "double",
        "description": "Twice a number.",
        "parameters": {"type": "object", "properties": {"number": {"type": "integer"}}},
    },
}


class Doubling(OwnLoop):
    """Asks for 2 times 3, answers calls, and likes the last word to be `says`."""

    def __init__(self, says: str = "6") -> None:
        self.says = says

    async def play(self, task: Task) -> Outcome:
        assert threading.current_thread() is not threading.main_thread()
        talk: list[dict[str, Any]] = [{"role": "user", "content": "2 * 3?"}]
        while True:
            said, end = await self.ask(talk, [DOUBLE])
            talk.append(said)
            if end == "stop":
                break
            talk += [{"role": "tool", "content": "6"} for _ in said["tool_calls"]]
        right = said["content"] == self.says
        return Outcome("well done" if right else "no", float(right), info={"success": right})


class Forgetful(OwnLoop):
    async def play(self, task: Task) -> Outcome:
        for word in ("one", "two"):
            await self.ask([{"role": "user", "content": word}])
        return Outcome("")


class Silent(OwnLoop):
    async def play(self, task: Task) -> Outcome:
        return Outcome("", 1.0)


class Broken(OwnLoop):
    async def play(self, task: Task) -> Outcome:
        await self.ask([{"role": "user", "content": "go"}])
        raise KeyError("the level is lost")


def attempt(name: str, *turns: Any, **settings: Any) -> Trajectory:
    world = {"name": f"{__name__}:{name}", **settings}
    (made,) = attempted([Task("t", [], extra_info={"environment": world})], lambda _: turns)
    return made


def test_calls_are_answered_and_the_end_is_judged() -> None:
    made = attempt("Doubling", [("double", {"number": 3}), ("double", {"number": 3})], "6")
    assert (made.reward, made.accuracy, made.stop, made.counts["tool_calls"]) == (1.0, 1.0, "done", 2)
    assert "2 * 3?" in made.segments[0].text
    assert made.segments[2].text.count("6") == 2
    assert made.segments[-1].text == "well done"
    assert attempt("Doubling", "7").reward == 0.0


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("Forgetful", "rewrites the conversation"),
        ("Silent", "ended before it asked the policy anything"),
        ("Broken", "the level is lost"),
    ],
)
def test_a_loop_that_goes_wrong_is_a_failure_and_never_a_score(name: str, why: str) -> None:
    made = attempt(name, "yes")
    assert made.reward is None
    assert made.failure is not None
    assert why in made.failure.message
