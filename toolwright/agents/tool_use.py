"""Tool use: the policy speaks, its calls run side by side, and it reads their answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolwright import images
from toolwright.agents import formats, registry
from toolwright.agents.attempt import Attempt
from toolwright.agents.call_settings import CallSettings, of_format
from toolwright.agents.formats import CallFormat, Offered, Schemas
from toolwright.agents.formats.arguments import to_json
from toolwright.agents.formats.thinking import spoken
from toolwright.agents.near_misses import NAME_SHOWN, NearMisses
from toolwright.agents.tool_prompt import ToolPrompt, with_tools
from toolwright.config import schema
from toolwright.failures import TaskFailure
from toolwright.models.tokenizer import Tokenizer
from toolwright.tools.call import Malformed, ToolRequest, ToolResult
from toolwright.tools.toolbox import Toolbox
from toolwright.trajectory import Segment, Task

TOOLS = "the tools "  # an attempt that waits for these is the policy's own doing
ARGUMENTS_SHOWN = 500  # characters of a call's arguments in its record; the turn itself holds them all


@dataclass(frozen=True)
class CompletedCall:
    """A call and its result."""

    name: str
    text: str
    record: dict[str, Any]
    reward: float | None = None
    images: tuple[str, ...] = ()


@registry.register("tool_use")
class ToolUse:
    def __init__(self, config: schema.RolloutConfig, tools: Toolbox, tokenizer: Tokenizer) -> None:
        self.config, self.tools, self.tokenizer = config, tools, tokenizer
        self.settings = CallSettings.of(config.call_params)
        self.format = self._format(of_format(config.call_params))

    def _format(self, params: Mapping[str, Any]) -> CallFormat:
        return formats.build(self.config.call_format, params, self.tokenizer)

    @property
    def near_misses(self) -> NearMisses:
        return NearMisses(self.format, self.settings.near_misses)

    async def attempt(self, attempt: Attempt) -> None:
        schemas = await self.tools.schemas()
        offered = formats.offered_by(self.offered(attempt.task, schemas))
        prompt = self.prompt(attempt.task, schemas)
        attempt.prompt(prompt.messages, tools=prompt.tools)
        attempt.limit_response(self.settings.response_tokens)
        stop = (*self.config.stop, *(self.format.stop(offered) if offered else ()))
        thinking, seen = opens_thought(attempt), ""  # a step is taken in what was said last
        while True:
            step = await attempt.act(anchor=seen, stop=stop)
            said, thinking = spoken(step.text, thinking=thinking)
            calls = self.near_misses.read(said, offered) if offered else []
            if not self._goes_on(attempt, calls):
                if not await self.answered(attempt, step):
                    return
                thinking, seen = opens_thought(attempt), attempt.trajectory.segments[-1].text
                continue
            if attempt.turns >= attempt.max_turns:
                attempt.finish("turns")  # nobody would read the answers
                return
            if calls:
                answers = await self._run(attempt, calls, offered)
                rewards = [one.reward for one in answers if one.reward is not None]
                step.reward = float(sum(rewards)) if rewards else None
                self._tell(attempt, answers)
                seen = "\n".join(one.text for one in answers)
                thinking = thinking or opens_thought(attempt)

    async def answered(self, attempt: Attempt, step: Segment) -> bool:
        """Return True if somebody replied to a turn without a call, so that the policy goes on. Nobody does
        here."""
        return False

    def _goes_on(self, attempt: Attempt, calls: Sequence[object]) -> bool:
        trajectory = attempt.trajectory
        text = trajectory.steps[-1].text
        if trajectory.cut or any(own in text for own in self.config.stop):
            return False
        # A call in a thought stops the engine and calls nothing: the policy goes on thinking.
        return bool(calls) or trajectory.stop == "stop"

    async def _run(
        self, attempt: Attempt, calls: Sequence[ToolRequest | Malformed], offered: Offered
    ) -> list[CompletedCall]:
        """Run the calls concurrently. If a server fails, the attempt ends once the other calls are done."""
        most, started = self.config.max_calls, time.perf_counter()
        names = ", ".join(
            dict.fromkeys(one.name[:NAME_SHOWN] for one in calls[:most] if isinstance(one, ToolRequest))
        )
        with attempt.waiting(f"{TOOLS}{names}"):
            answers = await asyncio.gather(
                *(self._answer(attempt, one, offered) for one in calls[:most]), return_exceptions=True
            )
        attempt.spend("tool_s", time.perf_counter() - started)
        results: list[CompletedCall] = []
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
            results.append(answer)
        return [*results, *self._refused(attempt, len(calls) - most)]

    def _refused(self, attempt: Attempt, left: int) -> list[CompletedCall]:
        """The answer to calls beyond the limit of a turn, if there are any."""
        if left <= 0:
            return []
        attempt.count("calls_refused", left)
        text = (
            f"at most {self.config.max_calls} calls are run in one turn; the {left} after them were not run"
        )
        return [CompletedCall("", text, {"name": "", "trouble": "refused"})]

    async def _answer(
        self, attempt: Attempt, one: ToolRequest | Malformed, offered: Offered
    ) -> CompletedCall:
        if isinstance(one, Malformed):
            return self._malformed(attempt, one)
        started, one = time.perf_counter(), self.near_misses.meant(one, offered)
        answer = await self._call(attempt, one, offered)
        return self._completed(attempt, one, offered, answer, time.perf_counter() - started)

    def _malformed(self, attempt: Attempt, one: Malformed) -> CompletedCall:
        attempt.count("format_faults")
        return CompletedCall("", self._fit(one.reason), {"name": "", "trouble": "malformed"})

    def _completed(
        self, attempt: Attempt, one: ToolRequest, offered: Offered, answer: ToolResult, seconds: float
    ) -> CompletedCall:
        """Count the call and keep its record."""
        name = one.name[:NAME_SHOWN]
        attempt.count("tool_calls")
        attempt.count(f"tool_calls/{name if one.name in offered else 'unknown'}")
        attempt.count("tool_errors", bool(answer.trouble))
        attempt.count("tool_timeouts", answer.trouble == "timeout")
        if answer.sandbox is not None:
            attempt.count("sandbox_kills", answer.sandbox.killed)
            attempt.spend("sandbox_s", answer.sandbox.ran_s)
            attempt.spend("sandbox_queue_s", answer.sandbox.queued_s)
        record = {
            "name": name,
            "arguments": to_json(one.arguments)[:ARGUMENTS_SHOWN],
            "seconds": seconds,
            "trouble": answer.trouble,
        }
        if answer.images:
            record["images"] = [images.label(url) for url in answer.images]
        return CompletedCall(name, self._fit(answer.text), record, answer.reward, answer.images)

    async def _call(self, attempt: Attempt, one: ToolRequest, offered: Offered) -> ToolResult:
        if one.name in offered:
            return await self.tools.call(one, attempt=attempt.id, task=attempt.task)
        # Known to the toolbox perhaps, but not for this task.
        return ToolResult(self.near_misses.unknown(one.name, offered), "unknown_tool")

    def _fit(self, text: str) -> str:
        return self.tokenizer.clip(self.settings.shortened(text), self.config.tool_tokens)

    def prompt(self, task: Task, schemas: Schemas) -> ToolPrompt:
        """The task's prompt, with a description of the tools that the task offers."""
        offered = self.offered(task, schemas)
        return with_tools(task.prompt, offered, self.format, self.tokenizer, self.config.tool_prompt)

    def offered(self, task: Task, schemas: Schemas) -> Schemas:
        return self.ordered(offered_to(task, schemas))

    def ordered(self, schemas: Schemas) -> Schemas:
        """The first one is what a format without names calls."""
        return schemas

    def _tell(
        self,
        attempt: Attempt,
        answers: Sequence[CompletedCall],
        then: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Show the policy the answers, and the messages that come after them."""
        shown = any(a.images for a in answers)  # only the chat template can write what stands for an image
        if self.format.inline and not attempt.ended and not shown and not then:
            for one in answers:
                segment = attempt.observe(one.text, source="tool", write=self.format.result)
                segment.calls = _found_in(segment.text, [one])
            return
        messages = [
            {"role": "tool", "name": a.name or "error", "content": images.content_with(a.text, a.images)}
            for a in answers
        ]
        segment = attempt.reply([*messages, *then], source="tool")
        segment.calls = _found_in(segment.text, answers)


def _found_in(text: str, answers: Sequence[CompletedCall]) -> list[dict[str, Any]]:
    """The records of the calls, each with where in the text its answer stands: around it is the template's
    writing, which means nothing to a reader with another template."""
    records, start = [], 0
    for one in answers:
        place = text.find(one.text, start)
        if place < 0:  # written otherwise, as JSON say
            records.append(one.record)
            continue
        start = place + len(one.text)
        records.append({**one.record, "at": [place, start]})
    return records


def offered_to(task: Task, schemas: Schemas) -> Schemas:
    """Return the tools that the task allows: those in `extra_info.tools`, or all."""
    names = task.extra_info.get("tools")
    if names is None:
        return schemas
    known = formats.offered_by(schemas)
    missing = [name for name in names if not isinstance(name, str) or name not in known]
    if missing:
        raise TaskFailure(
            f"task {task.id} offers the tool {missing[0]!r:.200}, which is not configured; "
            f"configured: {', '.join(known) or 'none'}"
        )
    return [schema for schema in schemas if schema["function"]["name"] in names]


def opens_thought(attempt: Attempt) -> bool:
    """Some templates open the policy's turn in the middle of a thought."""
    return attempt.trajectory.segments[-1].text.rstrip().endswith("<think>")
