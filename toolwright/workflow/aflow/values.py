"""What a variable of AFlow's Python stands for while it is read: constants, texts, lists, steps' results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from toolwright.workflow.graph import Piece, Pieces, Ref, joined


@dataclass(frozen=True)
class Constant:
    """A value that is known: text, a number, True, None."""

    value: Any


@dataclass(frozen=True)
class Text:
    """Literals and what steps will make, one after the other."""

    pieces: Pieces


@dataclass(frozen=True)
class Flag:
    """A yes or no that a step will return, or its opposite."""

    ref: Ref
    negated: bool = False


@dataclass(frozen=True)
class Many:
    items: tuple[Value, ...]


@dataclass(frozen=True)
class StepResult:
    """What a step returned: its fields by key."""

    node: str


@dataclass(frozen=True)
class Either:
    """One of two values, by a condition."""

    on: Ref
    then: Value
    otherwise: Value


@dataclass(frozen=True)
class PromptName:
    """`prompt_custom.NAME`, alone or with text after it."""

    name: str
    rest: Pieces = ()


@dataclass(frozen=True)
class Parts:
    """`text.split(separator)`, of which one part is taken later."""

    inputs: Mapping[str, Pieces]


@dataclass(frozen=True)
class Pending:
    """A step that was started: `await` gives what it returns."""

    result: Value


@dataclass(frozen=True)
class Cost:
    """The cost so far: returned beside the answer and not used otherwise."""


Value = Constant | Text | Flag | Many | StepResult | Either | PromptName | Parts | Pending | Cost


class NoText(Exception):
    """The value cannot be used as text; the message says what it is."""


def pieces_of(value: Value) -> Pieces:
    """A value as text, as Python's `str` and f-strings would make it."""
    match value:
        case Text(pieces):
            return pieces
        case Constant(str() as text):
            return (text,) if text else ()
        case Constant(int() | float() as number):
            return (str(number),)
        case Flag(ref, negated=False) if ref.field != "value":  # a `Choose` says yes in a word of its own
            return (ref,)
    names = {Constant: "None", Many: "a list", Pending: "a step that nothing awaits"}
    names[StepResult] = "all that a step returned, without a key"
    raise NoText(names.get(type(value), "something that is not text"))


def plus(left: Value, right: Value) -> Value:
    match left, right:
        case Constant(a), Constant(b):
            return Constant(a + b)
        case Many(a), Many(b):
            return Many((*a, *b))
        case PromptName(name, rest), _:
            return PromptName(name, joined((*rest, *pieces_of(right))))
    return text(*pieces_of(left), *pieces_of(right))


def merged(on: Ref, then: Value, otherwise: Value) -> Value:
    """One of two values, by a condition; lists of one length item by item."""
    then = then.then if isinstance(then, Either) and then.on == on else then
    otherwise = otherwise.otherwise if isinstance(otherwise, Either) and otherwise.on == on else otherwise
    if then == otherwise:
        return then
    match then, otherwise:
        case Many(first), Many(second) if len(first) == len(second):
            return Many(tuple(merged(on, one, other) for one, other in zip(first, second, strict=True)))
    return Either(on, then, otherwise)


def opposite(held: bool | Flag) -> bool | Flag:
    return replace(held, negated=not held.negated) if isinstance(held, Flag) else not held


def text(*pieces: Piece) -> Value:
    found = joined(pieces)
    if all(isinstance(piece, str) for piece in found):
        return Constant("".join(str(piece) for piece in found))
    return Text(found)
