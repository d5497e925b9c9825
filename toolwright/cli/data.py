"""Prepare public data sets as task files, and show what a file holds."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from toolwright.tasks import rows
from toolwright.tasks.datasets import DATASETS, download, task_rows

WIDEST = 160  # characters of a cell


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="toolwright data", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    show = commands.add_parser(
        "show", help="the first rows of a Parquet or JSON lines file, its columns and counts"
    )
    show.add_argument("file", type=Path)
    show.add_argument("--rows", type=int, default=5, help="how many rows (5)")
    prepare = commands.add_parser("prepare", help="turn a public data set into task files")
    prepare.add_argument("name", choices=DATASETS.names(), metavar="NAME", help=", ".join(DATASETS.names()))
    prepare.add_argument(
        "--from",
        dest="source",
        type=Path,
        metavar="FILE",
        help="its raw file; without it, the hub's are downloaded",
    )
    prepare.add_argument(
        "--out", type=Path, default=Path("data"), metavar="DIR", help="where to write (data)"
    )
    arguments = parser.parse_args(argv)
    if arguments.command == "show":
        _show(arguments.file, arguments.rows)
    else:
        _prepare(arguments.name, arguments.source, arguments.out)
    return 0


def _show(path: Path, count: int) -> None:
    found = rows.read(path)
    columns = list(dict.fromkeys(column for row in found for column in row))
    console = Console()
    table = Table(show_lines=True)
    table.add_column("row", justify="right")
    for column in columns:
        table.add_column(column, overflow="fold")
    for number, row in enumerate(found[: max(count, 0)], 1):
        table.add_row(str(number), *(Text(_cell(row.get(column))) for column in columns))
    console.print(table)
    console.print(Text(f"{len(found):,} rows; columns: {', '.join(columns)}"))
    if "data_source" in columns:
        for source, number in Counter(str(row.get("data_source")) for row in found).most_common():
            console.print(Text(f"{number:>9,}  {source}"))


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        text = value
    elif isinstance(value, list) and all(isinstance(item, dict) and "role" in item for item in value):
        text = "\n".join(f"{message['role']}: {message.get('content') or ''}" for message in value)
    else:
        text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= WIDEST else text[: WIDEST - 1] + "…"


def _prepare(name: str, source: Path | None, out: Path) -> None:
    if source is None:
        files = {f"{name}_{split}": (split, path) for split, path in download(name).items()}
    else:
        stem = source.name.split(".")[0].lower()
        split = next((split for split in DATASETS.get(name).target().files if split in stem), stem)
        files = {stem if stem.startswith(name) else f"{name}_{stem}": (split, source)}
    for target, (split, path) in files.items():
        prepared = task_rows(name, rows.read(path), split=split)
        destination = out / f"{target}.parquet"
        rows.write(destination, prepared)
        print(f"{len(prepared):,} tasks in {destination}")
