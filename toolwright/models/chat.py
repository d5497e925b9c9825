"""A model's chat template: how it writes a conversation, and how it goes on with one already written."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

from jinja2 import TemplateSyntaxError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from toolwright.failures import UserError

Message = Mapping[str, Any]
Messages = Sequence[Message]
Tools = Sequence[Mapping[str, Any]]

PROBE = "toolwright probe"
ASKED: Message = {"role": "user", "content": "?"}
A_TOOL = {
    "type": "function",
    "function": {
        "name": "toolwright_probe",
        "description": "A probe.",
        "parameters": {"type": "object", "properties": {}, "required": []},
    },
}


class ChatTemplates:
    """`templates` by name: `default`, and maybe `tool_use`; `specials` as the templates call them."""

    def __init__(self, templates: Mapping[str, str], specials: Mapping[str, str], *, ends: Sequence[str]):
        self.templates, self.specials, self.ends = templates, specials, ends
        self._compiled: dict[str, Any] = {}

    def render(
        self, messages: Messages, *, generate: bool = True, tools: Tools | None = None, **extra: Any
    ) -> str:
        """Messages as the template writes them; `generate` opens the assistant's turn."""
        if self._reads_parts_alone:
            messages = [_in_parts(message) for message in messages]
        return self._rendered(messages, generate=generate, tools=tools, **extra)

    def _rendered(
        self, messages: Messages, *, generate: bool = True, tools: Tools | None = None, **extra: Any
    ) -> str:
        name = "tool_use" if tools and "tool_use" in self.templates else "default"
        template = self._compile(name)
        given = {"tools": list(tools) if tools else None, "documents": None, **self.specials, **extra}
        try:
            return str(template.render(messages=list(messages), add_generation_prompt=generate, **given))
        except UserError:
            raise
        except Exception as error:  # a template is a program of its author's: it may raise anything
            raise UserError(f"the chat template cannot write these messages: {error}") from None

    def continuation(
        self, messages: Messages, *, ended: bool, tools: Tools | None = None, **extra: Any
    ) -> str:
        """What the template writes between the last word of an assistant's turn and the first of the next,
        with `messages` in between. `ended`: the turn has its end-of-turn token already.

        The template is shown a stand-in for all that came before, so that it cannot rewrite any of it.
        """
        if any(message["role"] == "tool" for message in messages):
            text = self._after_tools(messages, tools=tools, **extra)
        else:
            text = self._after({"role": "assistant"}, messages, tools=tools, **extra)
        closing = self.closing
        if not closing or not text.startswith(closing):
            closing = next((end for end in self.ends if text.startswith(end)), "")
        return text[len(closing) :] if ended else text

    @cached_property
    def closing(self) -> str:
        """The text that ends an assistant's turn, up to its end-of-turn token; "" if there is none."""
        try:
            return self._after({"role": "assistant"}, [], generate=False).rstrip()
        except UserError:
            return ""

    @cached_property
    def takes_tools(self) -> bool:
        """True if the template itself describes the tools."""
        try:
            return A_TOOL["function"]["name"] in self.render([ASKED], tools=[A_TOOL])  # type: ignore[index]
        except UserError:
            return False

    @cached_property
    def takes_system(self) -> bool:
        try:
            return PROBE in self.render([{"role": "system", "content": PROBE}, ASKED])
        except UserError:
            return False

    @property
    def takes_tool_messages(self) -> bool:
        """True if an answer of a tool may follow any turn, also one that names no call."""
        return self._tool_manner == "plain"

    @cached_property
    def _reads_parts_alone(self) -> bool:
        """True if the template drops a content that is plain text, as some vision models' templates do."""
        asked = {"role": "user", "content": PROBE}
        try:
            if PROBE in self._rendered([asked]):
                return False
        except UserError:
            pass
        try:
            return PROBE in self._rendered([_in_parts(asked)])
        except UserError:
            return False

    @cached_property
    def source(self) -> str:
        return "\n".join(self.templates.values())

    @cached_property
    def _tool_manner(self) -> str:
        """Describe how this template takes a tool's answer: after any turn, only after a turn with calls, or
        not."""
        for manner in ("plain", "called"):
            message = {"role": "tool", "name": "probe", "content": PROBE, "tool_call_id": _id(0)}
            try:
                if PROBE in self._after_tools([message], manner=manner):
                    return manner
            except UserError:
                continue
        logging.getLogger(__name__).warning(
            "the chat template has no role for tools, so their answers are written as messages of the user"
        )
        return "user"

    def _after_tools(self, messages: Messages, *, manner: str = "", **extra: Any) -> str:
        answers = [m for m in messages if m["role"] == "tool"]
        numbered = {id(m): {"tool_call_id": _id(n), "name": "tool", **m} for n, m in enumerate(answers)}
        messages = [numbered.get(id(m), m) for m in messages]
        manner = manner or self._tool_manner
        if manner == "user":
            text = _joined([m["content"] for m in answers])
            others = [m for m in messages if m["role"] != "tool"]
            return self._after({"role": "assistant"}, [{"role": "user", "content": text}, *others], **extra)
        if manner == "plain":
            return self._after({"role": "assistant"}, messages, **extra)
        calls = [
            {"id": m["tool_call_id"], "type": "function", "function": {"name": m["name"], "arguments": {}}}
            for m in numbered.values()
        ]
        return self._after({"role": "assistant", "tool_calls": calls}, messages, **extra)

    def _after(self, said: Message, messages: Messages, *, generate: bool = True, **extra: Any) -> str:
        """Return what the template writes after the turn `said`, a stand-in for the policy's real text."""
        sentinel = "toolwright-said-this"
        while any(sentinel in str(message.get("content")) for message in messages):
            sentinel += "-"
        turn = {**said, "content": sentinel}
        whole = self.render([ASKED, turn, *messages], generate=generate, **extra)
        if "tool_calls" not in said:
            if sentinel not in whole:
                raise UserError("the chat template leaves out what the assistant said")
            return whole[whole.rindex(sentinel) + len(sentinel) :]
        # With calls, a template may write those in place of the text: the turn's end tells where it is over.
        before = self.render([ASKED, turn], generate=False, **extra)
        if not whole.startswith(before) or not before.endswith(self.closing):
            before = before.rstrip()
        if not whole.startswith(before) or not before.endswith(self.closing):
            raise UserError("the chat template rewrites a turn with calls once it is answered")
        return self.closing + whole[len(before) :]

    def _compile(self, name: str) -> Any:
        if name not in self._compiled:
            try:
                self._compiled[name] = _environment().from_string(self.templates[name])
            except TemplateSyntaxError as error:
                raise UserError(f"the chat template cannot be read, line {error.lineno}: {error}") from None
        return self._compiled[name]


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks what is learned in some templates; we know it anyway."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's own way)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
    )
    environment.filters["tojson"] = lambda value, ensure_ascii=False, **options: json.dumps(
        value, ensure_ascii=ensure_ascii, **options
    )
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _in_parts(message: Message) -> Message:
    content = message.get("content")
    if not isinstance(content, str):
        return message
    return {**message, "content": [{"type": "text", "text": content}]}


def _joined(contents: Sequence[Any]) -> Any:
    """Contents of several messages as that of one."""
    if not any(isinstance(content, list) for content in contents):
        return "\n".join(map(str, contents))
    parts = [c if isinstance(c, list) else [{"type": "text", "text": str(c)}] for c in contents]
    return [part for one in parts for part in one]


def _id(number: int) -> str:
    """Nine letters and digits: what the strictest templates ask of a call's id."""
    return f"call{number:05d}"


def _raise(message: str) -> None:
    raise UserError(f"the chat template refuses these messages: {message}")
