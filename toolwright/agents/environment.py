"""Plays an environment turn by turn: observe, act or call its tools, see the result, until it is over."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from toolwright.agents import formats, registry
from toolwright.agents.attempt import Attempt, AttemptEnded
from toolwright.agents.formats import Offered
from toolwright.agents.formats.thinking import spoken
from toolwright.agents.tool_prompt import with_tools
from toolwright.agents.tool_use import CompletedCall, ToolUse, opens_thought
from toolwright.failures import UserError
from toolwright.images import content_with, name_of
from toolwright.tasks import InvalidAction, Observation, Outcome
from toolwright.tasks.environment_host import MOST_TEXT, EnvironmentHost, checked
from toolwright.tools.call import Malformed, ToolRequest, ToolResult
from toolwright.tools.toolbox import without_surrogates
from toolwright.trajectory import OUTCOME, Segment, Task, finite_number


@dataclass(frozen=True)
class PlayRules:
    """The settings of a task's environment that the loop reads itself."""

    action_tag: str | None = None
    invalid_penalty: float = 0.0
    turns: int | None = None  # the most that this task allows, if fewer than the run's
    success_reward: float | None = None  # from this sum of rewards on, the end is a success

    @classmethod
    def split(cls, settings: dict[str, Any]) -> tuple[PlayRules, dict[str, Any]]:
        """Split the settings into the loop's rules and the environment's own arguments."""
        rest = dict(settings)
        tag, penalty = rest.pop("action_tag", None), float(rest.pop("invalid_penalty", 0.0))
        turns, success = rest.pop("turns", None), rest.pop("success_reward", None)
        return cls(tag, penalty, None if turns is None else int(turns), success), rest


@registry.register("environment")
class EnvironmentLoop(ToolUse):
    """The loop over an environment.

    The whole history stays in view. Each step has its own reward, and the state in which it was taken as its
    anchor. The environment offers the tools. It gets all calls of a turn at once, and answers each.
    """

    def check(self, task: Task) -> None:
        """Raise a UserError for a task whose environment is missing or cannot be built."""
        checked(PlayRules.split(settings_of(task))[1])

    async def attempt(self, attempt: Attempt) -> None:
        rules, settings = PlayRules.split(settings_of(attempt.task))
        limit_s = self.config.environment_timeout_s
        host = EnvironmentHost(settings, limit_s=limit_s, success_reward=rules.success_reward)
        attempt.count("success", 0)
        try:
            with suppress(AttemptEnded):
                await self._play(attempt, host, rules)
            if host.judges:
                await _judge(attempt, host)
        finally:
            await host.close()

    async def _play(self, attempt: Attempt, host: EnvironmentHost, rules: PlayRules) -> None:
        with attempt.waiting(f"environment {host.name}"):
            seen = await host.reset(attempt.task, attempt.ask)
        offered = self._open(attempt, seen)
        stop = (*self.config.stop, *self.format.stop(offered)) if offered else None
        most = min(attempt.max_turns, rules.turns or attempt.max_turns)
        anchor, thinking = _anchor(seen), opens_thought(attempt)
        while True:
            step = await attempt.act(anchor=anchor, stop=stop)
            if attempt.trajectory.cut and host.judges:
                return  # it is judged as it stands, without the turn that was cut
            said, thinking = spoken(step.text, thinking=thinking)
            calls = self.near_misses.read(said, offered) if offered else []
            goes_on = bool(offered) and self._goes_on(attempt, calls)
            if goes_on and not calls:  # a call in a thought stopped the engine
                if attempt.turns < most:
                    continue
                attempt.finish("turns")
                return
            outcome, answers = await self._step(
                attempt, host, rules, step, said, offered, calls if goes_on else []
            )
            if outcome.done or attempt.turns >= most:
                if not host.judges:
                    attempt.count("success", bool(outcome.done and outcome.info.get("success")))
                _keep_for_readers(attempt, outcome, answers)
                attempt.finish("done" if outcome.done else "turns")
                return
            try:
                self._show(attempt, outcome, answers)
            except AttemptEnded:
                _keep_for_readers(attempt, outcome, answers)
                raise
            anchor, thinking = _anchor(outcome), (thinking and bool(answers)) or opens_thought(attempt)

    def _open(self, attempt: Attempt, seen: Observation) -> Offered:
        """Show the first observation, and return the tools that the environment offers."""
        opening = seen.messages or list(attempt.task.prompt)
        asks = bool(opening) and opening[-1]["role"] == "user"
        if not seen.messages and (seen.text or seen.images or not asks):
            opening = [*opening, {"role": "user", "content": content_with(seen.text, seen.images)}]
        prompt = with_tools(opening, seen.tools, self.format, self.tokenizer, self.config.tool_prompt)
        attempt.prompt(prompt.messages, tools=prompt.tools)
        if seen.tools:
            attempt.count("tool_calls", 0)
        return formats.offered_by(seen.tools)

    async def _step(
        self,
        attempt: Attempt,
        host: EnvironmentHost,
        rules: PlayRules,
        step: Segment,
        said: str,
        offered: Offered,
        calls: Sequence[ToolRequest | Malformed],
    ) -> tuple[Outcome, list[CompletedCall]]:
        """Take a step. If the action cannot be read or is not allowed, the policy is told, the fault is
        counted and penalised, and the state stays the same."""
        taken = [
            self.near_misses.meant(one, offered) if isinstance(one, ToolRequest) else one
            for one in calls[: self.config.max_calls]
        ]
        asked = [
            (one.name, without_surrogates(one.arguments)) for one in taken if isinstance(one, ToolRequest)
        ]
        started = time.perf_counter()
        try:
            if calls and not asked:
                outcome = Outcome("", -rules.invalid_penalty, anchor=step.anchor)
            else:
                action = self._before_calls(said, offered) if calls else read_action(said, rules.action_tag)
                with attempt.waiting(f"environment {host.name}"):
                    outcome = await host.step(action, asked if offered else None)
        except InvalidAction as error:
            attempt.count("format_faults")
            reward = error.reward - rules.invalid_penalty
            outcome = Outcome(str(error)[:MOST_TEXT], reward, anchor=step.anchor)
        seconds = time.perf_counter() - started
        if asked:
            attempt.spend("tool_s", seconds)
        answers = self._answers(attempt, outcome, taken, offered, seconds / max(1, len(asked)))
        answers += self._refused(attempt, len(calls) - self.config.max_calls)
        step.reward = float(outcome.reward) + sum(one.reward or 0.0 for one in answers)
        return outcome, answers

    def _answers(
        self,
        attempt: Attempt,
        outcome: Outcome,
        taken: Sequence[ToolRequest | Malformed],
        offered: Offered,
        seconds: float,
    ) -> list[CompletedCall]:
        """Complete each call with its answer. If there are no answers, the observation answers all calls at
        once."""
        given, completed = iter(outcome.answers), list[CompletedCall]()
        for one in taken:
            if isinstance(one, Malformed):
                completed.append(self._malformed(attempt, one))
            elif outcome.answers:
                answer = self._result(one.name, next(given), offered)
                completed.append(self._completed(attempt, one, offered, answer, seconds))
            else:
                attempt.count("tool_calls")
        return completed

    def _result(self, name: str, answer: str | InvalidAction, offered: Offered) -> ToolResult:
        """Pass every call to the environment. If a call's tool does not exist, the policy reads our hint
        instead."""
        if isinstance(answer, str):
            return ToolResult(without_surrogates(answer))
        if name in offered:
            return ToolResult(str(answer), "raised", answer.reward or None)
        return ToolResult(self.near_misses.unknown(name, offered), "unknown_tool")

    def _before_calls(self, said: str, offered: Offered) -> str:
        """Return the words before the first call."""
        places = [said.find(mark) for mark in self.format.opens(offered) if mark in said]
        return said[: min(places)].strip() if places else said

    def _show(self, attempt: Attempt, outcome: Outcome, answers: Sequence[CompletedCall]) -> None:
        messages = list(outcome.messages)
        if not messages and (outcome.text or outcome.images or not answers):
            messages = [{"role": "user", "content": content_with(outcome.text, outcome.images)}]
        if answers:
            self._tell(attempt, answers, messages)
        else:
            attempt.reply(messages, source="environment")


