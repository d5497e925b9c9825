"""The groups of one step: sampled, scored and selected. A group is complete, sampled again or dropped, but
never partial."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from toolwright.agents.attempt import seed_of
from toolwright.agents.rollout import AttemptRequest
from toolwright.algorithms import selection
from toolwright.algorithms.needs import rewards_to_go
from toolwright.config import schema
from toolwright.config.block import require_number
from toolwright.record import Array, TokenValues
from toolwright.runtime.roles import Roles
from toolwright.tasks.order import TaskOrder
from toolwright.trainer.replay import ReplayBuffer
from toolwright.trajectory import Group, Task, Trajectory, as_groups


@dataclass
class SampledStep:
    """The groups that a step learns from, and counts of the groups that were left out."""

    groups: list[Group] = field(default_factory=list)
    # What a greedy attempt had still to earn at each turn, by group.
    baselines: dict[str, list[float]] = field(default_factory=dict)
    attempts: list[Trajectory] = field(default_factory=list)  # all of them, for the run folder
    greedy: list[Trajectory] = field(default_factory=list)  # what the baselines are the scores of
    failed: int = 0
    dropped: int = 0  # groups left out because an attempt failed
    flat: int = 0  # groups left out because their attempts were all equally right
    replayed: int = 0  # groups of failures alone that an earlier success was put into
    rounds: int = 0
    score_s: float = 0.0  # after the last was sampled
    # What the learner computed for the sampled tokens of all `trajectories`, end to end.
    columns: dict[str, Array] = field(default_factory=dict)

    @property
    def trajectories(self) -> list[Trajectory]:
        return [t for group in self.groups for t in group.trajectories]

    @property
    def token_values(self) -> list[TokenValues]:
        """Return the values that the learner computed for each of `attempts`."""
        return TokenValues.of_attempts(self.attempts, self.columns, self.trajectories)

    @property
    def failures(self) -> list[str]:
        return [t.failure.message for t in [*self.attempts, *self.greedy] if t.failure is not None]


class GroupSelector:
    """Decides which scored groups are learned from, and how the length of attempts changes their scores.
    `turns`: the most turns of an attempt at a task. `greedy_baseline`: a group needs the score of a greedy
    attempt."""

    def __init__(
        self, config: schema.Config, *, turns: Callable[[Task], int], greedy_baseline: bool = False
    ) -> None:
        self.config, self.turns, self.greedy_baseline = config, turns, greedy_baseline
        self.replay = ReplayBuffer(
            config.algorithm.selection.replay, truncated=config.reward.truncated != "mask"
        )

    def keep(self, sampled: SampledStep, group: Group) -> None:
        """Add the group to those that the step learns from, or count why it is left out."""
        name = group.trajectories[0].group
        if not group.complete or (self.greedy_baseline and name not in sampled.baselines):
            sampled.dropped += 1
            return
        if self.config.reward.penalises:
            for trajectory in group.trajectories:
                self._shape(trajectory)
        chosen = self.config.algorithm.selection
        if chosen.oversample > 1 or chosen.replay:
            whole, right = group, [is_right(t) for t in group.trajectories]
            if chosen.oversample > 1:
                group = self._cleanest(group, right, name)
            if chosen.replay:
                if filled := self.replay.fill(group, right):
                    group, sampled.replayed = filled, sampled.replayed + 1
                self.replay.observe(whole, right)
        if chosen.dynamic_sampling and not self._has_signal(group):
            sampled.flat += 1
            return
        sampled.groups.append(group)

    def _has_signal(self, group: Group) -> bool:
        by_reward = self.config.algorithm.selection.dynamic_sampling == "reward"
        masked = self.config.reward.truncated == "mask" and all(t.cut for t in group.trajectories)
        return not masked and selection.has_signal(group.scores if by_reward else group.accuracies)

    def _shape(self, trajectory: Trajectory) -> None:
        """Apply DAPO's overlong penalty: the score falls as the answer nears the limit. An attempt that was
        cut gets the full penalty, even if a single turn was cut long before the limit."""
        reward = self.config.reward
        if trajectory.reward is None:
            return
        penalty, limit = -reward.overlong_penalty, self._most_tokens(trajectory)
        buffer = round(reward.overlong_buffer * limit)
        # A limit of a few tokens has no buffer: answers may be meant to fill it, unless it is said otherwise.
        if not trajectory.cut or not (buffer or reward.truncated == "penalise"):
            penalty = selection.overlong_penalty(
                trajectory.sampled_tokens, max_length=limit, buffer=buffer, penalty=reward.overlong_penalty
            )
        trajectory.reward_parts["overlong"] = penalty
        trajectory.reward += penalty

    def _most_tokens(self, trajectory: Trajectory) -> int:
        """Return the most tokens that this attempt could have sampled, by its turns and the room in its
        context."""
        rollout, context = self.config.rollout, require_number(self.config.model.context, "model.context")
        of_turns = require_number(rollout.max_tokens, "rollout.max_tokens") * self.turns(trajectory.task)
        in_all = min(context, rollout.max_total_tokens or context)
        if response := rollout.call_params.get("response_tokens"):
            in_all = min(in_all, trajectory.prompt_tokens + response)
        return min(of_turns, in_all - trajectory.given_tokens)

    def _cleanest(self, group: Group, right: Sequence[bool], name: str) -> Group:
        kept = selection.resample_on_correct(
            correct=right,
            faults=[_faults(t) for t in group.trajectories],
            keep=self.config.rollout.samples,
            rng=random.Random(seed_of(self.config.run.seed, name, "resample-on-correct")),
        )
        return Group(group.task, [group.trajectories[i] for i in kept])


class GroupSampler(GroupSelector):
    """Samples and scores groups, in rounds until the selector has kept enough of them."""

    def __init__(
        self,
        config: schema.Config,
        roles: Roles,
        tasks: Sequence[Task],
        order: TaskOrder,
        *,
        turns: Callable[[Task], int],
        greedy_baseline: bool,
    ) -> None:
        super().__init__(config, turns=turns, greedy_baseline=greedy_baseline)
        self.roles, self.tasks, self.order = roles, tasks, order
        self.per_task = config.rollout.samples * config.algorithm.selection.oversample

    def state(self) -> tuple[dict[str, Any], list[Trajectory]]:
        """Return the state that the next draw and the next group depend on."""
        return self.order.state(), self.replay.state()

    def restore(self, order: dict[str, Any], replay: Sequence[Trajectory]) -> None:
        self.order.restore(order)
        self.replay.restore(replay)

    async def step(self, step: int) -> SampledStep:
        """Sample the groups of one step. With dynamic sampling, continue in rounds until enough groups can
        teach."""
        chosen, prompts = self.config.algorithm.selection, self.config.rollout.prompts
        sampled = SampledStep()
        while len(sampled.groups) < prompts and sampled.rounds < (
            chosen.max_rounds if chosen.dynamic_sampling else 1
        ):
            picks = self.order.take(prompts)
            await self._round(sampled, step, picks)
            sampled.rounds += 1
        sampled.groups = sampled.groups[:prompts]
        return sampled

    async def _round(self, sampled: SampledStep, step: int, picks: Sequence[int]) -> None:
        requests, greedy = [], []
        for place, pick in enumerate(picks):
            task = self.tasks[pick]
            name = f"{step}.{sampled.rounds}.{place}"
            seed = seed_of(self.config.run.seed, name, task.id)
            requests += [AttemptRequest(task, name, i, seed_of(seed, i)) for i in range(self.per_task)]
            if self.greedy_baseline:
                greedy.append(AttemptRequest(task, name, self.per_task, seed))
        attempts, best, score_s = await self._scored(requests, greedy)
        sampled.score_s += score_s
        for trajectory in best:
            if trajectory.failure is None and trajectory.reward is not None:
                sampled.baselines[trajectory.group] = rewards_to_go(
                    trajectory, all_at_end=not self.config.algorithm.step_rewards
                )
        sampled.attempts += attempts
        sampled.greedy += best
        sampled.failed += sum(t.failure is not None for t in [*attempts, *best])
        for pick, group in zip(picks, as_groups(attempts), strict=True):
            if self.order.adapts and group.complete:
                self.order.record(pick, group.accuracies)
            self.keep(sampled, group)

    async def _scored(
        self, requests: Sequence[AttemptRequest], greedy: Sequence[AttemptRequest]
    ) -> tuple[list[Trajectory], list[Trajectory], float]:
        """Attempt both lists, and score each group while the next ones are sampled. Also returns the seconds
        that the last scores took after sampling. A score is of one group alone, so order does not matter."""
        roles = self.roles
        try:
            async with asyncio.TaskGroup() as scoring:

                def arrived(found: Sequence[Trajectory]) -> None:
                    scoring.create_task(roles.rewards.score(found))

                attempt = roles.rollouts.attempt
                attempts = await attempt(requests, arrived=arrived)
                best = await attempt(greedy, temperature=0.0, arrived=arrived) if greedy else []
                ended = time.perf_counter()
        except BaseExceptionGroup as several:  # what went wrong first has ended the rest
            raise several.exceptions[0] from None
        return attempts, best, time.perf_counter() - ended


def is_right(trajectory: Trajectory) -> bool:
    """Return True if the scorer's own `acc` says that an attempt is right. Format bonuses and length
    penalties do not change it. Without `acc`, any positive score counts as right."""
    accuracy = trajectory.accuracy or 0.0
    return accuracy >= 1.0 - 1e-6 if "acc" in trajectory.reward_parts else accuracy > 0


def _faults(trajectory: Trajectory) -> float:
    counts = trajectory.counts
    return selection.faults(
        tool_calls=int(counts.get("tool_calls", 0)),
        tool_errors=int(counts.get("tool_errors", 0)),
        format_faults=counts.get("format_faults", 0),
    )
