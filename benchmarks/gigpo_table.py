"""GiGPO beside GRPO with a table as the policy: what the two estimators are worth when nothing else learns.

    python benchmarks/gigpo_table.py [--seeds 10] [--steps 25]

A grid world of keys and doors, a level a seed: three doors, a shortest way of 20 to 26 moves, three hundred
turns to find it, one reward at its end. The policy is a row of four logits for each state (place and keys
held), at first all 0: it wanders. Environment and estimators are Toolwright's own, called as the trainer
calls them. What a network adds is left out: states that share weights, updates that move what nobody meant
to. `gigpo.py` beside this has a network.

Equal for both: levels, random numbers, attempts a step (one group of 8), one update a step by Adam. Each has
its own paper's average over tokens, and the learning rate that was best for it on other levels (seeds 100 to
103), which the script finds out first. GiGPO's weight of steps and its discount are the paper's, 1 and 0.95.

Compared is success, the share of a step's attempts that reach the goal: over all steps, in percent; and by
how many steps three in a row have had 80 % of it.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from bisect import bisect
from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from toolwright.algorithms import advantages, aggregate
from toolwright.config.schema import TaskConfig
from toolwright.tasks import load
from toolwright.tasks.builtin.gridworld import MOVES, GridWorld
from toolwright.trajectory import Task

SHAPE = {"width": 11, "height": 4, "doors": 3, "min_steps": 20, "max_steps": 26}
ATTEMPTS, TURNS, GAMMA = 8, 300, 0.95
RATES = (0.1, 0.2, 0.4, 0.8)
TUNING = range(100, 104)
ACTIONS = [name[0] for name in MOVES]
AVERAGE = {"grpo": "seq-mean-token-mean", "gigpo": "token-mean"}
Attempt = tuple[list[str], list[int], bool]  # the states, what was done in each, whether the goal was reached


@cache
def level(seed: int) -> Task:
    config = TaskConfig(name="gridworld", params={**SHAPE, "view": "place"}, train_size=1, held_out_size=1)
    return load(config, seed=seed).train[0]


class Table:
    """Logits by state; a state gets its row when it is first seen."""

    def __init__(self, rate: float, *, most: int = 512) -> None:
        self.logits = torch.zeros(most, len(ACTIONS), requires_grad=True)
        self.rows: dict[str, int] = {}
        self.optimizer = torch.optim.Adam([self.logits], lr=rate, betas=(0.9, 0.99))

    def row(self, state: str) -> int:
        return self.rows.setdefault(state, len(self.rows))

    def chances(self) -> list[list[float]]:
        return [list(accumulate(row)) for row in self.logits.detach().softmax(-1).tolist()]


def attempt(table: Table, chances: list[list[float]], task: Task, rng: random.Random) -> Attempt:
    world = GridWorld(task.extra_info["environment"]["level"], "place")
    states: list[str] = []
    actions: list[int] = []
    while len(states) < TURNS:
        states.append(world.anchor)
        actions.append(min(bisect(chances[table.row(world.anchor)], rng.random()), len(ACTIONS) - 1))
        if world.step(ACTIONS[actions[-1]]).done:
            return states, actions, True
    return states, actions, False


def credit(algorithm: str, attempts: Sequence[Attempt], mask: Tensor) -> Tensor:
    """[attempts, turns], a turn being a token."""
    won = torch.tensor([float(reached) for _, _, reached in attempts])
    last = mask.sum(-1).long() - 1
    rewards = torch.zeros_like(mask).scatter_(1, last[:, None], won[:, None])
    if algorithm == "grpo":
        return advantages.compute("grpo", rewards=rewards, mask=mask, group=["level"] * len(attempts))[0]
    owner = [number for number, (states, _, _) in enumerate(attempts) for _ in states]
    given, _ = advantages.compute(
        "gigpo",
        rewards=won[owner][:, None],
        mask=torch.ones(len(owner), 1),
        group=["level"] * len(owner),
        trajectory=owner,
        step_rewards=rewards[mask.bool()],
        anchor=[state for states, _, _ in attempts for state in states],
        mode="mean_std_norm",
        gamma=GAMMA,
    )
    return torch.zeros_like(mask).masked_scatter(mask.bool(), given[:, 0].float())


def successes(algorithm: str, seed: int, *, steps: int, rate: float) -> list[float]:
    """The share of a step's attempts that reached the goal, step by step."""
    table, rng, task = Table(rate), random.Random(seed), level(seed)
    found = []
    for _ in range(steps):
        chances = table.chances()
        attempts = [attempt(table, chances, task, rng) for _ in range(ATTEMPTS)]
        found.append(statistics.fmean(reached for _, _, reached in attempts))
        mask = torch.zeros(ATTEMPTS, max(len(states) for states, _, _ in attempts))
        for number, (states, _, _) in enumerate(attempts):
            mask[number, : len(states)] = 1
        rows = torch.tensor([table.row(state) for states, _, _ in attempts for state in states])
        taken = torch.tensor([action for _, actions, _ in attempts for action in actions])
        log_probs = table.logits[rows].log_softmax(-1)[torch.arange(len(rows)), taken]
        gain = credit(algorithm, attempts, mask) * torch.zeros_like(mask).masked_scatter(
            mask.bool(), log_probs
        )
        table.optimizer.zero_grad()
        (-aggregate.compute(AVERAGE[algorithm], gain, mask)).backward()
        table.optimizer.step()
    return found


