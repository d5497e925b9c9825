"""The learner of a run: policy, reference and critic, and their update by one step's groups."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol

from torch import Tensor

from toolwright.agents.attempt import seed_of
from toolwright.algorithms import kl
from toolwright.algorithms.entropy import EntropyBonus
from toolwright.batch import Batch
from toolwright.config import schema
from toolwright.config.block import require_number
from toolwright.failures import UserError
from toolwright.learner.critic import Critic
from toolwright.learner.forward import ActionLog
from toolwright.learner.minibatches import minibatches
from toolwright.learner.objective import TOGETHER, Objective, PreferenceObjective
from toolwright.learner.policy import AdapterReference, Policy
from toolwright.learner.ranks import ALONE, Ranks
from toolwright.models.decoder import Decoder
from toolwright.trainer import building
from toolwright.trainer.building import needs_role
from toolwright.trainer.credit import Credit
from toolwright.trainer.measures import OF_FIRST_UPDATE, of_gap, of_updates
from toolwright.trainer.preference import PreferenceCredit
from toolwright.trainer.process_reward import build_process_reward
from toolwright.trainer.rehearsal import rehearse
from toolwright.trainer.teacher import build_teacher
from toolwright.trajectory import Trajectory


class Reference(Protocol):
    """The model that the policy is kept close to. It may live in this process or in another."""

    def statistics(self, batch: Batch) -> dict[str, Tensor]: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Values(Protocol):
    """The critic as the learner uses it. It may live in this process or in another."""

    def values(self, batch: Batch) -> Tensor: ...
    def update(self, batch: Batch) -> dict[str, float]: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def build_critic(config: schema.Config, decoder: Decoder, ranks: Ranks = ALONE) -> Critic:
    return Critic(
        decoder,
        config.update.critic,
        total_updates=total_updates(config),
        clip=config.algorithm.clip_value,
        **building.pass_settings(config, ranks),
    )


def total_updates(config: schema.Config, *, after: int = 0) -> int:
    """Count the updates of a run, or of its steps after the first `after`."""
    steps = max(0, config.train.steps - after)
    return steps * config.update.epochs * config.update.minibatches


class Learner:
    """Holds the roles that the algorithm needs, and no others. Roles that are not passed in are built
    here."""

    def __init__(
        self,
        config: schema.Config,
        decoder: Decoder,
        *,
        max_turns: int,
        reference: Reference | None = None,
        critic: Values | None = None,
        teacher: Reference | None = None,
        process_reward: Values | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        self.config = config
        update, algorithm = config.update, config.algorithm
        if update.optimizer_state == "host" and ranks is ALONE:
            raise UserError(
                "update.optimizer_state=host needs a learner over ranks, but this learner is a single process"
            )
        based = decoder.stored == "bfloat16" and decoder.adapter is not None  # nothing of it is learned
        whole = decoder.stored == "float32" or based
        if ranks is not ALONE and (update.optimizer_state == "int8" or not whole):
            key = "update.optimizer_state" if whole else "model.dtype"
            value = update.optimizer_state if whole else config.model.dtype
            raise UserError(
                f"{key}={value} works in one process only. Over several ranks, learned weights and moments "
                "are float32, and an adapter's base is bfloat16 or float32"
            )
        self.skips = 0
        # First the copies: once the policy is sharded there is no whole to be copied.
        self.reference: Reference | None = None
        self.critic: Values | None = None
        if needs_role(algorithm, "reference") and decoder.adapter is None:
            self.reference = reference or building.build_frozen(config, copy.deepcopy(decoder), ranks)
        if needs_role(algorithm, "critic"):
            self.critic = critic or build_critic(config, decoder, ranks)
        if needs_role(algorithm, "teacher") and teacher is None:
            teacher = build_teacher(config, ranks)
        self.process_reward = process_reward
        if needs_role(algorithm, "process_reward") and process_reward is None:
            self.process_reward = build_process_reward(config, decoder)
        self.policy = Policy(
            decoder,
            update.policy,
            # Its schedule counts its own updates: there are none while the critic learns alone.
            total_updates=total_updates(config, after=update.critic_warmup if self.critic else 0),
            temperature=config.rollout.temperature,
            **building.pass_settings(config, ranks),
        )
        if needs_role(algorithm, "reference") and decoder.adapter is not None:
            self.reference = AdapterReference(self.policy)
        self.together = 1  # trajectories that are learned from side by side
        self.objective: Objective | PreferenceObjective
        self.credit: Credit | PreferenceCredit
        if algorithm.preference is not None:
            self.together = TOGETHER
            self.objective = PreferenceObjective(algorithm)
            self.credit = PreferenceCredit(self.reference)
        else:
            tokens = require_number(config.rollout.max_tokens, "rollout.max_tokens")
            self.objective = Objective(algorithm, norm_tokens=tokens * max_turns)
            self.credit = Credit(
                config, self.policy, self.reference, self.critic, teacher, self.process_reward
            )
            rehearse(config, self.credit, self.objective)

    def learn(
        self,
        trajectories: Sequence[Trajectory],
        step: int,
        *,
        exact: bool,
        baselines: Mapping[str, list[float]],
    ) -> tuple[dict[str, float], dict[str, Tensor]]:
        """Compute advantages, then take epochs × minibatches of updates.

        `exact`: the engine's log-probabilities are the learner's. Returns metrics, and the columns of
        `TokenValues` over the actions of all trajectories.
        """
        update = self.config.update
        newest = max(t.weights_version for t in trajectories)
        fresh = [row for row, t in enumerate(trajectories) if t.weights_version == newest]
        # What an older policy sampled is not ours any more: it is weighted by how far they are apart.
        replayed = self.config.algorithm.selection.replay > 0 and len(fresh) < len(trajectories)
        # What an agent sampled at a temperature of its own has other log-probabilities than ours.
        own = any("own_sampling" in t.counts for t in trajectories)
        exact = exact and not replayed and not own
        batch, metrics = self.credit.assign(
            trajectories, exact=exact, baselines=baselines, kl_coef=self.objective.kl_coef
        )
        log, every = ActionLog(batch), batch
        # With a single update a step, its own pass tells what a correction needs.
        known = "old_log_prob" in batch.columns
        self.objective.correction = "none" if known else self.credit.correction(exact=exact)
        gap: dict[str, float] = {}
        if replayed:  # the engine's gap is that of what it sampled now
            new = batch.select(fresh)
            now = new.columns["old_log_prob"] if known else self.policy.statistics(new)["log_prob"]
            gap = of_gap(new, now)
        if self.config.reward.truncated == "mask":  # they have counted in their group's baseline
            whole = [row for row, t in enumerate(trajectories) if not t.cut]
            if not whole:
                return metrics, {}
            batch = batch.select(whole) if len(whole) < len(batch) else batch
        rows: list[dict[str, float]] = []
        critic_rows: list[dict[str, float]] = []
        for epoch in range(update.epochs):
            seed = self.config.run.seed
            parts = minibatches(
                batch, update.minibatches, seed=seed, step=step, epoch=epoch, together=self.together
            )
            for number, part in enumerate(parts):
                if self.critic is not None:
                    critic_rows.append(self.critic.update(part))
                if self.critic is None or step > update.critic_warmup:
                    drawn = seed_of(seed, "update", step, epoch, number)
                    note = log.note if epoch == 0 else None
                    rows.append(self.policy.update(part, self.objective, seed=drawn, note=note))
        metrics.update(of_updates("policy", rows))
        metrics.update(of_updates("critic", critic_rows))
        # The weights had not moved yet at the first update: what differs there is the engine's gap.
        if rows:
            metrics.update({key: rows[0][key] for key in rows[0] if key.startswith(OF_FIRST_UPDATE)})
            metrics.update(gap)
            self._adapt_kl(metrics, len(batch))
            self._adapt_entropy(metrics)
        else:
            metrics.update(gap or of_gap(batch, self.policy.statistics(batch)["log_prob"]))
        self._count_skips(rows)
        return metrics, self._token_values(every, log, one_update=len(rows) == 1)

    def _token_values(self, batch: Batch, log: ActionLog, *, one_update: bool) -> dict[str, Tensor]:
        """Values by action; NaN where an action was not learned from. If a step has several updates, the
        log-probabilities are those that the ratios are computed against: the weights move between updates."""
        log_prob, entropy, learned = log.whole(self.policy.ranks)
        old = log_prob if one_update else batch.columns.get("old_log_prob", log_prob)
        found = {"log_probs": old, "entropies": entropy}
        if "advantages" in batch.columns:
            found["advantages"] = batch.columns["advantages"]
        return {name: column.masked_fill(~learned, math.nan) for name, column in found.items()}

    def measure(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        """Compute the loss of answers without learning from them, and how often the policy agrees with the
        data."""
        assert isinstance(self.objective, PreferenceObjective)
        batch, _ = self.credit.assign(trajectories, exact=False, baselines={}, kl_coef=0.0)
        return self.objective.measure(batch, self.policy.statistics(batch)["log_prob"])

    def _adapt_kl(self, metrics: dict[str, float], trajectories: int) -> None:
        config = self.config.algorithm.kl
        if config.where == "none":
            return
        if "policy/reference_kl" in metrics:
            metrics["reference/kl"] = metrics.pop("policy/reference_kl")
        metrics["reference/kl_coef"] = self.objective.kl_coef
        if config.target is not None:
            self.objective.kl_coef = kl.adapt(
                self.objective.kl_coef,
                observed=metrics["reference/kl"],
                target=config.target,
                horizon=config.horizon,
                trajectories=trajectories,
            )

    def _adapt_entropy(self, metrics: dict[str, float]) -> None:
        config = self.config.algorithm
        if config.entropy_target is None:
            return
        metrics["policy/entropy_coef"] = self.objective.entropy_coef
        self.objective.entropy = self.objective.entropy.adapted(
            observed=metrics["policy/entropy"], target=config.entropy_target, delta=config.entropy_delta
        )

    def _count_skips(self, rows: Sequence[dict[str, float]]) -> None:
        """Count bad gradients in a row. One now and then is harmless; many in a row mean that the run is
        broken."""
        for row in rows:
            self.skips = self.skips + 1 if row["skipped"] else 0
        if self.skips >= self.config.train.max_skips:
            raise UserError(
                f"{self.skips} updates in a row were skipped: their gradients were not finite; "
                "lower update.policy.lr, or look at the rewards and the engine's gap in metrics.jsonl"
            )

    def _stateful(self) -> Iterator[tuple[str, Any]]:
        """Yield the parts that a checkpoint keeps, with their names there."""
        for name in ("policy", "critic", "process_reward", "reference"):
            if (part := getattr(self, name)) is not None:
                yield name, part

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The state that the next update depends on: plain values, and tensors."""
        tensors = {name: part.state_dict() for name, part in self._stateful()}
        coefficients = {"kl_coef": self.objective.kl_coef, "entropy": asdict(self.objective.entropy)}
        return {**coefficients, "skips": self.skips}, tensors

    def restore(self, plain: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
        parts = dict(self._stateful())
        for name in ("reference", "critic", "process_reward"):
            held, used = name in tensors, name in parts
            # A reference that is not asked any more has learned nothing that would be lost.
            if held != used and (used or name != "reference"):
                raise UserError(
                    f"the checkpoint has {'a' if held else 'no'} {name.replace('_', ' ')}, and this run's "
                    f"algorithm {'needs one' if used else 'does not use it'}: resume with the algorithm that "
                    "the run began with, or start a new run with model.path=RUN/model"
                )
        try:
            for name, part in parts.items():
                part.load_state_dict(tensors[name])
        except (KeyError, RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise UserError(
                f"the checkpoint is of another model or algorithm ({reason}): resume with those that the run "
                "began with, or start a new run"
            ) from None
        self.skips = plain["skips"]
        algorithm = self.config.algorithm  # a coefficient that does not adapt is what this run says
        if algorithm.kl.target is not None:
            self.objective.kl_coef = plain["kl_coef"]
        if algorithm.entropy_target is not None and "entropy" in plain:  # not in checkpoints of 0.1
            self.objective.entropy = EntropyBonus(**plain["entropy"])
