"""The action language: what a search, or a policy, may do to a workflow in one step, in a line of words.

    add OPERATOR after NODE [with PROMPT] [x N]     what read NODE reads the new node, which reads NODE
    add OPERATOR into NODE [with PROMPT]            one more solution for NODE to choose from
    remove NODE                                     what read NODE reads what NODE read
    replace NODE OPERATOR [with PROMPT]
    rewire NODE.PORT NODE.FIELD                     or `rewire output NODE.FIELD`
    set NODE prompt PROMPT                          or `set NODE repeat N`, `set NODE SETTING N`
    accept                                          no further edit

PROMPT is the name of one that is known, or NAME="text" for a new one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
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


@dataclass(frozen=True)
class Accept:
    def __str__(self) -> str:
        return "accept"


Edit = Add | Remove | Replace | Rewire | Set | Accept


def parse(text: str) -> Edit:
    """An edit from its words; a UserError says how it is written."""
    words = _words(text)
    verb, rest = (words[0], words[1:]) if words else ("", [])
    reader = _READERS.get(verb)
    if reader is None:
        raise UserError(f"{text.strip()[:80]!r} is not an edit; begin with {', '.join(_READERS)}")
    edit = reader(rest)
    if edit is None:
        raise UserError(f"{text.strip()[:80]!r} has the wrong form; write {_FORMS[verb]}")
    return edit


def _with(prompt: NamedPrompt | None) -> list[str]:
    return [] if prompt is None else ["with", str(prompt)]


def _words(text: str) -> list[str]:
    """Split at blanks; a quoted text stays with the name before it."""
    return [found[0] for found in re.finditer(r'(?:[^\s"]+(?:"(?:[^"\\]|\\.)*")?)', text.strip())]


def _prompt(word: str) -> NamedPrompt | None:
    name, mark, quoted = word.partition("=")
    if not name.isidentifier():
        return None
    if not mark:
        return NamedPrompt(name)
    try:
        text = json.loads(quoted)
    except json.JSONDecodeError:
        return None
    return NamedPrompt(name, text) if isinstance(text, str) else None


def _number(word: str) -> int | None:
    return int(word) if re.fullmatch(r"[0-9]{1,4}", word) else None


def _options(words: list[str]) -> dict[str, str] | None:
    """`with PROMPT` and `x N`, in any order."""
    pairs = dict(zip(words[::2], words[1::2], strict=False))
    fits = len(words) % 2 == 0 and set(pairs) <= {"with", "x"} and len(pairs) == len(words) // 2
    return pairs if fits else None


def _add(words: list[str]) -> Edit | None:
    if len(words) < 3 or words[1] not in ("after", "into") or (options := _options(words[3:])) is None:
        return None
    prompt = _prompt(options["with"]) if "with" in options else None
    samples = _number(options["x"]) if "x" in options else None
    if ("with" in options and prompt is None) or ("x" in options and not samples):
        return None
    return Add(words[0], words[2], words[1] == "into", prompt, samples)


def _remove(words: list[str]) -> Edit | None:
    return Remove(words[0]) if len(words) == 1 else None


def _replace(words: list[str]) -> Edit | None:
    if len(words) == 2:
        return Replace(words[0], words[1])
    if len(words) == 4 and words[2] == "with" and (prompt := _prompt(words[3])):
        return Replace(words[0], words[1], prompt)
    return None


def _rewire(words: list[str]) -> Edit | None:
    if len(words) != 2:
        return None
    source = Ref.of(words[1])
    if words[0] == "output":
        return Rewire("", "output", source)
    target = Ref.of(words[0])
    return Rewire(target.node, target.field, source)


def _set(words: list[str]) -> Edit | None:
    if len(words) != 3:
        return None
    value = _prompt(words[2]) if words[1] == "prompt" else _number(words[2])
    return None if value is None else Set(words[0], words[1], value)


def _accept(words: list[str]) -> Edit | None:
    return None if words else Accept()


_READERS: Mapping[str, Callable[[list[str]], Edit | None]] = {
    "add": _add,
    "remove": _remove,
    "replace": _replace,
    "rewire": _rewire,
    "set": _set,
    "accept": _accept,
}
_FORMS = {
    "add": "add OPERATOR after NODE [with PROMPT] [x N], or add OPERATOR into NODE [with PROMPT]",
    "remove": "remove NODE",
    "replace": "replace NODE OPERATOR [with PROMPT]",
    "rewire": "rewire NODE.PORT NODE.FIELD, or rewire output NODE.FIELD",
    "set": "set NODE prompt PROMPT, set NODE repeat N, or set NODE SETTING N",
    "accept": "accept",
}
