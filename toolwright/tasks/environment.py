"""An environment: a world that an agent acts in. Text in, text out, a reward a step."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from toolwright.registry import Registry
from toolwright.trajectory import Task

Message = Mapping[str, Any]
ToolCall = tuple[str, dict[str, Any]]  # the name of a tool, and what it is called with


@dataclass(frozen=True)
class Observation:
    """The first thing shown. `anchor` names the state: equal for equal states; None: the text and images.

    `messages` are the whole opening, in place of the task's prompt and the text. `tools` are OpenAI schemas
    of what can be called: the run's call format describes them, and `step` gets the calls beside the text.
    """

    text: str
    anchor: str | None = None
    messages: Sequence[Message] = ()
    tools: Sequence[Mapping[str, Any]] = ()
    # Shown after the text, each in a form that a task's row may have: bytes, a data URL, a path, …
    images: Sequence[Any] = ()


@dataclass(frozen=True)
class Outcome:
    """The result of an action and the state after it. `info["success"]`: whether the goal is reached.

    `messages` are what the policy reads, in place of the text as the user's message. `answers` are results of
    the turn's calls, one for each in their order; an `InvalidAction` among them tells what is wrong with
    that call. The text comes after them if there is any.
    """

    text: str
    reward: float = 0.0
    done: bool = False
    anchor: str | None = None
    info: dict[str, Any] = field(default_factory=dict)
    messages: Sequence[Message] = ()
    images: Sequence[Any] = ()
    answers: Sequence[str | InvalidAction] = ()


class InvalidAction(Exception):
    """Raised by `step` for text that is no action. The policy reads the message; the state stays."""

    def __init__(self, message: str, *, reward: float = 0.0) -> None:
        super().__init__(message)
        self.reward = reward


class Environment(Protocol):
    """A world for one attempt, built from the task's settings in the process that makes the attempt.

    Its methods may be async. Plain methods run in a thread of the environment's own, so that one that hangs
    holds up nobody else. A class with `inline = True` promises quick methods, and needs no thread.

    Where `reset` offered tools, `step` has a second parameter: the turn's calls, none if it only spoke.

    A class with a method `close` is closed at the end of the attempt.

    A class may have a method `verdict() -> Outcome`, which judges the attempt once, whatever ended it. Its
    reward goes to the last step. Numbers in its `info` beside `success` are further measures.

    One with a method `use_policy(ask)` is given the policy before `reset`: `ask` takes messages and returns
    what the policy says to them, and is async where the class is `inline`. Nothing is learned from that.
    """

    def reset(self, task: Task) -> Observation | Awaitable[Observation]: ...

    def step(self, action: str) -> Outcome | Awaitable[Outcome]: ...


def answers_to(
    calls: Sequence[ToolCall], answer: Callable[[str, dict[str, Any]], str]
) -> list[str | InvalidAction]:
    """Answer the calls one after another. A call that raises `InvalidAction` does not stop the others."""
    answers: list[str | InvalidAction] = []
    for name, arguments in calls:
        try:
            answers.append(answer(name, arguments))
        except InvalidAction as error:
            answers.append(error)
    return answers


ENVIRONMENTS: Registry[Callable[..., Environment]] = Registry(
    "environment", "toolwright.tasks.builtin", plugins="toolwright.tasks.environment"
)
