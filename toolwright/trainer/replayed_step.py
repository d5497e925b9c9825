"""Replay of a stored step without sampling: with another reward, or another algorithm.

Scores, selection, credit and update are those of training. They start from what the run kept: the attempts of
the step, and the weights of a checkpoint.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from toolwright import tasks as task_sets
from toolwright.agents.rollout import most_turns
from toolwright.algorithms import needs
from toolwright.batch import Batch
from toolwright.config import schema
from toolwright.failures import UserError
from toolwright.learner import checkpoints
from toolwright.observe import rollouts
from toolwright.observe.metrics import Metrics, Row
from toolwright.record import Array, TokenValues
from toolwright.runtime.reaper import reap_children
from toolwright.tools.settings import settings_of
from toolwright.trainer.building import needs_role
from toolwright.trainer.credit import Credit
from toolwright.trainer.learning import Learner
from toolwright.trainer.preparation import alphabet
from toolwright.trainer.reward_role import RewardRole
from toolwright.trainer.role_config import RoleConfig
from toolwright.trainer.roles import RoleContext
from toolwright.trainer.sampling import GroupSelector, SampledStep
from toolwright.trajectory import Trajectory, as_groups

OF_UPDATE = ("policy/", "critic/", "reference/", "gap/", "log_prob/")  # metrics that an update leaves
SCORES = ("function", "parts", "params", "sandbox_url")  # keys of `reward` that decide an attempt's score


@dataclass(frozen=True)
class StepOutcome:
    """The rewards, advantages and update that one configuration gives to the step's attempts, in their
    order."""

    rewards: list[float | None]  # None: it failed, or could not be scored
    advantages: list[Array | None]  # of each sampled token; None: not learned from
    update: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ReplayedStep:
    """A recorded step, and the same step taken again with other settings."""

    attempts: list[Trajectory]
    before: StepOutcome
    after: StepOutcome
    recorded: dict[str, float]  # the run's own metrics of its update
    notes: list[str]  # what a reader must know of the weights and of what was not kept


@dataclass(frozen=True)
class StoredStep:
    """A step of a run, as stored in its folder. `config` is the run's own."""

    run: Path
    number: int
    config: schema.Config

    @property
    def file(self) -> Path:
        files = rollouts.files(self.run)
        if self.number not in files:
            kept = f"; it keeps those of steps {min(files)} to {max(files)}" if files else ""
            raise UserError(f"{self.run} keeps no attempts of step {self.number}{kept}")
        if self.number == 0:
            raise UserError("the attempts of step 0 are an evaluation's: nothing was learned from them")
        return files[self.number]

    def attempts(self) -> list[Trajectory]:
        """Read the attempts again at each call, because scoring and selection change them."""
        return rollouts.read(self.file)

    def values(self) -> list[TokenValues]:
        return rollouts.token_values(self.file)

    @property
    def metrics(self) -> Row:
        rows = Metrics.read(self.run / "metrics.jsonl")
        return next((row for row in reversed(rows) if row.get("step") == self.number), {})

    @property
    def weights(self) -> int:
        """Find the step whose saved weights are nearest to those that this step began with, before or after
        it. Step 0, the start of the run, can always be rebuilt."""
        kept = [0, *map(checkpoints.step_of, checkpoints.newest_first(self.run / "checkpoints"))]
        return min(kept, key=lambda step: (abs(step - (self.number - 1)), step))


def replay(stored: StoredStep, changed: schema.Config, *, update: bool) -> ReplayedStep:
    """Take a stored step again with the configuration `changed`. With `update`, learn from it as well."""
    own = stored.config
    for config in (own, changed):
        if config.algorithm.preference is not None:
            raise UserError(
                f"algorithm.loss={config.algorithm.loss} learns from the data's own answers: there are no "
                "attempts to replay"
            )
    if "greedy_attempt" in needs.required(changed.algorithm.adv_estimator):
        raise UserError(
            f"algorithm.adv_estimator={changed.algorithm.adv_estimator} needs a greedy attempt at each task, "
            "and runs do not keep those"
        )
    attempts = stored.attempts()
    notes: list[str] = []
    with reap_children():
        replayer = _Replayer(stored, changed, update, notes)
        after = replayer.outcome(rescore=_scores(own) != _scores(changed))
        before = _as_taken(stored, update, notes)
    return ReplayedStep(attempts, before, after, _of_update(stored.metrics), list(dict.fromkeys(notes)))


def _as_taken(stored: StoredStep, update: bool, notes: list[str]) -> StepOutcome:
    """Return the step as the run took it: from its record, with what the record lacks computed again."""
    algorithm, values = stored.config.algorithm, stored.values()
    if algorithm.selection.replay:
        notes.append("earlier successes that the run put into groups of failures are not kept with the step")
    known = any(one.learned for one in values)
    recorded = StepOutcome([t.reward for t in stored.attempts()], [one.advantages for one in values])
    if "greedy_attempt" in needs.required(algorithm.adv_estimator):
        notes.append("greedy attempts are not kept, so the run's own update is shown as it was recorded")
        return recorded
    if known and not update:
        return recorded
    again = _Replayer(stored, stored.config, update, notes).outcome(rescore=False)
    return replace(recorded, update=again.update) if known else again


