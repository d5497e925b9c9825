"""Demonstrations as if they had been sampled: the assistant's words are actions, the rest is context.

They are written turn by turn with the code that writes attempts, so that the model learns exactly what the
policy will see. A `tool` message after an assistant's message is the answer to its call. It stands where the
call format puts answers, and is never learned. Calls may be text, or `tool_calls` in OpenAI's form.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from toolwright.agents import Agent, formats
from toolwright.agents.call_settings import of_format
from toolwright.agents.formats import CallFormat, Schemas, offered_by
from toolwright.agents.formats.tags import Tags
from toolwright.agents.tool_prompt import with_tools
from toolwright.agents.tool_use import ToolUse
from toolwright.config import schema
from toolwright.failures import UserError
from toolwright.images import name_of
from toolwright.models.chat import ASKED
from toolwright.models.tokenizer import Tokenizer, Written
from toolwright.tools.call import ToolRequest
from toolwright.tools.toolbox import Toolbox
from toolwright.trajectory import Segment, Source, Task, Trajectory

Message = Mapping[str, Any]


class Demonstrator:
    """Writes demonstrations. `tool_prompt` and `template` are those of the rollout's configuration."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        call_format: CallFormat | None = None,
        schemas: Schemas = (),
        *,
        tool_prompt: str | None = None,
        template: Mapping[str, Any] | None = None,
    ) -> None:
        self.tokenizer, self.schemas, self.tool_prompt = tokenizer, schemas, tool_prompt
        self.format = call_format or Tags()
        self.template = dict(template or {})
        self.offered = offered_by(schemas)

    def offering(self, schemas: Schemas) -> Demonstrator:
        """Return one that offers other tools and writes everything else alike."""
        return Demonstrator(
            self.tokenizer, self.format, schemas, tool_prompt=self.tool_prompt, template=self.template
        )

    def trajectory(self, number: int | str, messages: Sequence[Message], *, given: int = 0) -> Trajectory:
        """Write a whole conversation. The first `given` messages are context, whoever says them."""
        turns = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
        if not turns or turns[-1] < given:
            raise UserError(f"demonstration {number} has no assistant message to learn from")
        made = Trajectory(Task(str(number), [dict(message) for message in messages]), group=str(number))
        prompt = with_tools(messages[: turns[0]], self.schemas, self.format, self.tokenizer, self.tool_prompt)
        _extend(made, "prompt", self.tokenizer.opening(prompt.messages, tools=prompt.tools, **self.template))
        fresh = True  # whether this turn has just been opened, and does not continue after a tool's answer
        for place, following in zip(turns, [*turns[1:], None], strict=True):
            between = messages[place + 1 : following] if following is not None else []
            inside = self.format.inline and bool(between) and all(m["role"] == "tool" for m in between)
            whole = fresh and not inside
            text = (
                self._written(messages[place], tools=prompt.tools) if whole else self._said(messages[place])
            )
            text += "" if inside else self._closing
            tokens = self.tokenizer.encode_inside(text)
            if place < given:
                made.append(Segment("prompt", tokens, text=text))
            else:
                made.append(Segment("policy", tokens, [0.0] * len(tokens), text))
            self._answer(made, between, inside=inside, tools=prompt.tools, last=following is None)
            fresh = not inside
        return made

    def turn(self, message: Message, *, tools: Schemas | None) -> str:
        """Write a whole turn of the assistant, including its end."""
        return self._written(message, tools=tools) + self._closing

    def _answer(
        self,
        made: Trajectory,
        between: Sequence[Message],
        *,
        inside: bool,
        tools: Schemas | None,
        last: bool,
    ) -> None:
        if inside:
            for message in between:
                _extend(made, "tool", self.tokenizer.quote(str(message["content"]), self.format.result))
        elif not last:
            only_tools = bool(between) and all(m["role"] == "tool" for m in between)
            going_on = self.tokenizer.continuation(between, ended=True, tools=tools, **self.template)
            _extend(made, "tool" if only_tools else "prompt", going_on)

    @property
    def _closing(self) -> str:
        """Return the text that ends a turn. The policy must learn to write it."""
        return self.tokenizer.chat.closing or str(self.tokenizer.backend.id_to_token(self.tokenizer.end))

    def _written(self, message: Message, *, tools: Schemas | None) -> str:
        """Write a whole turn with the template. If the template writes calls differently from the format, the
        format writes them."""
        calls = [_call(one) for one in message.get("tool_calls") or []]
        said = {key: value for key, value in message.items() if value is not None}
        said.setdefault("content", "")
        if calls:
            said["tool_calls"] = [
                {
                    "id": one.id or f"call{n:05d}",
                    "type": "function",
                    "function": {"name": one.name, "arguments": one.arguments},
                }
                for n, one in enumerate(calls)
            ]
        render, closing = self.tokenizer.render, self.tokenizer.chat.closing
        try:
            opened = render([ASKED], tools=tools, **self.template)
            closed = render([ASKED, said], generate=False, tools=tools, **self.template)
        except UserError:
            return self._said(message)
        text = closed.removeprefix(opened)
        if text == closed or not self._reads(text, calls):
            return self._said(message)
        return text[: text.rindex(closing)] if closing and closing in text else text

    def _reads(self, text: str, calls: Sequence[ToolRequest]) -> bool:
        """Return True if the template writes these calls in the format that the loop will read."""
        offered = self.offered or {one.name: {} for one in calls}
        found = self.format.parse(text.removesuffix("\n").removesuffix(self._closing), offered)
        made = [(one.name, one.arguments) for one in found if isinstance(one, ToolRequest)]
        return not calls or made == [(one.name, one.arguments) for one in calls]

    def _said(self, message: Message) -> str:
        content = message.get("content") or ""
        calls = [self.format.write(_call(one), self.offered) for one in message.get("tool_calls") or []]
        return "\n".join(filter(None, [content if isinstance(content, str) else str(content), *calls]))


async def demonstrator_like(
    agent: Agent, config: schema.RolloutConfig, tokenizer: Tokenizer, tools: Toolbox
) -> Demonstrator:
    """Build a demonstrator that writes prompts and calls as this agent reads them."""
    if isinstance(agent, ToolUse):
        call_format, schemas = agent.format, agent.ordered(await tools.schemas())
    else:  # a run without tools may learn from conversations that have their own
        params = of_format(config.call_params)
        call_format, schemas = formats.build(config.call_format, params, tokenizer), ()
    return Demonstrator(
        tokenizer, call_format, schemas, tool_prompt=config.tool_prompt, template=config.template
    )


def _call(one: Mapping[str, Any]) -> ToolRequest:
    """OpenAI's way of writing one, whether its arguments are an object or text."""
    function = one.get("function", one)
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError as error:
            raise UserError(f"a demonstrated call of {function.get('name')!r}: {error}") from None
    return ToolRequest(
        function["name"], {k: v for k, v in arguments.items() if v is not None}, id=one.get("id") or ""
    )


def _extend(made: Trajectory, source: Source, written: Written) -> None:
    made.append(
        Segment(source, written.tokens, text=written.text, images=[name_of(url) for url in written.images])
    )
