"""Credit assignment: turns scored trajectories into a batch with advantages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from toolwright.algorithms import advantages, kl, losses, needs
from toolwright.batch import Batch
from toolwright.config import schema
from toolwright.failures import UserError
from toolwright.learner.objective import importance_weights
from toolwright.learner.policy import Policy
from toolwright.trainer.process_reward import OWN
from toolwright.trajectory import Trajectory

if TYPE_CHECKING:
    from toolwright.trainer.learning import Reference, Values


@dataclass
class Credit:
    """Assigns credit. It holds the roles that provide what estimators need."""

    config: schema.Config
    policy: Policy | None  # None where the estimator asks no model
    reference: Reference | None
    critic: Values | None
    teacher: Reference | None = None
    process_reward: Values | None = None

    def __post_init__(self) -> None:
        algorithm = self.config.algorithm
        entry = advantages.registry.get(algorithm.adv_estimator)
        self.providers = needs.providers(algorithm.adv_estimator)
        self.required = needs.required(algorithm.adv_estimator)
        common = entry.accepted(
            gamma=algorithm.gamma, lam=algorithm.lam, normalize_by_std=algorithm.normalize_by_std
        )
        roles = {"teacher"} | ({*OWN} if "process_reward" in self.required else set())  # their own settings
        settings = algorithm.params.get(algorithm.adv_estimator, {})
        own = {key: value for key, value in settings.items() if key not in roles}
        self.params = {**common, **own}
        by_token = "turn_end" not in entry.parameters and "steps" not in self.required
        if algorithm.discount_per == "turn" and by_token and common.keys() & {"gamma", "lam"}:
            raise UserError(
                f"algorithm.discount_per=turn: estimator {algorithm.adv_estimator!r} discounts every token; "
                "let it take `turn_end`, which is 1 at the last token of each turn"
            )

    def correction(self, *, exact: bool) -> str:
        """The correction of the gap between engine and learner. An exact engine has no gap."""
        chosen = self.config.algorithm.correction.mode
        return chosen if chosen != "auto" else "none" if exact else "truncate"

    def learner_pass(self, *, exact: bool) -> bool:
        """Return True if the learner must score the sampled tokens before the first update.

        An exact engine recorded the learner's own numbers. Without one, a single update can take the old
        log-probabilities from its own forward pass; anything more needs them beforehand.
        """
        config = self.config
        several = config.update.epochs * config.update.minibatches > 1
        asked = (
            "old_log_prob" in self.required
            or config.algorithm.kl.where == "reward"
            or losses.prepares(config.algorithm.loss)
        )
        return "sum_pi_squared" in self.required or (not exact and (several or asked))

    def assign(
        self,
        trajectories: Sequence[Trajectory],
        *,
        exact: bool,
        baselines: Mapping[str, list[float]],
        kl_coef: float,
    ) -> tuple[Batch, dict[str, float]]:
        """Return the batch with every column that the update needs, and metrics about it."""
        batch = Batch.pack(trajectories)
        metrics: dict[str, float] = {}
        if self.learner_pass(exact=exact):
            assert self.policy is not None
            now = self.policy.statistics(batch, squares="sum_pi_squared" in self.required)
            batch.columns["old_log_prob"] = now["log_prob"]
            if "sum_pi_squared" in now:
                batch.columns["sum_pi_squared"] = now["sum_pi_squared"]
        elif exact:
            batch.columns["old_log_prob"] = batch.columns["sampled_log_prob"]
        if self.reference is not None:
            batch.columns["ref_log_prob"] = self.reference.statistics(batch)["log_prob"]
        if self.teacher is not None:
            batch.columns["teacher_log_prob"] = self.teacher.statistics(batch)["log_prob"]
            away = batch.columns["old_log_prob"] - batch.columns["teacher_log_prob"]
            metrics["teacher/kl"] = float(away.mean())
        if self.critic is not None:
            batch.columns["values"] = self.critic.values(batch)
        if self.process_reward is not None:  # it learns first: what it has just seen is graded best
            right = torch.tensor([min(1.0, max(0.0, t.accuracy or 0.0)) for t in trajectories])
            batch.columns["label"] = batch.spread(right)
            learned = self.process_reward.update(batch)
            metrics.update({f"process_reward/{name}": value for name, value in learned.items()})
            batch.columns["implicit_reward"] = self.process_reward.values(batch)
        penalty = None
        if self.config.algorithm.kl.where == "reward":
            away = self._divergence(batch)
            penalty, metrics["reference/kl"] = kl_coef * batch.padded(away), float(away.mean())
        mode = self.correction(exact=exact)
        if mode != "none" and "old_log_prob" in batch.columns:  # else the update's own pass corrects
            old = batch.padded("old_log_prob")
            weights, found = importance_weights(self.config.algorithm.correction, mode, batch, old)
            batch.columns["weights"] = batch.flat(weights)
            metrics.update({f"correction/{name}": float(value) for name, value in found.items()})
        given, returned = self.estimate(batch, trajectories, baselines, penalty)
        batch.columns["advantages"], batch.columns["returns"] = batch.flat(given), batch.flat(returned)
        return batch, metrics

    def _divergence(self, batch: Batch) -> Tensor:
        """[actions]: how far the policy is from the reference."""
        columns = batch.columns
        return kl.compute(
            self.config.algorithm.kl.estimator, columns["old_log_prob"], columns["ref_log_prob"]
        )

    def estimate(
        self,
        batch: Batch,
        trajectories: Sequence[Trajectory],
        baselines: Mapping[str, list[float]],
        penalty: Tensor | None = None,  # [trajectories, tokens]
    ) -> tuple[Tensor, Tensor]:
        """Return (advantages, returns) of the chosen estimator. `penalty` is subtracted from the rewards."""
        algorithm = self.config.algorithm
        step = needs.ScoredStep(
            batch, trajectories, baselines, self.config.reward.parts, all_at_end=not algorithm.step_rewards
        )
        # Not the sum of rewards by step: rounded, those of two attempts that earned the same would differ.
        rewards = totals = batch.rewards([t.reward or 0.0 for t in trajectories])
        if "rewards" in advantages.registry.get(algorithm.adv_estimator).parameters:
            rewards = batch.rewards_by_step(step.step_rewards)
        if penalty is not None:
            rewards, totals = rewards - penalty, totals - penalty
        inputs: dict[str, Any] = dict(self.params)
        inputs.update({provider.argument: provider.compute(step) for provider in self.providers})
        name, scores = algorithm.adv_estimator, totals.sum(-1)
        if "steps" in self.required:
            return self._by_step(name, batch, scores, trajectories, inputs)
        if algorithm.discount_per == "turn":
            inputs |= advantages.registry.get(name).accepted(turn_end=batch.padded(batch.step_ends))
        return advantages.compute(
            name, rewards=rewards, scores=scores, mask=batch.mask, group=batch.group, **inputs
        )

    def _by_step(
        self,
        name: str,
        batch: Batch,
        scores: Tensor,
        trajectories: Sequence[Trajectory],
        inputs: dict[str, Any],
    ) -> tuple[Tensor, Tensor]:
        """Lay out the batch for step-wise estimators, with one row per step. Every action lies in exactly one
        row."""
        steps, mask = batch.padded(batch.steps.float()).long(), batch.mask
        if any(len(t.steps) > 1 and step.anchor is None for t in trajectories for step in t.steps):
            raise UserError(
                f"algorithm.adv_estimator={name} compares steps taken in the same state, but agent "
                f"{self.config.rollout.agent_name!r} takes steps without an anchor that names the state"
            )
        owner = [i for i, t in enumerate(trajectories) for _ in t.steps]
        number = [s for t in trajectories for s in range(len(t.steps))]
        mine = mask[owner] * (steps[owner] == torch.tensor(number)[:, None])
        last = (mine * torch.arange(1, mine.shape[1] + 1)).argmax(-1)
        episode = torch.zeros_like(mine)
        # `scores`, not the trajectories' own: where the reference is in the reward, its penalty counts here.
        episode[torch.arange(len(owner)), last] = scores[owner]
        given, returned = advantages.compute(
            name,
            rewards=episode,
            scores=scores[owner],
            mask=mine,
            group=[batch.group[i] for i in owner],
            **advantages.registry.get(name).accepted(trajectory=owner),
            **inputs,
        )
        rows = torch.tensor(owner)
        whole = torch.zeros_like(mask)
        return (
            whole.index_add(0, rows, given.to(whole.dtype) * mine),
            whole.index_add(0, rows, returned.to(whole.dtype) * mine),
        )