def tuned(algorithm: str, *, steps: int) -> float:
    """The rate with the highest mean success over all steps of the tuning levels."""
    means = {
        rate: statistics.fmean(
            statistics.fmean(successes(algorithm, seed, steps=steps, rate=rate)) for seed in TUNING
        )
        for rate in RATES
    }
    print(f"{algorithm:6}" + "".join(f"  {rate:g}: {100 * mean:.1f}" for rate, mean in means.items()))
    return max(means, key=means.__getitem__)


def reached(curve: Sequence[float]) -> int:
    """The first step by which three in a row have had 80 % on average; one more than there are: never."""
    means = [statistics.fmean(curve[step - 3 : step]) for step in range(3, len(curve) + 1)]
    return next((step for step, mean in enumerate(means, 3) if mean >= 0.8), len(curve) + 1)


def line(name: str, values: Sequence[float]) -> None:
    print(f"{name:8}" + "".join(f"{value:10.1f}" for value in values))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=25)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    started = time.perf_counter()
    print(f"success over all steps by learning rate, seeds {TUNING.start} to {TUNING.stop - 1}")
    rates = {name: tuned(name, steps=asked.steps) for name in AVERAGE}
    print(f"learning rates: {rates}\n")
    print(f"{'':8}{'':>10}{'success over all steps':>30}{'steps to 80 %':>20}")
    print(f"{'seed':8}{'at first':>10}{'grpo':>10}{'gigpo':>10}{'ahead':>10}{'grpo':>10}{'gigpo':>10}")
    rows = []
    for seed in range(asked.seeds):
        grpo, gigpo = (successes(name, seed, steps=asked.steps, rate=rate) for name, rate in rates.items())
        first, one, other = (100 * statistics.fmean(part) for part in (grpo[:1], grpo, gigpo))
        rows.append([first, one, other, other - one, reached(grpo), reached(gigpo)])
        line(str(seed), rows[-1])
    columns = list(zip(*rows, strict=True))
    line("mean", [statistics.fmean(column) for column in columns])
    if asked.seeds > 1:
        line("sd", [statistics.stdev(column) for column in columns])
        error = statistics.stdev(columns[3]) / asked.seeds**0.5
        print(f"paired t = {statistics.fmean(columns[3]) / error:.1f}")
    print(f"GiGPO ahead on {sum(value > 0 for value in columns[3])} of {asked.seeds} seeds")
    print(f"{time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