async def _judge(attempt: Attempt, host: EnvironmentHost) -> None:
    """Ask the environment for its verdict on the whole attempt."""
    with attempt.waiting(f"environment {host.name}"):
        outcome = await host.verdict()
    last = attempt.trajectory.steps[-1]
    last.reward = (last.reward or 0.0) + float(outcome.reward)
    attempt.count("success", bool(outcome.info.get("success")))
    for name, value in outcome.info.items():
        if name != "success" and (number := finite_number(value)) is not None:
            attempt.count(f"{OUTCOME}{name}", number)
    _keep_for_readers(attempt, outcome, ())


def _anchor(shown: Observation | Outcome) -> str:
    """The name of the state: the environment's own, or the text that it shows."""
    if shown.anchor is not None:
        return shown.anchor
    answers = map(str, shown.answers) if isinstance(shown, Outcome) else ()
    return " ".join(filter(None, [*answers, shown.text, *map(name_of, shown.images)]))


def _keep_for_readers(attempt: Attempt, outcome: Outcome, answers: Sequence[CompletedCall]) -> None:
    """Keep what was shown last. Nobody acts on it, so it costs no tokens."""
    if answers:
        text, records = "\n".join(one.text for one in answers), [one.record for one in answers]
        attempt.trajectory.append(Segment("tool", [], text=text, calls=records))
    if outcome.text:
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
    """Return the text in the last pair of tags, or the whole turn if there are no tags. Thoughts are left
    out."""
    said, _ = spoken(text)
    if tag is None:
        return said.strip()
    name = re.escape(tag)
    found = re.findall(rf"<{name}>((?:(?!<{name}>).)*?)</{name}>", said, re.DOTALL)
    if not found:
        raise InvalidAction(f"Write your action as <{tag}>…</{tag}>.")
    return str(found[-1]).strip()
