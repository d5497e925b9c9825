"""A task of several steps for GiGPO: each room opens to its own letter, and there are few tries.

The agent is shown a room's letter and says one. The right one leads to the next room, a wrong one back into
the same: so attempts at one task pass through the same states, and a step can be judged against other steps
taken there. Loaded by path, as a user's own file is.
"""

from __future__ import annotations

import itertools
import random

from toolwright.agents.attempt import Attempt
from toolwright.rewards import SCORERS
from toolwright.tasks import TaskSet
from toolwright.trajectory import Task

LETTERS, ROOMS = "abc", 4


class Walker:
    async def attempt(self, attempt: Attempt) -> None:
        attempt.prompt(attempt.task.prompt)
        rooms, passed = attempt.task.ground_truth, 0
        while passed < ROOMS and attempt.turns < attempt.max_turns:
            attempt.observe(rooms[passed])
            step = await attempt.act(anchor=f"room {passed}")
            step.reward = 1 / ROOMS if step.text == rooms[passed] else 0.0
            passed += step.reward > 0
        attempt.observe(str(passed))  # the last word is the environment's: the policy cannot claim it


@SCORERS.register("rooms")
def share_passed(solution_str: str) -> float:
    return int(solution_str[-1:] or 0) / ROOMS


def tasks(*, seed: int, held_out_size: int) -> TaskSet:
    every = ["".join(p) for p in itertools.product(LETTERS, repeat=ROOMS)]
    random.Random(seed).shuffle(every)
    made = [Task(id=rooms, prompt=[{"role": "user", "content": ""}], ground_truth=rooms) for rooms in every]
    return TaskSet(
        train=made[held_out_size:],
        held_out=made[:held_out_size],
        scorer="rooms",
        alphabet=LETTERS + "".join(map(str, range(ROOMS + 1))),
    )
