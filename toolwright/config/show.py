"""Show a resolved configuration as YAML, with the origin of each value beside it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from toolwright.config.batch import batch_line
from toolwright.config.block import Block
from toolwright.config.keys import Key, every_key, find
from toolwright.config.origin import ResolvedConfig
from toolwright.config.schema import Config

COLUMN = 44


@dataclass(frozen=True)
class YamlLine:
    """A line of YAML with a comment."""

    text: str
    comment: str = ""

    @property
    def plain(self) -> str:
        if not self.comment:
            return self.text
        before = f"{self.text:<{COLUMN}}  " if self.text.strip() else self.text
        return f"{before}# {self.comment}"


def show(
    resolved: ResolvedConfig, *, explain: bool = False, as_json: bool = False, notes: Sequence[str] = ()
) -> None:
    """Print the configuration as YAML, in colour on a terminal, or as JSON. `notes` follow as comments."""
    if as_json:
        print(json.dumps(by_key(resolved), indent=2, ensure_ascii=False))
        return
    lines = [*_lines(resolved, explain), *(YamlLine("", line) for line in notes)]
    if sys.stdout.isatty():
        _in_colour(lines)
    else:
        print("\n".join(line.plain for line in lines))


def by_key(resolved: ResolvedConfig) -> dict[str, dict[str, Any]]:
    """Each dotted key with its value and origin."""
    values = resolved.config.model_dump(mode="json")
    return {
        key: {"value": value, "origin": resolved.origin(key)}
        for key, value in _values(values, type(resolved.config))
    }


def _values(tree: dict[str, Any], schema: type[Block], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        path = prefix + name
        key = find(schema, path)
        if isinstance(value, dict) and value and key and (key.block or key.open):
            yield from _values(value, schema, path + ".")
        else:
            yield path, value


def _lines(resolved: ResolvedConfig, explain: bool) -> Iterator[YamlLine]:
    described = {key.path: key for key in every_key(type(resolved.config))} if explain else {}
    shown: list[str] = []
    for path, value in _values(resolved.config.model_dump(mode="json"), type(resolved.config)):
        *blocks, name = path.split(".")
        for depth in range(len(blocks)):
            if shown[: depth + 1] != blocks[: depth + 1]:
                shown = blocks[: depth + 1]
                yield YamlLine(f"{'  ' * depth}{blocks[depth]}:")
                yield from _description(described.get(".".join(shown)), depth + 1)
        shown = blocks
        indent = "  " * len(blocks)
        yield YamlLine(f"{indent}{_entry(name, value)}", resolved.origin(path))
        yield from _description(described.get(path), len(blocks) + 1)
    if isinstance(resolved.config, Config):
        yield YamlLine("", batch_line(resolved.config))


def _entry(name: str, value: Any) -> str:
    """`name: value` on one line, whatever the value."""
    text = yaml.safe_dump(
        {name: value}, default_flow_style=True, allow_unicode=True, width=10**9, sort_keys=False
    )
    return text.strip()[1:-1]


def _description(key: Key | None, depth: int) -> Iterator[YamlLine]:
    if key is None:
        return
    if key.block:
        # pydantic gives a block without a docstring its own; ours begin in the class itself.
        text = key.description or (key.block.__doc__ if "__doc__" in vars(key.block) else "") or ""
    else:
        text = f"{key.description} ({key.expected})" if key.description else key.expected
    if text:
        yield YamlLine("  " * depth, text.strip().splitlines()[0])


def _in_colour(lines: list[YamlLine]) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(soft_wrap=True, highlight=False)
    styles = {"default": "dim", "preset": "cyan", "file": "green", "command": "bold yellow"}
    for line in lines:
        if not line.text.strip():
            console.print(Text(line.plain, style="italic dim"))
            continue
        style = styles.get(line.comment.split(" ")[0], "bold" if not line.comment else "")
        text = Text(line.plain[: len(line.plain) - len(line.comment)], style="dim" if style == "dim" else "")
        console.print(
            text.append(line.comment, style=style) if line.comment else Text(line.text, style=style)
        )
