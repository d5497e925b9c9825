"""An environment played turn by turn: see, act, see what came of it, until it is over."""

from __future__ import annotations

import re
from typing import Any

from toolwright.agents import registry
from toolwright.agents.attempt import Attempt, AttemptEnded
from toolwright.agents.formats.thinking import spoken
from toolwright.config import schema
from toolwright.failures import UserError
from toolwright.images import content_with, name_of
from toolwright.tasks import InvalidAction, Observation, Outcome
from toolwright.tasks.environment_host import MOST_TEXT, EnvironmentHost, checked
from toolwright.trajectory import Segment, Task

OURS = ("action_tag", "invalid_penalty")  # settings of a task's environment that the loop reads itself


@registry.register("environment")
class EnvironmentLoop:
    """The whole history stays in view. A step has its own reward, and the state it was taken in as anchor."""

    def __init__(self, config: schema.RolloutConfig) -> None:
        self.config = config

    def check(self, task: Task) -> None:
        """A UserError for a task without an environment, or with one that cannot be built as it is set."""
        settings = settings_of(task)
        for name in OURS:
            settings.pop(name, None)
        checked(settings)

    async def attempt(self, attempt: Attempt) -> None:
        settings = settings_of(attempt.task)
        tag, penalty = settings.pop("action_tag", None), float(settings.pop("invalid_penalty", 0.0))
        host = EnvironmentHost(settings, limit_s=self.config.environment_timeout_s)
        attempt.count("success", 0)
        try:
            await self._play(attempt, host, tag, penalty)
        finally:
            await host.close()

    async def _play(self, attempt: Attempt, host: EnvironmentHost, tag: str | None, penalty: float) -> None:
        with attempt.waiting(f"environment {host.name}"):
            seen = await host.reset(attempt.task)
        shown = content_with(seen.text, seen.images)
        attempt.prompt([*attempt.task.prompt, {"role": "user", "content": shown}])
        anchor = _anchor(seen)
        while True:
            step = await attempt.act(anchor=anchor)
            outcome = await self._step(attempt, host, tag, penalty, step)
            step.reward = float(outcome.reward)
            if outcome.done or attempt.turns >= attempt.max_turns:
                attempt.count("success", bool(outcome.done and outcome.info.get("success")))
                _last_words(attempt, outcome)
                return attempt.finish("done" if outcome.done else "turns")
            try:
                shown = content_with(outcome.text, outcome.images)
                attempt.reply([{"role": "user", "content": shown}], source="environment")
            except AttemptEnded:
                _last_words(attempt, outcome)
                raise
            anchor = _anchor(outcome)

    async def _step(
        self, attempt: Attempt, host: EnvironmentHost, tag: str | None, penalty: float, step: Segment
    ) -> Outcome:
        """An action that cannot be read, or is none here, is told and counted, and costs the `penalty`; the
        state is what it was."""
        try:
            action = read_action(step.text, tag)
            with attempt.waiting(f"environment {host.name}"):
                return await host.step(action)
        except InvalidAction as error:
            attempt.count("format_faults")
            return Outcome(str(error)[:MOST_TEXT], error.reward - penalty, anchor=step.anchor)


def _anchor(shown: Observation | Outcome) -> str:
    """The name of the state: its own, or what is shown of it."""
    return " ".join([shown.text, *map(name_of, shown.images)]) if shown.anchor is None else shown.anchor


def _last_words(attempt: Attempt, outcome: Outcome) -> None:
    """Keep the last observation for readers. Nobody acts on it, so it costs no tokens."""
    attempt.trajectory.append(Segment("environment", [], text=outcome.text))


def settings_of(task: Task) -> dict[str, Any]:
    settings = task.extra_info.get("environment")
    if not isinstance(settings, dict) or "name" not in settings:
        raise UserError(
            f"task {task.id} names no environment: rollout.agent=environment reads it from "
            'extra_info["environment"], such as {"name": "gridworld", "level": …}'
        )
    return dict(settings)


def read_action(text: str, tag: str | None) -> str:
    """What stands in the last pair of tags, or all that was said; what was only thought does not count."""
    said, _ = spoken(text)
    if tag is None:
        return said.strip()
    name = re.escape(tag)
    found = re.findall(rf"<{name}>((?:(?!<{name}>).)*?)</{name}>", said, re.DOTALL)
    if not found:
        raise InvalidAction(f"Write your action as <{tag}>…</{tag}>.")
    return str(found[-1]).strip()
