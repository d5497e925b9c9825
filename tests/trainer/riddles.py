"""A task for GRPO-RoC: a letter that only a tool knows, and two ways to ask for it, one of them clumsy.

Both ways reveal the letter and both earn the same; the clumsy one counts as a tool error. Whatever else is
said is a fault of format and reveals nothing. Loaded by path, as a user's own file is.
"""

from __future__ import annotations

import random

from toolwright.agents.attempt import Attempt
from toolwright.rewards import SCORERS
from toolwright.tasks import TaskSet
from toolwright.trajectory import Task

LETTERS, CLEAN, CLUMSY, NOTHING = "abc", "q", "x", "-"


class Asker:
    async def attempt(self, attempt: Attempt) -> None:
        attempt.prompt(attempt.task.prompt)
        secret = attempt.task.ground_truth
        call = (await attempt.act()).text
        asked = call in (CLEAN, CLUMSY)
        attempt.count("tool_calls", asked)
        attempt.count("tool_errors", call == CLUMSY)
        attempt.count("format_faults", not asked)
        attempt.observe(secret if asked else NOTHING, source="tool")
        answer = (await attempt.act()).text
        # The last word is the environment's: the policy cannot claim it.
        attempt.observe(str(int(asked) + int(answer == secret)))


@SCORERS.register("riddles")
def asked_and_answered(solution_str: str) -> float:
    return int(solution_str[-1:] or 0) / 2


def tasks(*, seed: int, held_out_size: int) -> TaskSet:
    draw = random.Random(seed)
    made = [
        Task(id=str(number), prompt=[{"role": "user", "content": "?"}], ground_truth=draw.choice(LETTERS))
        for number in range(64)
    ]
    return TaskSet(
        train=made[held_out_size:],
        held_out=made[:held_out_size],
        scorer="riddles",
        alphabet=LETTERS + CLEAN + CLUMSY + NOTHING + "?012",
    )
