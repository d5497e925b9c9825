"""What runs say of workflows, each compared with the others on the same tasks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

RUN_SD = 0.45  # of one run's score around the workflow's own, until there is data
TASK_WEIGHT = 0.5  # runs that the prior of a task's difficulty counts for


@dataclass(frozen=True)
class Measured:
    """What the runs say: gains over the first workflow, their variances, and the first one's own score."""

    gains: np.ndarray
    noise: np.ndarray
    start: float
    start_sd: float


def measured(runs: Sequence[Iterable[tuple[str, float]]]) -> Measured:
    """Scores by task, a row a workflow; the first has run. Tasks differ in difficulty: every workflow is
    measured against what others scored on the very tasks that it ran on, so that few tell more.

    score = task + gain"""
    row, task, score = [], [], []
    tasks: dict[str, int] = {}
    for number, mine in enumerate(runs):
        for name, value in mine:
            row.append(number)
            task.append(tasks.setdefault(name, len(tasks)))
            score.append(value)
    of, on, got = np.array(row), np.array(task), np.array(score)
    count = np.bincount(of, minlength=len(runs)).astype(float)
    a_task = np.bincount(on, minlength=len(tasks))
    gains = np.zeros(len(runs))
    for _ in range(12):
        above = got - gains[of]
        difficulty = (np.bincount(on, above) + TASK_WEIGHT * above.mean()) / (a_task + TASK_WEIGHT)
        gains = np.bincount(of, got - difficulty[on], minlength=len(runs)) / np.maximum(count, 1)
        gains = np.where(count > 0, gains - gains[0], 0.0)
    residual = got - difficulty[on] - gains[of]
    # As if a few more runs of the usual spread had been seen: a handful of equal scores is no certainty.
    spread = (residual @ residual + 8 * RUN_SD**2) / (max(1, len(got) - len(runs)) + 8)
    noise = spread / np.maximum(count, 1e-3) + 0.5 * spread / count[0]
    noise[0] = 1e-6  # a gain over itself is none
    return Measured(gains, noise, float(difficulty.mean()), float(np.sqrt(spread / count[0])))
