"""Two tasks of several turns with rewards on the way, for `step_rewards.py`.

`rooms`: each room opens to its own letter. The right one leads to the next room and earns a quarter, a wrong
one leads back into the same.

`errand`: a chest opens to the first letter of its name. Opening it is a call of a tool, which pays a half and
says what lies inside, the last letter. Then come turns of small talk that earn nothing. The last turn is to
say what lay inside, which earns the other half.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

from toolwright import TaskSet, ToolResult
from toolwright.agents.attempt import Attempt
from toolwright.rewards import SCORERS
from toolwright.tools.call import ToolRequest
from toolwright.tools.toolbox import Toolbox
from toolwright.trajectory import Task

LETTERS, ROOMS = "abc", 4
TALK, NOTHING = 4, "-"


class Walker:
    async def attempt(self, attempt: Attempt) -> None:
        attempt.prompt(attempt.task.prompt)
        rooms, passed = attempt.task.ground_truth, 0
        while passed < ROOMS and attempt.turns < attempt.max_turns:
            attempt.observe(rooms[passed])
            step = await attempt.act(anchor=f"room {passed}")
            step.reward = 1 / ROOMS if step.text == rooms[passed] else 0.0
            passed += step.reward > 0
        attempt.finish("done" if passed == ROOMS else "turns")


def rooms(*, seed: int, held_out_size: int) -> TaskSet:
    every = ["".join(p) for p in itertools.product(LETTERS, repeat=ROOMS)]
    return _split(every, seed, held_out_size, scorer="step_rewards", alphabet=LETTERS)


def unlock(chest: str, key: str) -> ToolResult:
    """Open a chest.

    Args:
        chest: its name
        key: a letter
    """
    opened = key == chest[0]
    return ToolResult(chest[-1] if opened else NOTHING, reward=0.5 if opened else 0.0)


class Errand:
    def __init__(self) -> None:
        # Not the run's own tools: with those, a new model's vocabulary is all that can be printed.
        self.tools = Toolbox({"unlock": {"path": f"{__file__}:unlock"}})

    async def attempt(self, attempt: Attempt) -> None:
        chest = attempt.task.ground_truth
        attempt.prompt([{"role": "user", "content": chest}])
        step = await attempt.act(anchor="closed")
        with attempt.waiting("the tools (unlock)"):
            request = ToolRequest("unlock", {"chest": chest, "key": step.text})
            answer = await self.tools.call(request, attempt=attempt.id)
        step.reward = answer.reward
        attempt.observe(answer.text, source="tool")
        for turn in range(TALK):
            await attempt.act(anchor=f"talk {turn}")
            attempt.observe(NOTHING)
        await attempt.act(anchor=answer.text)
        attempt.finish("done")


@SCORERS.register("errand")
def said_what_lay_inside(turns: list[str], ground_truth: str) -> float:
    """A half for the answer; what the tool paid is the part `step_rewards`."""
    return 0.5 * (bool(turns) and turns[0] == ground_truth[0] and turns[-1] == ground_truth[-1])


def errand(*, seed: int, held_out_size: int) -> TaskSet:
    every = ["".join(p) for p in itertools.product(LETTERS, repeat=3)]
    return _split(every, seed, held_out_size, scorer="errand", alphabet=LETTERS + NOTHING)


def _split(every: Sequence[str], seed: int, held_out_size: int, *, scorer: str, alphabet: str) -> TaskSet:
    names = random.Random(seed).sample(every, len(every))
    made = [Task(id=name, prompt=[{"role": "user", "content": ""}], ground_truth=name) for name in names]
    return TaskSet(made[held_out_size:], made[:held_out_size], scorer=scorer, alphabet=alphabet)
