"""A rehearsal of the algorithm on made-up numbers before anything starts, so that bad settings fail early."""

from __future__ import annotations

import torch

from toolwright.algorithms import advantages, losses
from toolwright.algorithms.aggregate import Totals
from toolwright.batch import Batch
from toolwright.config import schema
from toolwright.failures import UserError, nearest
from toolwright.learner.forward import Statistics
from toolwright.learner.objective import Objective
from toolwright.trainer.credit import Credit
from toolwright.trajectory import Segment, Task, Trajectory

GROUPS, MOST_SAMPLES = 2, 4


def rehearse(config: schema.Config, credit: Credit, objective: Objective) -> None:
    """Check that estimator and loss accept their settings, and that something can be learned from them."""
    algorithm, rollout = config.algorithm, config.rollout
    known = {*advantages.names(), *losses.names(), algorithm.adv_estimator, algorithm.loss}
    for name in algorithm.params:
        if name not in known:
            raise UserError(
                f"algorithm.params.{name}: no estimator and no loss of this name; {nearest(name, known)}"
            )
    if rollout.temperature == 0:
        raise UserError(
            "rollout.temperature=0 takes the likeliest token every time: a policy that never explores "
            "cannot learn; set it above 0 (eval.temperature is that of evaluation)"
        )
    if algorithm.selection.dynamic_sampling and rollout.samples < 2:
        raise UserError(
            "algorithm.selection.dynamic_sampling learns from groups whose attempts differ: "
            f"rollout.samples={rollout.samples} must be at least 2"
        )
    advantage = _play(credit, objective, samples=min(rollout.samples, MOST_SAMPLES))
    if not advantage.any():
        raise UserError(
            f"algorithm.adv_estimator={algorithm.adv_estimator} learns nothing from "
            f"rollout.samples={rollout.samples}: it compares attempts at one task; set it to at least 2"
        )


def _play(credit: Credit, objective: Objective, *, samples: int) -> torch.Tensor:
    """Compute advantages of attempts with different rewards, and pass them to the loss."""
    attempts = [_attempt(group, index) for group in range(GROUPS) for index in range(samples)]
    batch = Batch.pack(attempts)
    sampled = batch.columns["sampled_log_prob"]
    batch.columns.update(
        old_log_prob=sampled,
        ref_log_prob=sampled,
        teacher_log_prob=0.5 * sampled,
        values=0.1 * sampled,
        sum_pi_squared=sampled.exp(),
        implicit_reward=0.2 * sampled,
    )
    baselines = {attempt.group: [0.1] for attempt in attempts}
    advantage, _ = credit.estimate(batch, attempts, baselines)
    batch.columns["advantages"] = batch.flat(advantage)
    now = Statistics(sampled, -sampled)
    if objective.prepares:
        batch.columns.update(objective.prepare(batch, now))
    objective(batch, now, Totals.of(batch.mask))
    return advantage


def _attempt(group: int, index: int) -> Trajectory:
    number = 1 + group * MOST_SAMPLES + index
    attempt = Trajectory(Task("", []), group=str(group), index=index, reward=number / 10)
    for turn in range(2):
        attempt.append(Segment("prompt", [0]))
        attempt.append(
            Segment("policy", [0, 0], [-0.1 * number, -0.2], reward=number / 20, anchor=f"state {turn}")
        )
    return attempt
