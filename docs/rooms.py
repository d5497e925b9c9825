"""Draws the rooms of docs/architecture.md from the layers in pyproject.toml, for docs/references.py.

Each room's line is the first line of its docstring, in Chinese that of chinese/architecture.yaml.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HIDDEN = {"__main__"}


def layers() -> list[list[str]]:
    """The rooms of each layer, from the top down."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (named,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    listed = [[room.strip() for room in layer.split("|")] for layer in named]
    return [layer for layer in listed if not HIDDEN & set(layer)]


def line_of(room: str) -> str:
    """The first sentence that a room says of itself."""
    folder = ROOT / "toolwright" / room
    file = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    return (ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").split("\n")[0]


def drawn(say: Callable[[str], str]) -> str:
    """The picture, and a row for each room, in the language of `say`."""
    rows = ["  ".join(layer) for layer in layers()]
    width = max(map(len, rows))
    picture = "\n".join(f"│ {row:^{width}} │" for row in rows)
    edge = "─" * (width + 2)
    table = "\n".join(
        f"| `{room}{'/' if (ROOT / 'toolwright' / room).is_dir() else '.py'}` | {say(line_of(room))} |"
        for layer in layers()
        for room in layer
    )
    drawing = f"```text\n┌{edge}┐\n{picture}\n└{edge}┘\n```\n"
    return f"{drawing}\n{say('| room | what lives there |')}\n| --- | --- |\n{table}\n"
