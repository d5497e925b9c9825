"""Rewards of attempts: scorers by name or by path, alone or in a weighted sum."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from toolwright.failures import UserError
from toolwright.rewards.builder import OWN, SCORERS, ScorerBuilder
from toolwright.rewards.function import COLUMNS, Verdict
from toolwright.rewards.item import Item, of_attempt, of_task
from toolwright.rewards.part import RewardPart
from toolwright.trajectory import Failure, Task, Trajectory

if TYPE_CHECKING:
    from toolwright.config import schema

log = logging.getLogger(__name__)

MOST_LOGGED = 20  # reasons why attempts could not be scored


class Scorer:
    """Gives trajectories their rewards. Any thread and any event loop may call it."""

    def __init__(self, config: schema.Reward, *, default: str, sandbox_url: str | None = None) -> None:
        """`default` is the tasks' own scorer; `sandbox_url` the run's own server, if it has one."""
        self._weights = dict(config.parts)
        self._parts: list[RewardPart] = []
        self._logged: set[str] = set()  # reasons why attempts were not scored
        builder = ScorerBuilder(config, default=default, sandbox_url=sandbox_url)
        try:
            for name in config.parts or [config.function or OWN]:
                self._parts.append(builder.named(name) if config.parts else builder.part(name))
            builder.refuse_unused()
        except BaseException:
            self.close()
            raise

    def check(self, tasks: Iterable[Task]) -> None:
        """Raises UserError for a ground truth that a built-in scorer cannot use, or a column that a function
        takes and a task does not have, before the first attempt."""
        items = [of_task(task) for task in tasks]
        for part in self._parts:
            for item in items if part.columns else ():
                _must_have(item, part.columns)
            part.check(items)

    async def score(self, trajectories: Sequence[Trajectory]) -> None:
        """Sets `reward`, `reward_parts` and `step_rewards`, or `failure`. Skips attempts that have failed
        already."""
        judged = [t for t in trajectories if t.failure is None]
        if not judged:
            return
        items = [of_attempt(t) for t in judged]
        by_part = await asyncio.gather(*(part.score(items) for part in self._parts))
        by_attempt = zip(judged, zip(*by_part, strict=True), strict=True)
        verdicts = [self._weighted_sum([_checked(one, t) for one in of_one]) for t, of_one in by_attempt]
        for trajectory, verdict in zip(judged, verdicts, strict=True):
            if verdict.score is None:
                trajectory.failure = Failure(verdict.kind, verdict.message)
            else:
                trajectory.reward, trajectory.reward_parts = verdict.score, verdict.parts
                trajectory.step_rewards = verdict.step_rewards
        self._log(verdicts)

    def close(self) -> None:
        for part in self._parts:
            part.close()

    def _log(self, verdicts: Sequence[Verdict]) -> None:
        """Logs each reason once; the run counts attempts. An exception is known by where it was raised."""
        for message in (verdict.message for verdict in verdicts if verdict.score is None):
            place = message.rpartition("\n")[0] or message
            if place not in self._logged and len(self._logged) < MOST_LOGGED:
                self._logged.add(place)
                log.warning("an attempt could not be scored: %s", message)

    def _weighted_sum(self, verdicts: Sequence[Verdict]) -> Verdict:
        """Σ weight · score, in all and by turn. Records the score of each part. If a part failed, there is
        no score."""
        if not self._weights:
            return verdicts[0]
        failed = [verdict for verdict in verdicts if verdict.score is None]
        if failed:
            lost = [verdict for verdict in failed if verdict.kind == "infrastructure"]
            return (lost or failed)[0]
        right = next(
            (
                verdict.parts.get("acc", verdict.score)
                for verdict, part in zip(verdicts, self._parts, strict=True)
                if not part.only_if_right and (part.reads_truth or "acc" in verdict.parts)
            ),
            None,
        )
        total, parts = 0.0, {}
        for (name, weight), verdict, part in zip(self._weights.items(), verdicts, self._parts, strict=True):
            counts = not part.only_if_right or (right or 0.0) >= 1.0 - 1e-6
            parts[name] = (verdict.score or 0.0) if counts else 0.0
            total += weight * parts[name]
            parts |= {f"{name}/{key}": value for key, value in verdict.parts.items() if key != "acc"}
        by_part = [
            [weight * reward for reward in verdict.step_rewards]
            for weight, verdict in zip(self._weights.values(), verdicts, strict=True)
            if verdict.step_rewards
        ]
        steps = [sum(of_one) for of_one in zip(*by_part, strict=True)]
        return Verdict(total, parts if right is None else {**parts, "acc": right}, steps)


def _must_have(item: Item, columns: Sequence[str]) -> None:
    for name in columns:
        if name not in item["extra_info"]:
            raise UserError(
                f"task {item['id']}: the reward function takes `{name}`, which the task does not have; it "
                f"has {', '.join([*COLUMNS, *item['extra_info']])}. Further columns of a file belong "
                "into its object `extra_info`; the right answer is `ground_truth`"
            )


def _checked(verdict: Verdict, trajectory: Trajectory) -> Verdict:
    """The verdict, or the reason why it is none: of step rewards there is one a turn."""
    given, turns = len(verdict.step_rewards), trajectory.turns
    if given in (0, turns):
        return verdict
    return Verdict(message=f"a scorer returned {given} step_rewards for an attempt of {turns} turns")
