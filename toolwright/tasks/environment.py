"""An environment: a world that an agent acts in. Text in, text out, a reward a step."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from toolwright.registry import Registry
from toolwright.trajectory import Task


@dataclass(frozen=True)
class Observation:
    """What is shown first. `anchor` names the state: equal exactly where states are; None: the text."""

    text: str
    anchor: str | None = None


@dataclass(frozen=True)
class Outcome:
    """What came of an action, and the state it led to. `info["success"]`: whether the goal is met."""

    text: str
    reward: float = 0.0
    done: bool = False
    anchor: str | None = None
    info: dict[str, Any] = field(default_factory=dict)


class InvalidAction(Exception):
    """Raised by `step` for what is no action here; told to the policy, counted, and nothing has changed."""

    def __init__(self, message: str, *, reward: float = 0.0) -> None:
        super().__init__(message)
        self.reward = reward


class Environment(Protocol):
    """Built from a task's settings for one attempt, where that runs. Its methods may be async.

    Plain methods run in a thread of the environment's own, so that one that hangs holds up nobody. A class
    that says `inline = True` vouches for them to be quick, and saves the way there and back.
    """

    def reset(self, task: Task) -> Observation | Awaitable[Observation]: ...

    def step(self, action: str) -> Outcome | Awaitable[Outcome]: ...

    def close(self) -> Awaitable[None] | None: ...


ENVIRONMENTS: Registry[Callable[..., Environment]] = Registry(
    "environment", "toolwright.tasks.builtin", plugins="toolwright.tasks.environment"
)
