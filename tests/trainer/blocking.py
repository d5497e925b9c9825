"""A user's tools, environment and scorer that block for good; each first leaves a note beside this file."""

from __future__ import annotations

import ctypes
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from toolwright.rewards import SCORERS
from toolwright.tasks import Observation, TaskSet
from toolwright.trajectory import Task

FOR_GOOD_S = 6000


def note() -> None:
    Path(__file__).with_name("blocks").touch()


def block() -> Any:
    """Whatever is raised meanwhile is swallowed, as careless code does."""
    note()
    ends = time.monotonic() + FOR_GOOD_S
    while time.monotonic() < ends:
        with suppress(BaseException):
            time.sleep(FOR_GOOD_S)


async def blocks_the_loop(text: str) -> str:
    """Says what it is told.

    Args:
        text: what to say
    """
    return str(block())


def blocks_its_thread(text: str) -> str:
    """Says what it is told.

    Args:
        text: what to say
    """
    return str(block())


def beat() -> None:
    """Touches a file while the interpreter can run, so that a test sees when it no longer can."""
    while True:
        Path(__file__).with_name("beats").touch()
        time.sleep(0.01)


def blocks_the_interpreter(text: str) -> str:
    """Says what it is told.

    Args:
        text: what to say
    """
    Path(__file__).with_name("beats").touch()
    threading.Thread(target=beat, daemon=True).start()
    note()
    while True:
        ctypes.PyDLL(None).sleep(FOR_GOOD_S)  # it keeps the interpreter's lock: no other thread can run


class World:
    inline = True

    def reset(self, task: Task) -> Observation:
        return Observation(str(block()))

    def close(self) -> None:
        pass


@SCORERS.register("blocking")
def blocks_as_a_scorer(solution_str: str, ground_truth: str) -> float:
    return float(block() if solution_str else 0.0)  # before a run it is tried on nothing


def tasks(*, seed: int, held_out_size: int) -> TaskSet:
    made = [
        Task(
            id=letter,
            prompt=[{"role": "user", "content": letter}],
            ground_truth=letter,
            extra_info={"environment": {"name": f"{__file__}:World"}},
        )
        for letter in "abcdefgh"
    ]
    return TaskSet(train=made, held_out=[], scorer="blocking", alphabet="abcdefgh")
