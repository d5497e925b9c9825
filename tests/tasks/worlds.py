"""Environments of a user's own, as files named in a task hold them."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from toolwright.tasks import InvalidAction, Observation, Outcome, answers_to
from toolwright.tasks.environment import ToolCall
from toolwright.trajectory import Task

CLOSED: list[str] = []


class Counter:
    """Async, and done once as many words were said as `upto`; a step's reward is its number."""

    def __init__(self, upto: int = 3, refuses: str = "") -> None:
        self.upto, self.refuses, self.said = upto, set(refuses), 0

    async def reset(self, task: Task) -> Observation:
        await asyncio.sleep(0)
        return Observation("0")

    async def step(self, action: str) -> Outcome:
        if self.refuses & set(action):
            raise InvalidAction("not that", reward=-0.5)
        self.said += 1
        done = self.said == self.upto
        return Outcome(str(self.said), self.said, done, info={"success": done})

    async def close(self) -> None:
        CLOSED.append("counter")


class Threaded:
    """Plain methods; tells in which thread each ran."""

    def __init__(self) -> None:
        self.threads = [threading.current_thread()]

    def reset(self, task: Task) -> Observation:
        self.threads.append(threading.current_thread())
        return Observation("0", anchor="start")

    def step(self, action: str) -> Outcome:
        self.threads.append(threading.current_thread())
        assert len(set(self.threads)) == 1
        assert self.threads[0] is not threading.main_thread()
        return Outcome("0", 1.0, True, info={"success": True})

    def close(self) -> None:
        assert self.threads[0] is threading.current_thread()
        CLOSED.append("threaded")


class Trouble:
    """What goes wrong, and where."""

    def __init__(self, where: str, what: str) -> None:
        self.where, self.what = where, what
        self.meet("build")

    def meet(self, where: str) -> None:
        if where != self.where:
            return
        if self.what == "hang":
            time.sleep(3600)
        if self.what == "exit":
            sys.exit(1)
        if self.what == "stop":
            raise StopIteration
        raise KeyError("the level is lost")

    def reset(self, task: Task) -> Observation:
        self.meet("reset")
        return Observation("0")

    def step(self, action: str) -> Any:
        self.meet("step")
        answers = {"none": None, "nan": Outcome("0", float("nan")), "text": Outcome(3)}  # type: ignore[arg-type]
        answers["numpy"] = Outcome("0", np.float32(0.5), np.bool_(True))  # type: ignore[arg-type]
        return answers.get(self.what, Outcome("0", done=True))

    def close(self) -> None:
        self.meet("close")


class Sleepy:
    """Async, and never awake again."""

    async def reset(self, task: Task) -> Observation:
        return Observation("0")

    async def step(self, action: str) -> Outcome:
        await asyncio.sleep(3600)
        return Outcome("never")

    async def close(self) -> None:
        CLOSED.append("sleepy")


class Talkative:
    """Answers with as many characters as it is told to, first or later, as text or as the name of a state."""

    def __init__(self, size: int, first: bool = False, anchor: bool = False, refuses: bool = False) -> None:
        self.size, self.first, self.anchor, self.refuses = size, first, anchor, refuses

    def reset(self, task: Task) -> Observation:
        return Observation("0" * self.size if self.first else "0")

    def step(self, action: str) -> Outcome:
        if self.refuses:
            raise InvalidAction("0" * self.size)
        return Outcome("0", anchor="0" * self.size) if self.anchor else Outcome("0" * self.size)

    def close(self) -> None:
        pass


def schema_of(name: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"amount": {"type": "integer"}}, "required": ["amount"]}
    return {"type": "function", "function": {"name": name, "description": name, "parameters": parameters}}


LEDGER_TOOLS = [schema_of("put"), schema_of("take")]


class Ledger:
    """Tools of its own: `put` and `take` change a balance, which is to be 5 when the user is done."""

    def __init__(self, wishes: int = 1) -> None:
        self.wishes, self.balance, self.heard = wishes, 0, list[str]()

    def reset(self, task: Task) -> Observation:
        return Observation("Make it 5.", tools=LEDGER_TOOLS)

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        self.heard.append(name)
        time.sleep(0.01 if name == "put" else 0)
        change = {"put": 1, "take": -1}.get(name)
        if change is None or not isinstance(arguments.get("amount"), int):
            raise InvalidAction("say an amount")
        self.balance += change * arguments["amount"]
        return f"balance {self.balance}"

    def step(self, action: str, calls: Sequence[ToolCall]) -> Outcome:
        if calls:
            return Outcome("", answers=answers_to(calls, self.call))
        self.wishes -= 1
        return Outcome("Anything else?", done=not self.wishes)

    def verdict(self) -> Outcome:
        right = self.balance == 5
        info = {"success": right, "known": sum(name in ("put", "take") for name in self.heard)}
        return Outcome(f"ended at {self.balance}", float(right), info=info)

    def close(self) -> None:
        CLOSED.append("ledger")


class Steps(Ledger):
    """Rewards a step, and speaks after its answers; without a verdict."""

    verdict = None  # type: ignore[assignment]

    def step(self, action: str, calls: Sequence[ToolCall]) -> Outcome:
        if not calls:
            return Outcome("Over.", done=True, info={"success": self.balance == 5})
        answers = answers_to(calls, self.call)
        return Outcome(f"You said {action!r}.", 0.5, answers=answers[: len(answers) - self.wishes + 1])
