"""The console that commands print to, and plain tables without lines."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PIPED_WIDTH = 120


def make_console() -> Console:
    from rich.console import Console

    # A pipe has no width: rich would take 80 columns and fold what somebody may want to search.
    width = None if sys.stdout.isatty() else max(PIPED_WIDTH, shutil.get_terminal_size((0, 0)).columns)
    return Console(width=width, highlight=False)


def plain_table(*columns: str, expand: bool = False) -> Table:
    """`NAME>`: numbers, on the right."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0), expand=expand)
    for name in columns:
        number = name.endswith(">")
        table.add_column(name.removesuffix(">"), justify="right" if number else "left", overflow="fold")
    return table
