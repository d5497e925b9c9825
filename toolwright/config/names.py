"""The registered names that a key may take, read from the source so that nothing heavy is imported."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from toolwright.failures import nearest
from toolwright.registry import added_to

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Registered:
    """Marks a key whose value is a name, registered in `package` or in a table of that module."""

    kind: str
    package: str
    also: tuple[str, ...] = ()  # further packages
    own: bool = True  # may also be a reference to the user's own: `path.py:name`

    def names(self, mentioned: str = "") -> frozenset[str]:
        """All names. With `mentioned`, those in files that contain this text: far fewer to parse."""
        places = (self.package, *self.also)
        return frozenset(name for p in places for name in (*_registered_in(p, mentioned), *added_to(p)))

    def problem(self, name: str) -> str | None:
        """Describe what is wrong with the name, or return None. A reference is looked up when it is used."""
        if (self.own and ":" in name) or name in self.names(mentioned=f'"{name}"'):
            return None
        known = self.names()
        if not known:  # the registry itself checks the name later
            return None
        if self.own and name.endswith(".py"):
            return f"{name} is a file; name the {self.kind} in it, as {name}:NAME"
        hint = nearest(name, known)
        listed = f" Known: {', '.join(sorted(known))}" if hint.startswith("did") else ""
        return f"unknown {self.kind} {name!r}; {hint}{listed}"


@functools.cache
def _registered_in(package: str, mentioned: str) -> frozenset[str]:
    """Read from the source, not imported: most of these packages load torch."""
    place = ROOT.joinpath(*package.split(".")[1:])
    module = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    files = {module, *place.glob("*.py"), *place.glob("*/__init__.py")}
    texts = {file: file.read_text(encoding="utf-8") for file in files if file.is_file()}
    trees = {
        file: ast.parse(text)
        for file, text in texts.items()
        if mentioned in text and (file == module or ".register(" in text)
    }
    tables = _tabled(trees[module]) if module in trees else ()
    return frozenset((*tables, *(name for tree in trees.values() for name in _decorated(tree))))


def _decorated(tree: ast.Module) -> Iterator[str]:
    """`@registry.register("name", "other name")`"""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "register"
        ):
            yield from _strings(node.args)


def _tabled(tree: ast.Module) -> Iterator[str]:
    """`TABLE: dict[str, Callable] = {"name": function}` at the top of a module."""
    for node in tree.body:
        table = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        if isinstance(table, ast.Dict) and all(isinstance(v, ast.Name | ast.Attribute) for v in table.values):
            yield from _strings(table.keys)


def _strings(nodes: Iterable[ast.expr | None]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
