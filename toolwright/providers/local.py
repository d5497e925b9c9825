"""A model of our own as a chat model: conversations in, text and calls out, through any engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolwright.agents import formats
from toolwright.agents.briefing import brief
from toolwright.agents.demonstration import Demonstrator
from toolwright.agents.formats import CallFormat, Offered
from toolwright.agents.formats.thinking import spoken
from toolwright.config import schema
from toolwright.engines import Completion
from toolwright.providers import Messages, Tools
from toolwright.providers.blocks import arguments_of, plain_text
from toolwright.tools.call import ToolRequest

if TYPE_CHECKING:
    from toolwright.engines.thread import InThread
    from toolwright.models.tokenizer import Tokenizer


@dataclass(frozen=True)
class PromptTokens:
    """What the model goes on from."""

    tokens: list[int]
    offered: Offered  # tools it may call
    thinking: bool = False  # it is opened in the middle of a thought


@dataclass(frozen=True)
class Said:
    """A completion as its caller wants it: no calls in the text, and nothing from a stop string on."""

    text: str
    calls: tuple[ToolRequest, ...]
    finish: str  # stop, length or tools
    stopped_by: str | None = None  # the caller's own stop string, if one ended it


class LocalModel:
    """An engine, its tokenizer, and the format in which the model writes calls."""

    def __init__(self, name: str, engine: InThread, tokenizer: Tokenizer, call_format: CallFormat) -> None:
        self.name, self.engine, self.tokenizer, self.format = name, engine, tokenizer, call_format

    @property
    def vocabulary(self) -> int:
        return self.tokenizer.size

    def opening(self, messages: Messages, tools: Tools | None = None) -> PromptTokens:
        """A conversation up to where the model's next turn begins, or goes on: a last message of the
        assistant's own is the beginning of that turn."""
        said = [_plain(message) for message in messages]
        if said and said[-1]["role"] == "assistant" and not said[-1].get("tool_calls"):
            before = self.opening(said[:-1], tools)
            begun = self.tokenizer.encode_inside(said[-1]["content"])
            return replace(before, tokens=[*before.tokens, *begun])
        schemas = list(tools or ())
        told = brief(said, schemas, self.format, self.tokenizer, None)
        calls = any(message["role"] == "tool" or message.get("tool_calls") for message in said)
        if calls and (told.tools is None or self.format.inline):
            # The template knows nothing of calls: they are written as the model was taught to write them.
            shown = Demonstrator(self.tokenizer, self.format, schemas)
            written = shown.trajectory(0, [*said, {"role": "assistant", "content": ""}])
            tokens = [token for segment in written.segments[:-1] for token in segment.tokens]
            text = written.segments[-2].text
        else:
            opened = self.tokenizer.opening(told.messages, tools=told.tools)
            tokens, text = opened.tokens, opened.text
        offered = formats.offered_by(schemas)
        return PromptTokens(tokens, offered, thinking=text.rstrip().endswith("<think>"))

    def stops(self, prompt: PromptTokens, asked: Sequence[str]) -> tuple[str, ...]:
        """Strings that end the turn: the caller's, and those that end a call."""
        return (*asked, *(self.format.stop(prompt.offered) if prompt.offered else ()))

    def read(self, prompt: PromptTokens, completion: Completion, asked: Sequence[str]) -> Said:
        """What was said in a completion that stops at `asked` and at the ends of calls."""
        text, stopped_by = cut(completion.text, asked)
        if prompt.offered:
            heard, _ = spoken(text, thinking=prompt.thinking)
            found = self.format.read(heard, prompt.offered)
            calls = tuple(one for one in found if isinstance(one, ToolRequest))
            if calls:
                return Said(self._words(text, prompt), calls, "tools")
        finish = "length" if completion.stop == "length" and stopped_by is None else "stop"
        return Said(text, (), finish, stopped_by)

    def _words(self, text: str, prompt: PromptTokens) -> str:
        """What stands before the first call."""
        start = 0 if not prompt.thinking and "<think>" not in text else max(text.rfind("</think>"), 0)
        places = [text.find(mark, start) for mark in self.format.opens(prompt.offered)]
        return text[: min((place for place in places if place >= 0), default=0)].rstrip()

    async def close(self) -> None:
        await self.engine.close()


def cut(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    """The text up to the first of these strings, and which that was."""
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
    said: Callable[[str], None] = lambda line: None,
) -> LocalModel:
    """The model of a Hugging Face folder, built as a run builds its policy, under the folder's name. `said`
    hears what it is served with."""
    from toolwright import engines
    from toolwright.engines.thread import InThread
    from toolwright.trainer import defaults, roles

    model, line = defaults.served(model, engine)
    said(line)
    decoder, tokenizer = roles.build_model(model, "", seed=0)
    roles.use_processor(schema.RunConfig(threads=threads), decoder)
    build = engines.registry.get(engine.name).target
    running = build(engine, decoder=decoder, tokenizer=tokenizer, dtype=roles.dtype_of(model))
    known_as = name or Path(model.path or "").expanduser().resolve().name
    written = formats.build(call_format, {}, tokenizer)
    return LocalModel(known_as, InThread(running), tokenizer, written)


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    """Parts of text as one text, arguments as objects: what templates are written for."""
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
