"""Your own environment, trained with GiGPO: steps taken from the same state are compared with each other.

    python examples/05_own_environment.py [STEPS]

A corridor with a treasure to the left or right. There is one reward, at the end; GiGPO sees which step led to
it.
"""

from __future__ import annotations

import random
import sys

import toolwright as tw


class Corridor:
    """Walk with `l` and `r` from the middle to the treasure, which a sign points to."""

    inline = True  # its methods are quick, so they need no thread of their own

    def __init__(self, treasure: int, steps: int = 6) -> None:
        self.treasure, self.left, self.place = treasure, steps, 0

    def reset(self, task: tw.Task) -> tw.Observation:
        return tw.Observation(self._seen(), anchor=self._seen())

    def step(self, action: str) -> tw.Outcome:
        if action not in ("l", "r"):
            raise tw.InvalidAction("l or r")
        self.left -= 1
        self.place += 1 if action == "r" else -1
        found = self.place == self.treasure
        info = {"success": found}
        return tw.Outcome(self._seen(), float(found), found or self.left == 0, anchor=self._seen(), info=info)

    def _seen(self) -> str:
        return f"{self.place:+d} {'>' if self.treasure > 0 else '<'}"


def tasks(*, seed: int = 0) -> tw.TaskSet:
    rng = random.Random(seed)

    def walk(name: str) -> tw.Task:
        treasure = rng.choice([-3, -2, 2, 3])
        return tw.Task(name, prompt=[], extra_info={"environment": {"treasure": treasure}})

    return tw.TaskSet(
        train=[walk(f"train-{number}") for number in range(200)],
        held_out=[walk(f"held-out-{number}") for number in range(32)],
        scorer="environment",
        alphabet="lro+-0123456789 <>",
    )


def main(steps: int = 60) -> None:
    words = ("algorithm=gigpo", f"train.steps={steps}", "rollout.max_tokens=1", "rollout.max_turns=12")
    words += ("model.context=128", "update.policy.lr=2e-3", "eval.every=20")
    trainer = tw.Trainer(*words, task=tasks, environment=Corridor)
    for step in trainer:
        if step.number == 1 or step.number % 10 == 0:
            print(step.number, {name: round(step.metrics[name], 2) for name in ("reward/mean", "turns/mean")})


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