class _Replayer:
    def __init__(self, stored: StoredStep, config: schema.Config, update: bool, notes: list[str]) -> None:
        self.stored, self.update, self.notes = stored, update, notes
        self.unchanged = config.algorithm == stored.config.algorithm
        config = config.changed({"runtime.name": "local"})
        if config.update.optimizer_state == "host":
            config = config.changed({"update.optimizer_state": "float32"})
        tasks = task_sets.load(config.task, seed=config.run.seed, learns=True)
        tools = settings_of(config)
        self.role_config = RoleConfig(
            config,
            tools,
            alphabet(tasks, tools),
            tasks.scorer,
            most_turns(config.rollout, tools, tasks.train),
        )
        self.config = config

    def outcome(self, *, rescore: bool) -> StepOutcome:
        attempts = self.stored.attempts()
        for t in attempts:
            t.reward, t.reward_parts = t.score, {k: v for k, v in t.reward_parts.items() if k != "overlong"}
        if rescore:
            self._score(attempts)
        learned = self._selected(attempts)
        columns, update = self._learn(learned) if learned else ({}, {})
        advantages = [v.advantages for v in TokenValues.of_attempts(attempts, columns, learned)]
        return StepOutcome([None if t.failure else t.reward for t in attempts], advantages, update)

    def _score(self, attempts: Sequence[Trajectory]) -> None:
        with closing(RewardRole(self.role_config, self.role_config.tools)) as role:
            role.check(list({id(t.task): t.task for t in attempts}.values()))
            asyncio.run(role.score(attempts))

    def _selected(self, attempts: Sequence[Trajectory]) -> list[Trajectory]:
        """Select the attempts that the step would have learned from."""
        config, tools, sampled = self.config, self.role_config.tools, SampledStep()
        selector = GroupSelector(config, turns=lambda task: most_turns(config.rollout, tools, [task]))
        for group in as_groups(attempts):
            selector.keep(sampled, group)
        sampled.groups = sampled.groups[: config.rollout.prompts]
        return sampled.trajectories

    def _learn(self, learned: Sequence[Trajectory]) -> tuple[dict[str, Array], dict[str, float]]:
        """Learn from the attempts. Returns the columns of `TokenValues`, and the metrics of the update."""
        if not self.update and not _asks_a_model(self.config):
            credit = Credit(self.config, policy=None, reference=None, critic=None)
            batch, _ = credit.assign(learned, exact=True, baselines={}, kl_coef=0.0)
            return self._unmasked(learned, batch), {}
        learner, exact = self._learner()
        if not self.update:
            batch, _ = learner.credit.assign(
                learned, exact=exact, baselines={}, kl_coef=learner.objective.kl_coef
            )
            return self._unmasked(learned, batch), {}
        batch = Batch.pack(learned)
        before = learner.policy.statistics(batch)["log_prob"]
        metrics, values = learner.learn(learned, self.stored.number, exact=exact, baselines={})
        change = learner.policy.statistics(batch)["log_prob"] - before
        moved = {
            "log_prob/change_mean": float(change.mean()),
            "log_prob/change_abs": float(change.abs().mean()),
        }
        return {name: column.numpy() for name, column in values.items()}, _of_update({**metrics, **moved})

    def _unmasked(self, learned: Sequence[Trajectory], batch: Batch) -> dict[str, Array]:
        """Return advantages, with NaN for attempts that were cut, if the run does not learn from those."""
        given = batch.columns["advantages"].numpy().copy()
        if self.config.reward.truncated == "mask":
            given[np.repeat([t.cut for t in learned], batch.action_lengths)] = np.nan
        return {"advantages": given}

    def _learner(self) -> tuple[Learner, bool]:
        """Load the policy at the nearest saved weights. Also returns whether the engine's numbers are the
        learner's own."""
        stored, wanted = self.stored, self.stored.number - 1
        learner = Learner(
            self.config, RoleContext(self.role_config).model[0], max_turns=self.role_config.max_turns
        )
        found = stored.weights
        if found:
            plain, tensors = checkpoints.load(stored.run / "checkpoints" / f"step_{found}")
            own_plain, own_tensors = learner.state()
            if learner.critic is not None and "critic" not in tensors:
                self.notes.append(
                    "the run had no critic, so advantages come from one that has learned nothing"
                )
            plain = {**own_plain, **plain} if self.unchanged else own_plain  # coefficients that adapt
            learner.restore(plain, {name: tensors.get(name, own) for name, own in own_tensors.items()})
        where = f"the checkpoint of step {found}" if found else "the weights that the run began with"
        exactly = "" if found == wanted else f", as those after step {wanted} are not kept"
        self.notes.append(f"computed from {where}{exactly}")
        return learner, found == wanted and stored.metrics.get("gap/abs_max") == 0.0


def _asks_a_model(config: schema.Config) -> bool:
    """Return True if advantages depend on more than the rewards."""
    grades = {"reference", "teacher", "process_reward", "sum_pi_squared"}
    asked = grades & needs.required(config.algorithm.adv_estimator)
    return bool(asked) or needs_role(config.algorithm, "critic") or config.algorithm.kl.where == "reward"


def _scores(config: schema.Config) -> dict[str, object]:
    return config.reward.model_dump(include=set(SCORES))


def _of_update(metrics: Row) -> dict[str, float]:
    """Keep finite numbers only, as in metrics.jsonl."""
    return {
        name: value
        for name, value in metrics.items()
        if name.startswith(OF_UPDATE) and isinstance(value, float) and math.isfinite(value)
    }
