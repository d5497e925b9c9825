"""Roles that refuse whatever is not data: every call's arguments and results are walked, in every process."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import BaseModel

from toolwright.runtime.host import Rank
from toolwright.trainer.role_config import Colleagues, RoleConfig
from toolwright.trainer.staffing import staffed

PLAIN = (str, bytes, int, float, bool, type(None))
# By name: an actor that needs no torch is not to import it for those that need it.
NOUNS = {
    "toolwright.agents.rollout.AttemptRequest",
    "toolwright.runtime.host.Rank",
    "toolwright.runtime.tensors.PackedTensor",
    "toolwright.runtime.tensors.PublishedWeights",
    "toolwright.runtime.transport.TrajectoryTable",
    "toolwright.runtime.transport.AttemptSummary",
    "toolwright.trainer.role_config.RoleConfig",
    "toolwright.trajectory.Task",
}


def check(value: Any, where: str) -> None:
    """Configuration, trajectory, tensor or metric, all the way down."""
    if isinstance(value, PLAIN):
        return
    if isinstance(value, np.ndarray):
        if value.dtype == object:
            raise TypeError(f"{where}: an array of objects crossed")
    elif isinstance(value, BaseModel):
        check(value.model_dump(), where)
    elif _name(value) in NOUNS:
        for name, part in vars(value).items():
            check(part, f"{where}.{name}")
    elif isinstance(value, Mapping):
        for key, part in value.items():
            check(key, f"{where} key")
            check(part, f"{where}[{key!r}]")
    elif isinstance(value, list | tuple):
        for place, part in enumerate(value):
            check(part, f"{where}[{place}]")
    else:
        raise TypeError(f"{where}: a {_name(value)} crossed")


def _name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__name__}"


class Watched:
    def __init__(self, name: str, role: Any) -> None:
        self._name, self._role = name, role

    def __getattr__(self, method: str) -> Any:
        target = getattr(self._role, method)
        where = f"{self._name}.{method}"
        if inspect.iscoroutinefunction(target):

            async def later(*arguments: Any) -> Any:
                check(arguments, f"{where} argument")
                result = await target(*arguments)
                check(result, f"{where} result")
                return result

            return later

        def now(*arguments: Any) -> Any:
            check(arguments, f"{where} argument")
            result = target(*arguments)
            check(result, f"{where} result")
            return result

        return now


class Asked:
    """A colleague whose answers are walked where they arrive."""

    def __init__(self, name: str, colleague: Any) -> None:
        self._name, self._colleague = name, colleague

    def ask(self, method: str, *arguments: Any) -> Any:
        check(arguments, f"to {self._name}.{method}")
        result = self._colleague.ask(method, *arguments)
        check(result, f"from {self._name}.{method}")
        return result


def members(names: Sequence[str], brief: RoleConfig, colleagues: Colleagues, rank: Rank) -> dict[str, Any]:
    check([brief, rank], "brief")
    asked: Callable[[str], Any] = lambda name: Asked(name, colleagues(name))  # noqa: E731
    made = staffed(names, brief, asked, rank)
    return {name: Watched(name, role) for name, role in made.items()}
