"""Call formats: how a policy writes a tool call, and how it reads the answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from toolwright.agents.formats.thinking import spoken
from toolwright.registry import Registry, check_settings, signature_of
from toolwright.tools.call import Malformed, ToolRequest

if TYPE_CHECKING:
    from toolwright.models.tokenizer import Tokenizer

# What may be called: the JSON schema of each tool's arguments, by the tool's name.
Offered = Mapping[str, Mapping[str, Any]]
Schemas = Sequence[Mapping[str, Any]]


class CallFormat(ABC):
    """A way to write calls. It has no state, because attempts share it."""

    inline = False  # answers go on in the policy's own turn, not as messages after it

    def stop(self, offered: Offered) -> tuple[str, ...]:
        """Strings that end a turn because a call has just been written."""
        return ()

    def opens(self, offered: Offered) -> tuple[str, ...]:
        """The strings that calls can begin with. Text before the first of them is addressed to the user."""
        return ("",)

    def parse(self, text: str, offered: Offered) -> list[ToolRequest | Malformed]:
        """Return every call in what the policy said aloud, in order. Never raises, whatever the text."""
        said, _ = spoken(text)
        return self.read(said, offered)

    @abstractmethod
    def read(self, said: str, offered: Offered) -> list[ToolRequest | Malformed]:
        """Do the work of `parse`, for a text without thoughts."""

    @abstractmethod
    def write(self, call: ToolRequest, offered: Offered) -> str:
        """Write a call as the policy would, for demonstrations."""

    @abstractmethod
    def instructions(self, schemas: Schemas) -> str:
        """Instructions for a policy whose chat template does not describe tools."""

    def result(self, text: str) -> str:
        """Write an answer inside the policy's turn, for formats that answer inline."""
        return text


FORMATS: Registry[Callable[..., CallFormat]] = Registry("call format", "toolwright.agents.formats")


def build(name: str, params: Mapping[str, Any], tokenizer: Tokenizer) -> CallFormat:
    """Return the format of that name. `params` are its own settings, such as the names of tags."""
    entry = FORMATS.get(name)
    given = entry.accepted(tokenizer=tokenizer)
    parameters = signature_of(entry.target).parameters.values()
    params = check_settings(
        f"call format {name!r}", parameters, params, prefix="rollout.call_params.", reserved=given
    )
    return entry.target(**given, **params)


def offered_by(schemas: Schemas) -> Offered:
    """Return tools by name, given their OpenAI schemas."""
    functions = [schema["function"] for schema in schemas]
    return {function["name"]: function.get("parameters") or {} for function in functions}


def described(schemas: Schemas) -> str:
    """Write a line for each tool: its name, its parameters and what it does."""
    lines = []
    for function in (schema["function"] for schema in schemas):
        properties = (function.get("parameters") or {}).get("properties", {})
        takes = ", ".join(f"{name}: {kind.get('type', 'any')}" for name, kind in properties.items())
        about = " ".join(str(function.get("description", "")).split())
        lines.append(f"- {function['name']}({takes}): {about}")
    return "\n".join(lines)
