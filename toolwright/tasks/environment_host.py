"""Runs the environment of an attempt: builds it, limits the time of each call, and sorts its failures."""

from __future__ import annotations

import asyncio
import inspect
import logging
import traceback
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from toolwright.failures import InfrastructureFailure, TaskFailure, UserError
from toolwright.images import PART, parts_of
from toolwright.registry import check_settings
from toolwright.tasks.environment import (
    ENVIRONMENTS,
    Environment,
    InvalidAction,
    Message,
    Observation,
    Outcome,
    ToolCall,
)
from toolwright.tasks.worker_thread import WorkerThread
from toolwright.trajectory import Task, finite_number

T = TypeVar("T", Observation, Outcome)
AskPolicy = Callable[[Sequence[Message]], Coroutine[Any, Any, str]]
MOST_TEXT = 1 << 20  # characters that an environment may show at once; no policy reads as many
log = logging.getLogger(__name__)


class EnvironmentHost:
    """Runs the environment of one attempt. `settings`: its `name` and the arguments that it is built with.

    `success_reward`: rewards of this sum are a success, whatever the environment says; None: the class's own
    attribute of that name, if it has one.
    """

    def __init__(
        self, settings: dict[str, Any], *, limit_s: float, success_reward: float | None = None
    ) -> None:
        self.name, self._limit_s = str(settings["name"]), limit_s
        self._build, self._settings = checked(settings)
        own = getattr(self._build, "success_reward", None)
        self._success_reward, self._total = own if success_reward is None else success_reward, 0.0
        inline = getattr(self._build, "inline", False)
        self._thread = None if inline else WorkerThread(f"environment {self.name}")
        self._environment: Environment | None = None
        self._hung = False

    async def reset(self, task: Task, ask: AskPolicy | None = None) -> Observation:
        """`ask` is the policy, for an environment that asks it itself."""
        self._environment = await self._call("to be built", lambda: self._build(**self._settings))
        if ask is not None and hasattr(self._environment, "use_policy"):
            self._environment.use_policy(ask if self._thread is None else _blocking(ask))
        found = await self._call("reset", self._environment.reset, task)
        return self._typed(found, Observation, "reset")

    async def step(self, action: str, calls: Sequence[ToolCall] | None = None) -> Outcome:
        """`calls`: those of the turn, where `reset` offered tools."""
        if calls is None:
            return await self._outcome("step", action)
        outcome = await self._outcome("step", action, calls)
        if len(outcome.answers) not in (0, len(calls)):
            raise TaskFailure(
                f"environment {self.name!r}: step was given {len(calls)} calls and returned "
                f"{len(outcome.answers)} answers; give one for each, or none and a text"
            )
        answers = [one[:MOST_TEXT] if isinstance(one, str) else one for one in outcome.answers]
        wrong = [one for one in answers if not isinstance(one, str | InvalidAction)]
        if wrong:
            raise TaskFailure(
                f"environment {self.name!r}: an answer must be a text, found {_shown(wrong[0])}"
            )
        return replace(outcome, answers=answers)

    @property
    def judges(self) -> bool:
        """True if the environment judges the attempt at its end, whatever ended it."""
        return callable(getattr(self._environment, "verdict", None))

    async def verdict(self) -> Outcome:
        return await self._outcome("verdict")

    async def _outcome(self, what: str, *args: Any) -> Outcome:
        assert self._environment is not None, "reset comes first"
        outcome = self._typed(await self._call(what, getattr(self._environment, what), *args), Outcome, what)
        reward = finite_number(outcome.reward)
        if reward is None:
            raise TaskFailure(
                f"environment {self.name!r} gave the reward {outcome.reward!r}, which is not a finite number"
            )
        self._total += reward
        info = outcome.info
        if self._success_reward is not None:
            info = {**info, "success": self._total >= self._success_reward}
        return replace(outcome, reward=reward, info=info)

    async def close(self) -> None:
        """Close the environment. An error here comes too late to matter to the attempt."""
        try:
            close = getattr(self._environment, "close", None)
            if close is not None and not self._hung:
                await self._call("close", close)
        except Exception as error:
            log.warning("%s", error)
        finally:
            if self._thread is not None:
                self._thread.end()

    async def _call(self, what: str, method: Callable[..., Any], *args: Any) -> Any:
        try:
            async with asyncio.timeout(self._limit_s) as limit:
                if self._thread is None or inspect.iscoroutinefunction(method):
                    answer = method(*args)
                else:
                    answer = await self._thread.run(method, *args)
                return await answer if inspect.isawaitable(answer) else answer
        except (InvalidAction, TaskFailure, InfrastructureFailure, UserError):
            raise
        except (Exception, SystemExit) as error:
            if limit.expired():
                self._hung = True
                raise TaskFailure(
                    f"environment {self.name!r} did not answer {what} within "
                    f"rollout.environment_timeout_s={self._limit_s:g}"
                ) from None
            tail = "".join(traceback.format_exception(error, limit=-4)).strip()
            raise TaskFailure(f"environment {self.name!r} raised an error in {what}:\n{tail}") from error

    def _typed(self, found: Any, kind: type[T], what: str) -> T:
        """Check the type of an answer and read its images."""
        if not isinstance(found, kind) or not isinstance(getattr(found, "text", None), str):
            raise TaskFailure(
                f"environment {self.name!r}: {what} must return a toolwright.tasks.{kind.__name__} "
                f"with a text, found {_shown(found)}"
            )
        if not all(isinstance(one.get("content"), str) for one in getattr(found, "messages", ())):
            raise TaskFailure(f"environment {self.name!r}: {what} wrote a message whose content is not text")
        for name in ("text", "anchor"):
            length = len(getattr(found, name) or "")
            if length > MOST_TEXT:
                raise TaskFailure(
                    f"environment {self.name!r}: {what} returned {length:,} characters of {name}; at most "
                    f"{MOST_TEXT:,} are allowed"
                )
        return replace(found, images=self._images(found.images, what)) if found.images else found

    def _images(self, found: Any, what: str) -> list[str]:
        try:
            parts = parts_of(
                [{"type": PART, PART: one} for one in found], f"environment {self.name!r}: {what}"
            )
        except UserError as error:
            raise TaskFailure(str(error)) from None
        return [part[PART] for part in parts]


def _blocking(ask: AskPolicy) -> Callable[[Sequence[Message]], str]:
    """The policy for plain methods, which wait for it in the environment's own thread."""
    loop = asyncio.get_running_loop()
    return lambda messages: asyncio.run_coroutine_threadsafe(ask(messages), loop).result()


def _shown(value: Any) -> str:
    """A short form of any value for an error message."""
    return f"{type(value).__name__} {value[:80]!r}" if isinstance(value, str | bytes) else f"{value!r:.100}"


def checked(settings: Mapping[str, Any]) -> tuple[Callable[..., Environment], dict[str, Any]]:
    """Return what builds the environment, and its arguments; a `UserError` if the two do not fit."""
    name, own = str(settings["name"]), {key: value for key, value in settings.items() if key != "name"}
    build = ENVIRONMENTS.get(name).target
    # By name alone: this happens once an attempt, and a check of types takes a millisecond.
    parameters = [p.replace(annotation=p.empty) for p in inspect.signature(build).parameters.values()]
    return build, check_settings(f"environment {name!r}", parameters, own, prefix="")
