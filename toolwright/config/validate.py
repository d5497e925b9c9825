"""Validate a tree of values against the schema, and explain what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from toolwright.config import former_keys
from toolwright.config.block import Block
from toolwright.config.keys import Schema, find, format_value, leaves, nearest_keys, value_at
from toolwright.config.names import Registered
from toolwright.failures import UserError, nearest

C = TypeVar("C", bound=Block)
Origin = Callable[[str], str]

# Origins that an error need not mention: the user has just typed the value, or never did.
OBVIOUS = ("command line", "default")


def validate(schema: type[C], tree: Mapping[str, Any], *, origin: Origin, also: Sequence[str] = ()) -> C:
    """Validate, or raise one error that lists everything wrong, the problems of `also` first."""
    problems = list(also)
    config: C | None = None
    try:
        config = schema.model_validate(dict(tree))
    except ValidationError as error:
        # Check combinations of values only if every override could be parsed.
        details = [e for e in error.errors(include_url=False) if e["type"] != "value_error" or not also]
        problems += [_describe(schema, tree, detail, origin) for detail in details]
    problems += _unknown_names(schema, tree, origin)
    if problems or config is None:
        raise UserError(format_problems(list(dict.fromkeys(problems))))
    return config


def format_problems(problems: Sequence[str]) -> str:
    """Format one problem as it is, and several under a heading, a line each."""
    if len(problems) == 1:
        return problems[0]
    return "\n  ".join([f"{len(problems)} problems in the configuration:", *problems])


def unknown_key(schema: Schema, path: str, value: Any, where: str = "") -> str:
    """`rollout.sampels=4: unknown key; did you mean rollout.samples?`"""
    shown = path if isinstance(value, Mapping) else f"{path}={format_value(value)}"
    if path in former_keys.NOW:
        return f"{shown}{where}: {former_keys.NOW[path]}"
    close = nearest_keys(schema, path)
    parent = path.rpartition(".")[0]
    place = find(schema, parent) if parent else None
    if close:
        hint = f"did you mean {' or '.join(close)}?"
    elif place and place.block:
        hint = f"{parent} has {', '.join(place.block.model_fields)}"
    else:
        hint = f"the blocks are {', '.join(schema.model_fields)}"
    return f"{shown}{where}: unknown key; {hint}"


def _describe(schema: Schema, tree: Mapping[str, Any], detail: ErrorDetails, origin: Origin) -> str:
    if detail["type"] == "value_error":
        return str(detail["ctx"]["error"])
    path = _key_of(schema, detail["loc"])
    value = value_at(tree, path)
    where = _where(origin(path))
    if detail["loc"][-1:] == ("[key]",):
        return f"{path}={format_value(value)}{where}: unknown key; expected {detail['ctx']['expected']}"
    key = find(schema, path)
    if detail["type"] == "extra_forbidden" and key is None:
        return unknown_key(schema, path, value, where)
    expected = key.expected if key else "something else"
    hint = ""
    if key and key.choices and isinstance(value, str):
        close = nearest(value, key.choices)
        hint = f"; {close}" if close.startswith("did") else ""
    found = repr(value) if isinstance(value, str) else format_value(value)
    return f"{path}={format_value(value)}{where}: expected {expected}, found {found}{hint}"


def _unknown_names(schema: Schema, tree: Mapping[str, Any], origin: Origin) -> list[str]:
    problems = []
    for key in leaves(schema):
        for mark in key.metadata:
            name = value_at(tree, key.path)
            problem = mark.problem(name) if isinstance(mark, Registered) and isinstance(name, str) else None
            if problem:
                problems.append(f"{key.path}={name}{_where(origin(key.path))}: {problem}")
    return problems


def _key_of(schema: Schema, location: tuple[int | str, ...]) -> str:
    """The dotted key an error is about: the location less list positions and branches of a union."""
    path = ""
    for part in map(str, location):
        longer = f"{path}.{part}" if path else part
        here = find(schema, path) if path else None
        if path and here and not here.block and not here.open:
            break
        path = longer
    return path


def _where(origin: str) -> str:
    return "" if origin in OBVIOUS else f" ({origin})"
