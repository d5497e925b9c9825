"""The parts of a reward, made from its configuration."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from toolwright.failures import UserError, nearest
from toolwright.registry import Registry, is_held, load_object
from toolwright.rewards.function import ScoringFunction, Verdict
from toolwright.rewards.in_this_process import InThisProcess
from toolwright.rewards.item import Item, final_turn
from toolwright.rewards.part import Here, InProcesses, OverNetwork, RewardPart
from toolwright.rewards.pool import ProcessPool
from toolwright.rewards.settings import checked

if TYPE_CHECKING:
    from toolwright.config import schema

# Each scorer is registered under its own name and under the data sources that it serves: a function of either
# form, a RemoteScorer class, or a Part class. A function may need
#   process: to run where it can be killed, because it may hang;
#   final:   the policy's last turn alone as `solution_str`, without earlier turns and what tools answered;
# any other word is a module that its process imports before the clock of the first score runs.
SCORERS: Registry[Callable[..., Any]] = Registry("scorer", "toolwright.rewards.builtin")

OWN = "task"  # in reward.parts: the task's own scorer
MOST_WORKERS = 8


class ScorerBuilder:
    def __init__(self, config: schema.Reward, *, default: str, sandbox_url: str | None = None) -> None:
        self.config, self.default = config, default
        self.sandbox_url = config.sandbox_url or sandbox_url
        self.unused = set(config.params)

    def named(self, name: str) -> RewardPart:
        """A part of a sum: by its scorer's name, or by its own where the settings name the function."""
        function = self.config.params.get(name, {}).get("function")
        return self.part(name) if function is None else self.part(function, called=name)

    def own(self) -> RewardPart:
        """The part for the scorer that the tasks name themselves."""
        known = SCORERS.names()
        if self.default not in known and ":" not in self.default:
            source = (
                f"their data_source {self.default!r} has none" if self.default else "they name no data_source"
            )
            raise UserError(
                f"no scorer is known for these tasks: {source}; set reward.function to path.py:name, "
                f"package.module:name or one of {', '.join(known)}"
            )
        return self.part(self.default)

    def part(self, name: str, called: str = "") -> RewardPart:
        """`called`: the name in the configuration, where it is not the scorer's."""
        if name == OWN:
            return self.own()
        if ":" in name:
            settings = self._settings(called or name.rpartition(":")[2])
            if is_held(name):
                function = ScoringFunction(name.rpartition(":")[2], load_object(name), settings)
                return InThisProcess(function, limit_s=self.config.timeout_s)
            workers = self.config.workers or 1  # a user's function may hold a model, or a place in a queue
            pool = ProcessPool(name, limit_s=self.config.timeout_s, workers=workers, settings=settings)
            return InProcesses(pool, users_own=True)
        entry = SCORERS.get(name)
        target = entry.target
        if isinstance(target, type) and issubclass(target, RewardPart):
            return target.of(self)
        canonical = target.__name__.lower() if isinstance(target, type) else target.__name__
        settings = self._settings(called) if called else self._settings(canonical, name)
        part: RewardPart
        if isinstance(target, type):
            given = entry.accepted(limit_s=self.config.timeout_s, sandbox_url=self.sandbox_url)
            part = OverNetwork(
                canonical, target(**given, **checked(canonical, target, settings, reserved=given))
            )
        elif "process" in entry.needs:
            imports = sorted(entry.needs - {"process", "final"})
            part = InProcesses(self._pool(target, canonical, settings, imports), users_own=False)
        else:
            part = Here(ScoringFunction(canonical, target, settings))
        return Final(part) if "final" in entry.needs else part

    def refuse_unused(self) -> None:
        """Settings of a scorer that is not there are a mistake."""
        if self.unused:
            key = sorted(self.unused)[0]
            used = set(self.config.params) - self.unused
            hint = nearest(key, used | set(SCORERS.names()))
            raise UserError(f"reward.params.{key} is for no scorer of this run; {hint}")

    def _settings(self, *names: str) -> dict[str, Any]:
        """Those under the scorer's own name, and under the data source's that it was found by."""
        self.unused -= set(names)
        given = [self.config.params.get(name, {}) for name in names]
        return {key: value for one in given for key, value in one.items() if key != "function"}

    def _pool(
        self, target: Callable[..., Any], name: str, settings: dict[str, Any], imports: list[str]
    ) -> ProcessPool:
        return ProcessPool(
            f"{target.__module__}:{target.__qualname__}",
            limit_s=self.config.timeout_s,
            workers=self.config.workers or min(len(os.sched_getaffinity(0)), MOST_WORKERS),
            name=name,
            settings=settings,
            imports=imports,
        )


class Final(RewardPart):
    """A part that is shown the policy's last turn alone: what a tool printed is not the policy's answer."""

    def __init__(self, part: RewardPart) -> None:
        self._part = part
        self.reads_truth = part.reads_truth

    def check(self, items: Sequence[Item]) -> None:
        self._part.check(items)

    async def judge(self, items: Sequence[Item]) -> list[Verdict]:
        return await self._part.judge([final_turn(item) for item in items])

    def close(self) -> None:
        self._part.close()
