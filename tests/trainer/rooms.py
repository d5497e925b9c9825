"""A task of several steps for GiGPO: each room opens to its own letter, and there are few tries.

The agent is that of `benchmarks/step_reward_tasks.py`. A wrong letter leads back into the same room: so
attempts at one task pass through the same states, and a step can be judged against other steps taken there.
Loaded by path, as a user's own file is.
"""

from __future__ import annotations

import itertools
import random

from toolwright.tasks import TaskSet
from toolwright.trajectory import Task

LETTERS, ROOMS = "abc", 4


def tasks(*, seed: int, held_out_size: int) -> TaskSet:
    every = ["".join(p) for p in itertools.product(LETTERS, repeat=ROOMS)]
    random.Random(seed).shuffle(every)
    made = [Task(id=rooms, prompt=[{"role": "user", "content": ""}], ground_truth=rooms) for rooms in every]
    return TaskSet(
        train=made[held_out_size:],
        held_out=made[:held_out_size],
        scorer="step_rewards",
        alphabet=LETTERS + "".join(map(str, range(ROOMS + 1))),  # digits open nothing
    )
