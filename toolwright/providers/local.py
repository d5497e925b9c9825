"""A local model behind an engine: conversations become tokens, completions become text and tool calls."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolwright.agents import formats
from toolwright.agents.demonstration import Demonstrator
from toolwright.agents.formats import CallFormat, Offered
from toolwright.agents.formats.thinking import spoken
from toolwright.agents.tool_prompt import with_tools
from toolwright.config import schema
from toolwright.engines import Completion, Engine
from toolwright.providers.blocks import arguments_of, plain_text
from toolwright.providers.chat import Messages, Tools
from toolwright.tools.call import ToolRequest

if TYPE_CHECKING:
    from toolwright.models.tokenizer import Tokenizer

# Python's switch interval between threads. A forward pass is many short products, and after each the engine
# may wait for the thread of its callers: with the default of 5 ms, 32 callers cost a quarter of the engine's
# tokens a second (benchmarks/README.md).
SWITCH_INTERVAL_S = 0.0005


@dataclass(frozen=True)
class PromptTokens:
    """A prompt as tokens."""

    tokens: list[int]
    offered: Offered  # tools that the model may call
    thinking: bool = False  # the prompt ends inside a <think> block
    text: str = ""  # the last part of it as text
    messages: Sequence[Mapping[str, Any]] = ()  # what it was rendered from


@dataclass(frozen=True)
class ParsedCompletion:
    """A completion as the caller sees it: text without tool calls, cut at the first stop string."""

    text: str
    calls: tuple[ToolRequest, ...]
    finish: str  # stop, length or tools
    stopped_by: str | None = None  # the caller's stop string that ended it


class LocalModel:
    """An engine, its tokenizer, and the format in which the model writes tool calls. `tool_prompt` and
    `template` as in the configuration of a rollout."""

    def __init__(
        self,
        name: str,
        engine: Engine,
        tokenizer: Tokenizer,
        call_format: CallFormat,
        *,
        tool_prompt: str | None = None,
        template: Mapping[str, Any] | None = None,
    ) -> None:
        self.name, self.engine, self.tokenizer, self.format = name, engine, tokenizer, call_format
        self.tool_prompt, self.template = tool_prompt, dict(template or {})

    @property
    def vocabulary(self) -> int:
        return self.tokenizer.size

    def render(self, messages: Messages, tools: Tools | None = None) -> PromptTokens:
        """Render a conversation up to the model's next turn. If the last message is the assistant's, it
        is continued."""
        plain = [plain_message(message) for message in messages]
        if plain and plain[-1]["role"] == "assistant" and not plain[-1].get("tool_calls"):
            before = self.render(plain[:-1], tools)
            prefix = self.tokenizer.encode_inside(plain[-1]["content"])
            return replace(before, tokens=[*before.tokens, *prefix])
        schemas = list(tools or ())
        prompt = with_tools(plain, schemas, self.format, self.tokenizer, self.tool_prompt)
        calls = any(message["role"] == "tool" or message.get("tool_calls") for message in plain)
        if calls and (prompt.tools is None or self.format.inline):
            # The chat template has no tool calls: write them as in the model's training data.
            demonstrator = self.demonstrator(schemas)
            written = demonstrator.trajectory(0, [*plain, {"role": "assistant", "content": ""}])
            tokens = [token for segment in written.segments[:-1] for token in segment.tokens]
            text = written.segments[-2].text
        else:
            opened = self.tokenizer.opening(prompt.messages, tools=prompt.tools, **self.template)
            tokens, text = opened.tokens, opened.text
        offered = formats.offered_by(schemas)
        return PromptTokens(tokens, offered, thinking=text.rstrip().endswith("<think>"), text=text)

    def demonstrator(self, schemas: Tools) -> Demonstrator:
        """Writes turns that the model did not take as it would have written them."""
        return Demonstrator(
            self.tokenizer, self.format, schemas, tool_prompt=self.tool_prompt, template=self.template
        )

    def stops(self, prompt: PromptTokens, stop: Sequence[str]) -> tuple[str, ...]:
        """Strings that end the turn: the caller's `stop`, and those that end a tool call."""
        return (*stop, *(self.format.stop(prompt.offered) if prompt.offered else ()))

    def parse(self, prompt: PromptTokens, completion: Completion, stop: Sequence[str]) -> ParsedCompletion:
        """Split a completion into text and tool calls; the text ends at the caller's `stop`."""
        text, stopped_by = cut(completion.text, stop)
        if prompt.offered:
            answer, _ = spoken(text, thinking=prompt.thinking)
            found = self.format.read(answer, prompt.offered)
            calls = tuple(call for call in found if isinstance(call, ToolRequest))
            if calls:
                return ParsedCompletion(self._before_calls(text, prompt), calls, "tools")
        finish = "length" if completion.stop == "length" and stopped_by is None else "stop"
        return ParsedCompletion(text, (), finish, stopped_by)

    def _before_calls(self, text: str, prompt: PromptTokens) -> str:
        """The text before the first tool call."""
        start = 0 if not prompt.thinking and "<think>" not in text else max(text.rfind("</think>"), 0)
        places = [text.find(mark, start) for mark in self.format.opens(prompt.offered)]
        return text[: min((place for place in places if place >= 0), default=0)].rstrip()

    async def close(self) -> None:
        await self.engine.close()


def cut(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    """Cut the text at the first of these strings; returns the text and that string."""
    found = [(place, stop) for stop in stops if (place := text.find(stop)) >= 0]
    if not found:
        return text, None
    place, stop = min(found)
    return text[:place], stop


def load(
    model: schema.Model,
    engine: schema.EngineConfig,
    *,
    name: str | None = None,
    call_format: str = "auto",
    threads: int | None = None,
    log: Callable[[str], None] = lambda line: None,
) -> LocalModel:
    """Load the model of a Hugging Face folder as a run builds its policy. `log` gets a line with its
    precision and context. Without a `name`, the model is called as its folder. Its engine gets a thread of
    its own, and threads of this process take turns more often from then on."""
    from toolwright import engines
    from toolwright.engines.thread import InThread
    from toolwright.trainer import building, defaults

    model, line = defaults.served(model, engine)
    log(line)
    decoder, tokenizer = building.build_model(model, "", seed=0)
    building.use_processor(schema.RunConfig(threads=threads), decoder)
    build = engines.registry.get(engine.name).target
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    running = build(engine, decoder=decoder, tokenizer=tokenizer, dtype=building.dtype_of(model))
    name = name or Path(model.path or "").expanduser().resolve().name
    return LocalModel(name, InThread(running), tokenizer, formats.build(call_format, {}, tokenizer))


def plain_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message as chat templates expect it: content as one text, arguments as objects."""
    plain = {key: value for key, value in message.items() if value is not None}
    plain["content"] = plain_text(message.get("content"))
    if plain.get("role") == "developer":
        plain["role"] = "system"
    if plain.get("tool_calls"):
        plain["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": arguments_of(call["function"])}}
            for call in plain["tool_calls"]
        ]
    return plain
