"""The action language: what a search, or a policy, may do to a workflow in one step, in a line of words.

    add OPERATOR after NODE [with PROMPT] [x N]     what read NODE reads the new node, which reads NODE
    add OPERATOR into NODE [with PROMPT]            one more solution for NODE to choose from
    remove NODE                                     what read NODE reads what NODE read
    replace NODE OPERATOR [with PROMPT]
    rewire NODE.PORT NODE.FIELD                     or `rewire output NODE.FIELD`
    set NODE prompt PROMPT                          or `set NODE repeat N`, `set NODE SETTING N`

PROMPT is the name of one that is known, or NAME="text" for a new one.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from toolwright.failures import UserError
from toolwright.workflow.graph import Ref


@dataclass(frozen=True)
class NamedPrompt:
    """A prompt by its name; with a text where that is new."""

    name: str
    text: str | None = None

    def __str__(self) -> str:
        return self.name if self.text is None else f"{self.name}={json.dumps(self.text, ensure_ascii=False)}"


@dataclass(frozen=True)
class Add:
    operator: str
    node: str
    into: bool = False
    prompt: NamedPrompt | None = None
    samples: int | None = None  # of the node before it, for an operator that compares several

    def __str__(self) -> str:
        words = ["add", self.operator, "into" if self.into else "after", self.node]
        return " ".join([*words, *_with(self.prompt), *([f"x {self.samples}"] if self.samples else [])])


@dataclass(frozen=True)
class Remove:
    node: str

    def __str__(self) -> str:
        return f"remove {self.node}"


@dataclass(frozen=True)
class Replace:
    node: str
    operator: str
    prompt: NamedPrompt | None = None

    def __str__(self) -> str:
        return " ".join(["replace", self.node, self.operator, *_with(self.prompt)])


@dataclass(frozen=True)
class Rewire:
    node: str  # "" for the output
    port: str
    source: Ref

    def __str__(self) -> str:
        return f"rewire {f'{self.node}.{self.port}' if self.node else 'output'} {self.source}"


@dataclass(frozen=True)
class Set:
    """`prompt`, `repeat` or one of the operator's settings."""

    node: str
    what: str
    value: NamedPrompt | int

    def __str__(self) -> str:
        return f"set {self.node} {self.what} {self.value}"


Edit = Add | Remove | Replace | Rewire | Set


def parse(text: str) -> Edit:
    """An edit from its words; a UserError says how it is written."""
    words = _words(text)
    if not words or words[0] not in FORMS:
        raise UserError(f"{text.strip()[:80]!r} is not an edit; begin with {', '.join(FORMS)}")
    try:
        return _edit(words)
    except ValueError:
        raise UserError(f"{text.strip()[:80]!r} has the wrong form; write {FORMS[words[0]]}") from None


FORMS = {
    "add": "add OPERATOR after NODE [with PROMPT] [x N], or add OPERATOR into NODE [with PROMPT]",
    "remove": "remove NODE",
    "replace": "replace NODE OPERATOR [with PROMPT]",
    "rewire": "rewire NODE.PORT NODE.FIELD, or rewire output NODE.FIELD",
    "set": "set NODE prompt PROMPT, set NODE repeat N, or set NODE SETTING N",
}


def _with(prompt: NamedPrompt | None) -> list[str]:
    return [] if prompt is None else ["with", str(prompt)]


def _words(text: str) -> list[str]:
    """Split at blanks; a quoted text stays with the name before it."""
    return [found[0] for found in re.finditer(r'(?:[^\s"]+(?:"(?:[^"\\]|\\.)*")?)', text.strip())]


def _edit(words: list[str]) -> Edit:
    """A ValueError if the words are not those of an edit."""
    match words:
        case ["add", operator, "after" | "into" as where, node, *options]:
            found = dict(zip(options[::2], options[1::2], strict=True))
            if not found.keys() <= {"with", "x"} or len(found) < len(options) // 2:
                raise ValueError(f"unknown options: {options}")
            prompt = _prompt(found["with"]) if "with" in found else None
            samples = _number(found["x"]) if "x" in found else None
            if samples == 0:
                raise ValueError("no samples")
            return Add(operator, node, where == "into", prompt, samples)
        case ["remove", node]:
            return Remove(node)
        case ["replace", node, operator]:
            return Replace(node, operator)
        case ["replace", node, operator, "with", prompt]:
            return Replace(node, operator, _prompt(prompt))
        case ["rewire", "output", source]:
            return Rewire("", "output", Ref.of(source))
        case ["rewire", target, source]:
            origin, reader = Ref.of(source), Ref.of(target)
            return Rewire(reader.node, reader.field, origin)
        case ["set", node, "prompt", prompt]:
            return Set(node, "prompt", _prompt(prompt))
        case ["set", node, what, number]:
            return Set(node, what, _number(number))
    raise ValueError("too many words, or too few")


def _prompt(word: str) -> NamedPrompt:
    name, mark, quoted = word.partition("=")
    text = json.loads(quoted) if mark else None
    if not name.isidentifier() or (mark and not isinstance(text, str)):
        raise ValueError(f"no prompt: {word}")
    return NamedPrompt(name, text)


def _number(word: str) -> int:
    if not re.fullmatch(r"[0-9]{1,4}", word):
        raise ValueError(f"no number: {word}")
    return int(word)
