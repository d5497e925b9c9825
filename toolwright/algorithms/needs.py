"""What estimators may need beyond rewards, mask and group: one table of providers.

An estimator with a need that is not in the table brings a provider along, in its own file:

    @provides("prompt_tokens")
    def prompt_tokens(step: ScoredStep) -> Tensor: ...

    @registry.register("mine", needs={"prompt_tokens"})
    def mine(*, rewards, mask, prompt_tokens): ...
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, Literal

import torch
from torch import Tensor

from toolwright.algorithms import advantages
from toolwright.batch import Batch
from toolwright.failures import UserError
from toolwright.trajectory import Trajectory

# What a run has or does only because a provider asks for it: a role, a greedy attempt at each task, a pass of
# the learner over what was sampled, and rows that are steps instead of whole attempts.
Requirement = Literal[
    "critic",
    "reference",
    "teacher",
    "process_reward",
    "greedy_attempt",
    "old_log_prob",
    "sum_pi_squared",
    "steps",
]


@dataclass(frozen=True)
class ScoredStep:
    """What providers compute from: a step's scored attempts, once the roles that were asked have answered."""

    # With a column for each answer: `values`, `ref_log_prob`, `teacher_log_prob`, `old_log_prob`,
    # `sum_pi_squared`, `implicit_reward`.
    batch: Batch
    trajectories: Sequence[Trajectory]
    baselines: Mapping[str, Sequence[float]]  # `rewards_to_go` of the greedy attempt, by group
    part_weights: Mapping[str, float]  # of the parts that the reward is the sum of: `reward.parts`
    all_at_end: bool = False  # not by step: everything is earned at the end

    @cached_property
    def step_rewards(self) -> list[list[float]]:
        """Of each attempt, what each of its steps earned."""
        return [step_rewards(t, all_at_end=self.all_at_end) for t in self.trajectories]


@dataclass(frozen=True)
class Provider:
    """Computes one need. The estimator receives it as `argument`."""

    compute: Callable[[ScoredStep], Any]
    argument: str
    requires: frozenset[Requirement]


PROVIDERS: dict[str, Provider] = {}

Compute = Callable[[ScoredStep], Any]


def provides(need: str, *requires: Requirement, argument: str | None = None) -> Callable[[Compute], Compute]:
    def add(compute: Compute) -> Compute:
        PROVIDERS[need] = Provider(compute, argument or need, frozenset(requires))
        return compute

    return add


def providers(estimator: str) -> list[Provider]:
    """The providers of all that this estimator needs."""
    needed = sorted(advantages.needs(estimator))
    if unknown := [need for need in needed if need not in PROVIDERS]:
        raise UserError(
            f"advantage estimator {estimator!r} needs {unknown[0]!r}, which nothing provides; known: "
            f"{', '.join(sorted(PROVIDERS))}. Register a provider with @provides({unknown[0]!r}) from "
            "toolwright.algorithms.needs"
        )
    return [PROVIDERS[need] for need in needed]


def required(estimator: str) -> frozenset[Requirement]:
    """What a run must have or do for this estimator."""
    return frozenset().union(*(provider.requires for provider in providers(estimator)))


def _provide_column(name: str, *requires: Requirement) -> None:
    """What a role, or a pass of the learner, has put into a column of the batch."""
    provides(name, *requires)(lambda step: step.batch.padded(name))


_provide_column("values", "critic")
_provide_column("ref_log_prob", "reference")
_provide_column("teacher_log_prob", "teacher", "old_log_prob")
_provide_column("implicit_reward", "process_reward")  # how much likelier to PRIME's model than at its start
_provide_column("old_log_prob", "old_log_prob")
_provide_column("sum_pi_squared", "sum_pi_squared")


@provides("reward_baseline", "greedy_attempt")
def reward_baseline(step: ScoredStep) -> Tensor:
    """The score of the greedy attempt."""
    return torch.tensor([step.baselines[group][0] for group in step.batch.group])


@provides("baseline_to_go", "greedy_attempt")
def baseline_to_go(step: ScoredStep) -> Tensor:
    """What the greedy attempt had still to earn at the turn of each token, or after its last turn."""
    batch = step.batch
    by_row = [step.baselines[group] for group in batch.group]
    owner = batch.spread(torch.arange(len(batch)))
    turns = zip(owner.tolist(), batch.steps.tolist(), strict=True)
    return batch.padded(torch.tensor([by_row[row][min(turn, len(by_row[row]) - 1)] for row, turn in turns]))


@provides("reward_parts")
def reward_parts(step: ScoredStep) -> dict[str, Tensor]:
    """The score of each part of the reward, by name; those that a scorer returned beside its score too."""
    names = dict.fromkeys([*step.part_weights, *(name for t in step.trajectories for name in t.reward_parts)])
    return {
        name: torch.tensor([t.reward_parts.get(name, 0.0) for t in step.trajectories], dtype=torch.float64)
        for name in names
    }


@provides("part_weights")
def part_weights(step: ScoredStep) -> Mapping[str, float]:
    return step.part_weights


@provides("anchor", "steps")
def anchor(step: ScoredStep) -> list[str | None]:
    """The state that each step was taken in."""
    return [one.anchor for t in step.trajectories for one in t.steps]


@provides("step_reward", "steps", argument="step_rewards")
def step_reward(step: ScoredStep) -> Tensor:
    return torch.tensor([reward for earned in step.step_rewards for reward in earned])


def rewards_to_go(trajectory: Trajectory, *, all_at_end: bool = False) -> list[float]:
    """What an attempt had still to earn at each of its turns, and after the last: its score less what its
    steps had earned. `all_at_end`: the score, at any turn."""
    earned = [] if all_at_end else accumulate(_given(trajectory))
    return [(trajectory.reward or 0.0) - before for before in (0.0, *earned)]


def step_rewards(trajectory: Trajectory, *, all_at_end: bool = False) -> list[float]:
    """What each step of an attempt earned; together, the attempt's reward.

    What no step earned, such as the score of the answer or a penalty for length, lies on the last step that
    has a token; `all_at_end`: everything does. A step without a token earns nothing: there is none to credit.
    """
    steps = trajectory.steps
    acted = [number for number, step in enumerate(steps) if step.tokens]
    earned = [0.0] * len(steps)
    if not all_at_end and len(acted) > 1:
        given = _given(trajectory)
        for number in acted[:-1]:
            earned[number] = given[number]
    if acted:
        earned[acted[-1]] = (trajectory.reward or 0.0) - sum(earned)
    return earned


def _given(trajectory: Trajectory) -> list[float]:
    """What was said to be each step's: by a scorer, or else by environment, tool or agent."""
    return trajectory.step_rewards or [step.reward or 0.0 for step in trajectory.steps]
