"""A task with a tool, small enough to be learned in seconds: `b3` asks for `b` twice, a tool call in between.

The agent hands the policy's first letter to the tool `echo` and shows it the answer before its second.
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

from toolwright.agents.attempt import Attempt
from toolwright.failures import InfrastructureFailure
from toolwright.rewards import SCORERS
from toolwright.tasks import TaskSet
from toolwright.tools.call import ToolRequest
from toolwright.tools.toolbox import Toolbox
from toolwright.trajectory import Task

LETTERS, DIGITS = "abcd", "0123456789"


def echo(text: str) -> str:
    """Says what it is told.

    Args:
        text: what to say
    """
    return text


class Caller:
    def __init__(self, tools: Toolbox) -> None:
        self.tools = tools

    async def attempt(self, attempt: Attempt) -> None:
        attempt.prompt(attempt.task.prompt)
        said = await attempt.act(anchor="before")
        with attempt.waiting("the tools (echo)"):
            answer = await self.tools.call(ToolRequest("echo", {"text": said.text}), attempt=attempt.id)
        attempt.count("tool_calls")
        attempt.observe(answer.text, source="tool")
        await attempt.act(anchor="after")


def hangs_here() -> None:
    time.sleep(600)


class Slow(Caller):
    async def attempt(self, attempt: Attempt) -> None:
        time.sleep(0.02)
        await super().attempt(attempt)


class Troubled(Slow):
    """Does what the notes in a folder say: whoever attempts the task that a note is named after dies; the
    first that finds the note `stuck` takes it away and blocks its whole process."""

    async def attempt(self, attempt: Attempt) -> None:
        notes = Path(os.environ["DEADLY"])
        if (notes / attempt.task.id).exists():
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            (notes / "stuck").unlink()
        except FileNotFoundError:
            await super().attempt(attempt)
        else:
            hangs_here()


class Uneven(Caller):
    """As many turns as the task's digit says: attempts of very different lengths."""

    async def attempt(self, attempt: Attempt) -> None:
        attempt.prompt(attempt.task.prompt)
        for turn in range(1 + int(attempt.task.id[1])):
            said = await attempt.act(anchor=str(turn))
            attempt.observe(said.text, source="tool")


class Coder(Caller):
    """Has its letter printed by a program in the sandbox."""

    async def attempt(self, attempt: Attempt) -> None:
        attempt.prompt(attempt.task.prompt)
        said = await attempt.act(anchor="before")
        with attempt.waiting("the tools (python)"):
            call = ToolRequest("python", {"code": f"print({said.text!r})"})
            answer = await self.tools.call(call, attempt=attempt.id)
        if answer.trouble:
            raise InfrastructureFailure(answer.text)
        attempt.observe(said.text if said.text in answer.text else "?", source="tool")
        await attempt.act(anchor="after")


@SCORERS.register("echoes")
def share_right(turns: list[str], ground_truth: str) -> float:
    return sum(said[:1] == ground_truth for said in turns) / 2


def varied(solution_str: str) -> float:
    """A reward that differs from attempt to attempt, whatever the policy can do."""
    return sum(map(ord, solution_str)) % 7 / 7


def by_turn(turns: list[str]) -> dict[str, Any]:
    """Another reward for each turn."""
    steps = [varied(said) for said in turns]
    return {"score": sum(steps), "step_rewards": steps}


def wrong(solution_str: str) -> dict[str, float]:
    """Varied, and never right."""
    return {"score": varied(solution_str), "acc": 0.0}


def tasks(*, seed: int, held_out_size: int) -> TaskSet:
    every = [letter + digit for letter in LETTERS for digit in DIGITS]
    random.Random(seed).shuffle(every)
    made = [
        Task(name, [{"role": "user", "content": name}], ground_truth=name[0], data_source="echoes")
        for name in every
    ]
    return TaskSet(
        train=made[held_out_size:], held_out=made[:held_out_size], scorer="echoes", alphabet=LETTERS + DIGITS
    )
