"""A task of the tests' own, small enough that a model of a few thousand weights learns it in seconds.

`b3` is answered by `bb`: the letter, twice, whatever digit stands behind it. Half of the answer right is half
the reward, so that a random policy finds something to begin with. Loaded by path, as a user's own file is.
"""

from __future__ import annotations

import random
from dataclasses import replace

from toolwright.rewards import SCORERS
from toolwright.tasks import TaskSet
from toolwright.trajectory import Task

LETTERS, DIGITS = "abcd", "0123456789"


@SCORERS.register("letters")
def share_right(solution_str: str, ground_truth: str) -> float:
    right = sum(said == meant for said, meant in zip(solution_str, ground_truth, strict=False))
    return right / len(ground_truth)


def polite(solution_str: str) -> float:
    """A hundredth for a third letter that is d."""
    return 0.01 * (solution_str[2:3] == "d")


def tasks(*, seed: int, held_out_size: int, train_size: int | None = None) -> TaskSet:
    every = [letter + digit for letter in LETTERS for digit in DIGITS]
    random.Random(seed).shuffle(every)
    held_out, train = every[:held_out_size], every[held_out_size:][:train_size]
    return TaskSet(
        train=[_task(prompt) for prompt in train],
        held_out=[_task(prompt) for prompt in held_out],
        scorer="letters",
        alphabet=LETTERS + DIGITS,
    )


def backwards(*, seed: int, held_out_size: int) -> TaskSet:
    """As many tasks under the same names, with other answers."""
    made = tasks(seed=seed, held_out_size=held_out_size)
    return replace(made, train=[replace(task, ground_truth="dd") for task in made.train])


def mostly_hopeless(*, seed: int, held_out_size: int) -> TaskSet:
    """Three in four training tasks have no right answer that could be written."""
    made = tasks(seed=seed, held_out_size=held_out_size)
    hopeless = [replace(task, ground_truth="??") for task in made.train[8:]]
    return replace(made, train=[*made.train[:8], *hopeless])


def nothing_held_out(*, seed: int) -> TaskSet:
    return replace(tasks(seed=seed, held_out_size=8), held_out=[])


def none(*, seed: int) -> TaskSet:
    return replace(tasks(seed=seed, held_out_size=8), train=[])


def _task(prompt: str) -> Task:
    return Task(
        id=prompt,
        prompt=[{"role": "user", "content": prompt}],
        ground_truth=prompt[0] * 2,
        data_source="letters",
    )
