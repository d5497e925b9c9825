"""Builds the parts of a reward from its configuration, and knows the models that they hold."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from toolwright.failures import UserError, nearest
from toolwright.registry import Registry, check_settings, is_held, load_object, signature_of
from toolwright.rewards.function import ScoringFunction
from toolwright.rewards.part import DirectCall, InProcesses, InThisProcess, OverNetwork, RewardPart
from toolwright.rewards.process import FunctionProcess

if TYPE_CHECKING:
    from toolwright.config import schema

# A scorer is registered under its own name and under the data sources that it serves. It is a function of
# either form, a RemoteScorer class, or a RewardPart class; or, with the need `process`, a class that is made
# once in a process of its own, with a model say, and called with attempts. A function may need
#   process: a process that can be killed, because it may hang;
#   final:   only the policy's last turn as `solution_str`, without earlier turns and answers of tools;
#   right:   to be a part of a sum, and to count only where another part says that the answer is right;
# any other word is a module that its process imports before the first score is timed.
SCORERS: Registry[Callable[..., Any]] = Registry("scorer", "toolwright.rewards.builtin")

BEGINNINGS = {"aime": "math_dapo", "numina_": "math"}
OWN = "task"  # in reward.parts: the task's own scorer
MOST_WORKERS = 8


def scorer_for(source: str) -> str:
    """The scorer of a data source: its own; or its family's, as of reasoning_gym/chain_sum, or of what verl
    knows by how a name begins."""
    known, family = SCORERS.names(), source.partition("/")[0]
    if source in known:
        return source
    begins = next((scorer for start, scorer in BEGINNINGS.items() if source.startswith(start)), source)
    return family if family in known else begins


class ScorerBuilder:
    def __init__(self, config: schema.Reward, *, default: str, sandbox_url: str | None = None) -> None:
        self.config, self.default = config, default
        self.sandbox_url = config.sandbox_url or sandbox_url
        self.unused = set(config.params)

    def named(self, name: str) -> RewardPart:
        """A part of a sum, by the name of its scorer, or by any name if its settings have a `function`."""
        function = self.config.params.get(name, {}).get("function")
        return self.part(name) if function is None else self.part(function, called=name)

    def own(self) -> RewardPart:
        """The part for the tasks' own scorer."""
        known, found = SCORERS.names(), scorer_for(self.default)
        if found not in known and ":" not in found:
            source = (
                f"their data_source {self.default!r} has none" if self.default else "they name no data_source"
            )
            raise UserError(
                f"no scorer is known for these tasks: {source}; set reward.function to path.py:name, "
                f"package.module:name or one of {', '.join(known)}"
            )
        return self.part(found)

    def part(self, name: str, called: str = "") -> RewardPart:
        """Builds a part. `called` is its name in the configuration, if that is not the scorer's."""
        if name == OWN:
            return self.own()
        if ":" in name:
            settings = self._settings(called or name.rpartition(":")[2])
            if is_held(name):
                function = ScoringFunction(name.rpartition(":")[2], load_object(name), settings)
                return InThisProcess(function, limit_s=self.config.timeout_s)
            # Start one process, unless `reward.workers` says more: a user's function may hold a model.
            return self._in_processes(name, settings=settings)
        entry = SCORERS.get(name)
        target = entry.target
        if isinstance(target, type) and issubclass(target, RewardPart):
            built: RewardPart = entry.target(self)  # it builds parts itself, one a data source
            return built
        canonical = target.__name__.lower() if isinstance(target, type) else target.__name__
        settings = self._settings(called) if called else self._settings(canonical, name)
        part: RewardPart
        if isinstance(target, type) and "process" in entry.needs:
            part = self._model(target, called or name, settings)
        elif isinstance(target, type):
            run_settings = entry.accepted(limit_s=self.config.timeout_s, sandbox_url=self.sandbox_url)
            checked = check_settings(
                f"scorer {canonical!r}",
                signature_of(target).parameters.values(),
                settings,
                prefix=f"reward.params.{canonical}.",
                reserved=run_settings,
            )
            part = OverNetwork(canonical, target(**run_settings, **checked))
        elif "process" in entry.needs:
            imports = sorted(entry.needs - {"process", "final", "right"})
            reference = f"{target.__module__}:{target.__qualname__}"
            cores = min(len(os.sched_getaffinity(0)), MOST_WORKERS)
            process = {"name": canonical, "settings": settings, "imports": imports}
            part = self._in_processes(reference, workers=cores, tries_truths=True, **process)
        else:
            part = DirectCall(ScoringFunction(canonical, target, settings))
        part.last_turn_only, part.only_if_right = "final" in entry.needs, "right" in entry.needs
        if part.only_if_right and not self.config.parts:
            raise UserError(
                f"scorer {canonical!r} does not say whether an answer is right; set reward.parts={{task: 1, "
                f"{canonical}: 0.1}} in place of reward.function"
            )
        return part

    def refuse_unused(self) -> None:
        """Raises UserError for settings of a scorer that the run does not have."""
        if self.unused:
            key = sorted(self.unused)[0]
            used = set(self.config.params) - self.unused
            hint = nearest(key, used | set(SCORERS.names()))
            raise UserError(f"reward.params.{key} does not belong to a scorer of this run; {hint}")

    def _settings(self, *names: str) -> dict[str, Any]:
        """Settings under the scorer's own name, and under the data source that it was found by."""
        self.unused -= set(names)
        blocks = [self.config.params.get(name, {}) for name in names]
        return {key: value for one in blocks for key, value in one.items() if key != "function"}

    def _model(self, target: type, name: str, settings: dict[str, Any]) -> InProcesses:
        """One process, unless `reward.workers` says more: each of them holds the model."""
        checked = check_settings(
            f"scorer {name!r}",
            [*signature_of(target).parameters.values(), *signature_of(ModelPlace).parameters.values()],
            settings,
            prefix=f"reward.params.{name}.",
        )
        own = [one.name for one in fields(ModelPlace) if one.name in checked]
        place = ModelPlace(**{name: checked.pop(name) for name in own})
        reference = f"{target.__module__}:{target.__qualname__}"
        return self._in_processes(reference, name=name, settings=checked, start_limit_s=place.start_timeout_s)

    def _in_processes(
        self, reference: str, *, workers: int = 1, tries_truths: bool = False, **process: Any
    ) -> InProcesses:
        """`process`: further arguments of each `FunctionProcess`."""
        new = partial(FunctionProcess, reference, limit_s=self.config.timeout_s, **process)
        return InProcesses(new, workers=self.config.workers or workers, tries_truths=tries_truths)


@dataclass(frozen=True)
class ModelPlace:
    """Settings of every scorer that holds a model, beside its own."""

    start_timeout_s: Annotated[float, Field(gt=0)] = 600.0  # the longest it may take to load
    gpus: Annotated[float, Field(ge=0)] | None = None  # `ray`: what its actor reserves; null: the policy's


def models_of(reward: schema.Reward) -> dict[str, dict[str, Any]]:
    """The settings of each scorer of this reward that holds a model, by its name in the configuration."""
    found = {}
    for name in reward.parts or [reward.function or OWN]:
        function = reward.params.get(name, {}).get("function", name) if reward.parts else name
        if function == OWN or ":" in function:
            continue
        entry = SCORERS.get(function)
        if isinstance(entry.target, type) and "process" in entry.needs:
            found[name] = reward.params.get(name, {})
    return found


def reserved_gpus(reward: schema.Reward) -> float | None:
    """GPUs to reserve for the reward's actor; None: by what the cluster has. Without a model: 0."""
    settings = list(models_of(reward).values())
    asked = [one["gpus"] for one in settings if one.get("gpus") is not None]
    if settings and not asked:
        return None
    return float(sum(asked))
