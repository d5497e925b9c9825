"""The work that both sides of `step_cpu.py` do: sizes, prompts, the reward, and the clock inside it.

Imports nothing but the standard library, so that TRL's interpreter can read it as well.
"""

from __future__ import annotations

import os
import string
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolwright.tasks import TaskSet


@dataclass(frozen=True)
class Work:
    prompts: int
    threads: int
    samples: int = 8
    new_tokens: int = 64

    @property
    def sequences(self) -> int:
        return self.prompts * self.samples


SMALL, SMOLLM2 = "small", "smollm2"
WORKS = {SMALL: Work(prompts=2, threads=1), SMOLLM2: Work(prompts=1, threads=2)}
KIND = "STEP_WORK"  # which of them a process is to do


def work() -> Work:
    return WORKS[os.environ.get(KIND, SMALL)]


LEARNING_RATE, BETAS, CLIP, MAX_GRAD_NORM = 1e-5, (0.9, 0.95), 0.2, 1.0
ALPHABET = string.ascii_letters + string.digits + string.punctuation + " "
QUESTIONS = [f"Write numbers, no words {n:03d}" for n in range(256)]  # all of one length: nothing is padded
TURNS = (
    "STEP_TURNS"  # two open pipes, "to,from": where to tell a step's time, where to wait for the next turn
)

_began: tuple[float, float] | None = None
_scored = 0  # of the present step


def reward(completions: Sequence[Any], **columns: Any) -> list[float]:
    """The share of digits. Called for a group at a time, or all of them: this is also where steps are told
    apart."""
    global _scored
    if len(completions) >= work().samples and TURNS in os.environ:
        _scored = (_scored + len(completions)) % work().sequences
        if _scored == 0:
            _end_turn(*map(int, os.environ[TURNS].split(",")))
    texts = [answer if isinstance(answer, str) else answer[0]["content"] for answer in completions]
    return [sum(map(str.isdigit, text)) / len(text or " ") for text in texts]


def _end_turn(to: int, back: int) -> None:
    """Tell what the step took, by the wall and of the processor, and sleep while the other has its turn."""
    global _began
    wall, cpu = time.perf_counter(), time.process_time()
    since = _began or (wall, cpu)
    os.write(to, f"{wall - since[0]} {cpu - since[1]}\n".encode())
    os.read(back, 1)
    _began = time.perf_counter(), time.process_time()


def messages(question: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}]


def tasks() -> TaskSet:
    """Toolwright's form of it. Nothing is held out, so nothing is evaluated, as nothing is in TRL."""
    from toolwright.rewards import SCORERS
    from toolwright.tasks import TaskSet
    from toolwright.trajectory import Task

    SCORERS.register("share_of_digits")(reward)
    train = [Task(id=question, prompt=messages(question)) for question in QUESTIONS]
    return TaskSet(train=train, held_out=[], scorer="share_of_digits", alphabet=ALPHABET)
