"""verl's own keys with their defaults, and the nearest key to a misspelt one."""

from __future__ import annotations

import copy
import difflib
import functools
from pathlib import Path
from typing import Any

import yaml

from toolwright.config.keys import flatten

FILE = Path(__file__).with_name("keys.yaml")
PARTS = ("now", "then", "forks")


@functools.cache
def parts() -> dict[str, dict[str, Any]]:
    """Every key with its default, for each part of keys.yaml."""
    recorded = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return {part: dict(flatten(recorded[part])) for part in PARTS}


@functools.cache
def leaves() -> dict[str, Any]:
    """Every key with its default; if two releases disagree, the newer one's."""
    older_first = ("forks", "then", "now")
    return {key: value for part in older_first for key, value in parts()[part].items()}


@functools.cache
def blocks() -> frozenset[str]:
    return frozenset(
        ".".join(names[:depth])
        for names in (key.split(".") for key in leaves())
        for depth in range(1, len(names))
    )


def default_tree() -> dict[str, Any]:
    """The defaults as a tree, `${references}` as written."""
    tree: dict[str, Any] = {}
    for key, value in leaves().items():
        put(tree, key, copy.deepcopy(value))
    return tree


def put(tree: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key; a value in its path is replaced by a block."""
    *path, last = key.split(".")
    for name in path:
        if not isinstance(tree.get(name), dict):
            tree[name] = {}
        tree = tree[name]
    tree[last] = value


def nearest_key(key: str) -> str:
    """A hint for an unknown key: among those with a similar name, the one in the most similar place."""
    names = {other: other.rpartition(".")[2] for other in leaves()}
    close = difflib.get_close_matches(key.rpartition(".")[2], set(names.values()), n=3, cutoff=0.75)
    similar = [other for other, name in names.items() if name in close]
    similar.sort(key=lambda other: -difflib.SequenceMatcher(None, key, other).ratio())
    return f"did you mean {similar[0]}?" if similar else "verl has no similar key"
