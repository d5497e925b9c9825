"""What an attempt is worth: scorers by name in this process, a user's own function where it can be killed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from toolwright.failures import TaskFailure, UserError
from toolwright.registry import Registry
from toolwright.rewards.function import Item, ScoringFunction, Verdict
from toolwright.rewards.process import FunctionProcess
from toolwright.trajectory import Failure, Task, Trajectory

if TYPE_CHECKING:
    from toolwright.config import schema

log = logging.getLogger(__name__)

# Each scorer is registered under its own name and under the data sources that it serves.
SCORERS: Registry[Callable[..., Any]] = Registry("scorer", "toolwright.rewards.builtin")


class Scorer:
    """Gives trajectories their rewards. Built-in scorers are pure and quick, so they run right here."""

    def __init__(self, config: schema.Reward, *, default: str) -> None:
        name = config.function or default
        self._function: ScoringFunction | FunctionProcess
        if ":" in name:
            self._function = FunctionProcess(name, limit_s=config.timeout_s)
            return
        known = SCORERS.names()
        if config.function is None and name not in known:
            source = f"their data_source {name!r} has none" if name else "they name no data_source"
            raise UserError(
                f"no scorer is known for these tasks: {source}; set reward.function to path.py:name, "
                f"package.module:name or one of {', '.join(known)}"
            )
        self._function = ScoringFunction(name, SCORERS.get(name).target)

    def check(self, tasks: Iterable[Task]) -> None:
        """A ground truth that a built-in scorer cannot use is an error before the first attempt."""
        if isinstance(self._function, FunctionProcess):
            return  # only its author knows what it takes
        for task in tasks:
            try:
                self._function.dry_run(_item(Trajectory(task, group="")))
            except (UserError, TaskFailure) as error:
                raise UserError(f"task {task.id}: {error}") from None

    async def score(self, trajectories: Sequence[Trajectory]) -> None:
        """Sets `reward` and `reward_parts`, or `failure`; attempts that failed already are left alone."""
        judged = [t for t in trajectories if t.failure is None]
        if not judged:
            return
        items = [_item(t) for t in judged]
        if isinstance(self._function, FunctionProcess):
            for item in items:
                del item["trajectory"]  # only plain data leaves this process
            verdicts = await asyncio.to_thread(self._function.judge, items)
        else:
            verdicts = self._function.judge(items)
        for trajectory, verdict in zip(judged, verdicts, strict=True):
            if verdict.score is None:
                trajectory.failure = Failure(verdict.kind, verdict.message)
            else:
                trajectory.reward, trajectory.reward_parts = verdict.score, verdict.parts
        _report(verdicts)

    def close(self) -> None:
        if isinstance(self._function, FunctionProcess):
            self._function.close()


def _item(trajectory: Trajectory) -> Item:
    task = trajectory.task
    return {
        "data_source": task.data_source,
        "solution_str": trajectory.response,
        "ground_truth": task.ground_truth,
        "extra_info": task.extra_info,
        "prompt": task.prompt,
        "trajectory": trajectory,
    }


def _report(verdicts: Sequence[Verdict]) -> None:
    failed = [verdict for verdict in verdicts if verdict.score is None]
    if failed:
        log.warning(
            "%d of %d attempts could not be scored; the first: %s",
            len(failed),
            len(verdicts),
            failed[0].message,
        )
