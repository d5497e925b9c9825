"""The schema as dotted keys: their types and descriptions, and the nearest key to a misspelt one."""

from __future__ import annotations

import ast
import difflib
import functools
import inspect
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from toolwright.config.block import Block
from toolwright.config.names import Registered

Schema = type[Block]


@dataclass(frozen=True)
class Key:
    """A key of the configuration: its type and what it is for."""

    path: str
    annotation: Any
    metadata: tuple[Any, ...] = ()
    owner: Schema | None = None  # the block that has it

    @property
    def block(self) -> Schema | None:
        """The schema of a block of keys; None for a value."""
        return self.annotation if _is_block(self.annotation) else None

    @property
    def description(self) -> str:
        return _descriptions(self.owner).get(self.path.rpartition(".")[2], "") if self.owner else ""

    @property
    def open(self) -> bool:
        """Takes keys that the schema does not name."""
        return self.annotation is Any or get_origin(self.annotation) is dict

    @property
    def text(self) -> bool:
        """Takes text, or lists of it, and nothing else, so `run.name=2024` need not be quoted."""
        kinds = _alternatives(self.annotation)
        return str in kinds and all(kind in (str, list[str]) for kind in kinds)

    @property
    def expected(self) -> str:
        marks = [mark for mark in self.metadata if isinstance(mark, Registered)]
        names = {name for mark in marks for name in mark.names()}
        if not names:
            return _expected(self.annotation, self.metadata)
        own = ", or path.py:name" if any(mark.own for mark in marks) else ""
        null = " or null" if type(None) in get_args(self.annotation) else ""
        return f"one of {', '.join(sorted(names))}{own}{null}"

    @property
    def choices(self) -> list[str]:
        """The words of a `Literal`."""
        parts = _alternatives(self.annotation)
        return [str(word) for part in parts if get_origin(part) is Literal for word in get_args(part)]


def every_key(schema: Schema, prefix: str = "") -> Iterator[Key]:
    """All blocks and values in the order of the schema, each block before its keys."""
    for name in schema.model_fields:
        key = _key(schema, name, f"{prefix}{name}")
        yield key
        if key.block:
            yield from every_key(key.block, key.path + ".")


def _key(schema: Schema, name: str, path: str) -> Key:
    field = schema.model_fields[name]
    return Key(path, field.annotation, tuple(field.metadata), schema)


@functools.cache
def _descriptions(schema: Schema) -> dict[str, str]:
    """What each key is for: the text below it, or its `description`. Few commands ask: pydantic's
    `use_attribute_docstrings` would read the source at every start, which takes 40 ms."""
    found = {name: field.description or "" for name, field in schema.model_fields.items()}
    for block in (one for one in reversed(schema.__mro__) if issubclass(one, Block)):
        (tree,) = ast.parse(inspect.getsource(block)).body
        for key, text in pairwise(getattr(tree, "body", ())):
            if isinstance(key, ast.AnnAssign) and isinstance(text, ast.Expr):
                found[ast.unparse(key.target)] = " ".join(ast.literal_eval(text.value).split())
    return found


def leaves(schema: Schema) -> list[Key]:
    return [key for key in every_key(schema) if not key.block]


def find(schema: Schema, path: str) -> Key | None:
    """The key at this path, also in open dictionaries; None if the schema has no such key."""
    here: Key | None = Key("", schema)
    for name in path.split("."):
        here = _beneath(here, name) if here else None
    return here


def nearest_keys(schema: Schema, path: str) -> list[str]:
    """Suggestions for an unknown key: the same name in another block, or the closest spelling."""
    known = [key.path for key in every_key(schema)]
    last = path.rpartition(".")[2]
    namesakes = [other for other in known if other.rpartition(".")[2] == last][:3]
    by_name = {other.rpartition(".")[2]: other for other in reversed(known)}
    similar = [by_name[name] for name in difflib.get_close_matches(last, by_name, n=1, cutoff=0.75)]
    return _close(path, known, 0.85) or namesakes or _close(path, known, 0.6) or similar


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every value with its dotted key; an empty dictionary counts as a value."""
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def value_at(tree: Any, path: str) -> Any:
    """The value at a dotted key of nested dictionaries; None if there is none."""
    for name in path.split("."):
        tree = tree.get(name) if isinstance(tree, Mapping) else None
    return tree


def mapped(tree: Any, change: Callable[[Any], Any]) -> Any:
    """Change every value and every key of nested dictionaries, lists and tuples."""
    if isinstance(tree, Mapping):
        return {change(key): mapped(value, change) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(mapped(value, change) for value in tree)
    return change(tree)


def format_value(value: Any) -> str:
    """Format a value as on the command line."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name}: {format_value(item)}' for name, item in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(format_value(item) for item in value)}]"
    return str(value)


def _beneath(key: Key, name: str) -> Key | None:
    path = f"{key.path}.{name}" if key.path else name
    block = next((part for part in _alternatives(key.annotation) if _is_block(part)), None)
    if block:
        return _key(block, name, path) if name in block.model_fields else None
    if key.annotation is Any:
        return Key(path, Any)
    if get_origin(key.annotation) is dict:
        return Key(path, get_args(key.annotation)[1])
    return None


def _close(path: str, known: list[str], cutoff: float) -> list[str]:
    return difflib.get_close_matches(path, known, n=1, cutoff=cutoff)


def _is_block(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Block)


def _alternatives(annotation: Any) -> list[Any]:
    """The members of a union without null; `[annotation]` for any other type."""
    if get_origin(annotation) in (Union, types.UnionType):
        return [part for part in get_args(annotation) if part is not type(None)]
    return [annotation]


def _expected(annotation: Any, metadata: tuple[Any, ...] = ()) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        marks = (mark for one in arguments[1:] for mark in getattr(one, "metadata", (one,)))
        return _expected(arguments[0], (*metadata, *marks))
    if origin in (Union, types.UnionType):
        phrases = [
            f"{{{', '.join(part.model_fields)}}}" if _is_block(part) else _expected(part, metadata)
            for part in _alternatives(annotation)
        ]
        return " or ".join([*phrases, "null"] if type(None) in arguments else phrases)
    if origin is Literal:
        return ("one of " if len(arguments) > 1 else "") + ", ".join(map(str, arguments))
    if origin is list:
        return f"a list of {_plural(arguments[0])}"
    if origin is tuple:
        return f"a list of {len(arguments)} {_plural(arguments[0])}"
    if annotation in (int, float):
        return _number("integer" if annotation is int else "number", metadata)
    if annotation is bool:
        return "true or false"
    if annotation is str:
        return "text"
    return "anything" if annotation is Any else "a block of keys"


def _number(noun: str, metadata: tuple[Any, ...]) -> str:
    signs = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}
    bounds = [(name, getattr(mark, name)) for mark in metadata for name in signs if hasattr(mark, name)]
    if bounds == [("gt", 0)]:
        return f"a positive {noun}"
    article = "an" if noun == "integer" else "a"
    within = " and ".join(f"{signs[name]} {bound}" for name, bound in bounds)
    return f"{article} {noun} {within}".rstrip()


def _plural(annotation: Any) -> str:
    if get_origin(annotation) is Annotated:
        return _expected(annotation).removeprefix("a ").replace("number", "numbers", 1)
    return {str: "strings", float: "numbers", int: "integers"}.get(annotation, "values")
