"""An environment: a world that an agent acts in. Text in, text out, a reward a step."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from toolwright.registry import Registry
from toolwright.trajectory import Task


@dataclass(frozen=True)
class Observation:
    """The first thing shown. `anchor` names the state: equal for equal states; None: the text and images."""

    text: str
    anchor: str | None = None
    # Shown after the text, each in a form that a task's row may have: bytes, a data URL, a path, …
    images: Sequence[Any] = ()


@dataclass(frozen=True)
class Outcome:
    """The result of an action and the state after it. `info["success"]`: whether the goal is reached."""

    text: str
    reward: float = 0.0
    done: bool = False
    anchor: str | None = None
    info: dict[str, Any] = field(default_factory=dict)
    images: Sequence[Any] = ()


class InvalidAction(Exception):
    """Raised by `step` for text that is no action. The policy reads the message; the state stays."""

    def __init__(self, message: str, *, reward: float = 0.0) -> None:
        super().__init__(message)
        self.reward = reward


class Environment(Protocol):
    """A world for one attempt, built from the task's settings in the process that makes the attempt.

    Its methods may be async. Plain methods run in a thread of the environment's own, so that one that hangs
    holds up nobody else. A class with `inline = True` promises quick methods, and needs no thread.
    """

    def reset(self, task: Task) -> Observation | Awaitable[Observation]: ...

    def step(self, action: str) -> Outcome | Awaitable[Outcome]: ...

    def close(self) -> Awaitable[None] | None: ...


ENVIRONMENTS: Registry[Callable[..., Environment]] = Registry(
    "environment", "toolwright.tasks.builtin", plugins="toolwright.tasks.environment"
)
