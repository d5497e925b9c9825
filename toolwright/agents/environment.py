"""An environment played turn by turn: see, act, see what came of it, until it is over."""

from __future__ import annotations

import re
from typing import Any

from toolwright.agents import formats, registry
from toolwright.agents.attempt import Attempt, AttemptEnded
from toolwright.agents.call_settings import of_format
from toolwright.agents.formats import Offered
from toolwright.agents.formats.thinking import spoken
from toolwright.agents.tool_prompt import with_tools
from toolwright.config import schema
from toolwright.failures import UserError
from toolwright.images import content_with, name_of
from toolwright.models.tokenizer import Tokenizer
from toolwright.tasks import InvalidAction, Observation, Outcome
from toolwright.tasks.environment_host import MOST_TEXT, Call, EnvironmentHost, checked
from toolwright.tools.call import Malformed
from toolwright.trajectory import Segment, Task

OURS = ("action_tag", "invalid_penalty")  # settings of a task's environment that the loop reads itself


@registry.register("environment")
class EnvironmentLoop:
    """The whole history stays in view. A step has its own reward, and the state it was taken in as anchor."""

    def __init__(self, config: schema.RolloutConfig, tokenizer: Tokenizer) -> None:
        self.config, self.tokenizer = config, tokenizer
        self.format = formats.build(config.call_format, of_format(config.call_params), tokenizer)

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
        shown = {"role": "user", "content": content_with(seen.text, seen.images)}
        opening = seen.messages or [*attempt.task.prompt, shown]
        prompt = with_tools(opening, seen.tools, self.format, self.tokenizer, self.config.tool_prompt)
        attempt.prompt(prompt.messages, tools=prompt.tools)
        offered = formats.offered_by(seen.tools)
        stop = (*self.config.stop, *self.format.stop(offered)) if offered else None
        anchor = _anchor(seen)
        while True:
            step = await attempt.act(anchor=anchor, stop=stop)
            outcome = await self._step(attempt, host, tag, penalty, step, offered)
            step.reward = float(outcome.reward)
            if outcome.done or attempt.turns >= attempt.max_turns:
                attempt.count("success", bool(outcome.done and outcome.info.get("success")))
                _last_words(attempt, outcome)
                return attempt.finish("done" if outcome.done else "turns")
            try:
                shown = {"role": "user", "content": content_with(outcome.text, outcome.images)}
                attempt.reply(outcome.messages or [shown], source="environment")
            except AttemptEnded:
                _last_words(attempt, outcome)
                raise
            anchor = _anchor(outcome)

    async def _step(
        self,
        attempt: Attempt,
        host: EnvironmentHost,
        tag: str | None,
        penalty: float,
        step: Segment,
        offered: Offered,
    ) -> Outcome:
        """An action that cannot be read, or is none here, is told and counted, and costs the `penalty`; the
        state is what it was."""
        try:
            action, calls = read_action(step.text, tag), None
            if offered:
                action, calls = self._calls(action, offered)
                attempt.count("tool_calls", len(calls))
            with attempt.waiting(f"environment {host.name}"):
                return await host.step(action, calls)
        except InvalidAction as error:
            attempt.count("format_faults")
            return Outcome(str(error)[:MOST_TEXT], error.reward - penalty, anchor=step.anchor)

    def _calls(self, said: str, offered: Offered) -> tuple[str, list[Call]]:
        """The words before the first call, and the calls."""
        calls: list[Call] = []
        for one in self.format.read(said, offered):
            if isinstance(one, Malformed):
                raise InvalidAction(one.reason)
            calls.append((one.name, one.arguments))
        places = [said.find(mark) for mark in self.format.opens(offered) if mark in said]
        return (said[: min(places)].strip() if calls and places else said), calls


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
