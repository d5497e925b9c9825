"""List runs, compare them, and remove what old ones keep.

Examples:
  toolwright runs                                        every run at or below runs/
  toolwright runs list --dir runs/demo --json
  toolwright runs compare grpo dapo                      what differs: settings, figures, held-out tasks
  toolwright runs prune grpo --keep-attempts 10          what would be removed; --yes removes it
  toolwright runs prune grpo dapo --attempts-before 100 --checkpoints 1 --yes
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path

from toolwright.cli import CommandParser
from toolwright.cli.view import find_run
from toolwright.failures import UserError
from toolwright.observe import retention, run_folders
from toolwright.observe.attempt import visible
from toolwright.observe.console import make_console, plain_table
from toolwright.observe.numbers import compact, duration, percent

COLOURS = {"running": "green", "finished": "", "stopped": "yellow"}


def main(argv: list[str]) -> int:
    listed = not argv or (argv[0].startswith("-") and argv[0] not in ("-h", "--help"))
    arguments = _parser().parse_args(["list", *argv] if listed else argv)
    work = {"list": _list, "compare": _compare, "prune": _prune}[arguments.action]
    work(arguments)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(prog="toolwright runs", description=__doc__)
    actions = parser.add_subparsers(dest="action", required=True)
    listing = actions.add_parser("list", help="list state, steps, last reward, size and age of each run")
    listing.add_argument(
        "--dir", type=Path, default=Path("runs"), help="the folder to search, at any depth (runs)"
    )
    compare = actions.add_parser("compare", help="compare settings, final figures, and held-out tasks")
    compare.add_argument("runs", nargs="+", metavar="RUN", help="run folders, or their names under runs/")
    compare.add_argument("--full", action="store_true", help="every metric")
    prune = actions.add_parser("prune", help="remove attempts and checkpoints that are no longer needed")
    prune.add_argument("runs", nargs="+", metavar="RUN", help="run folders, or their names under runs/")
    which = prune.add_mutually_exclusive_group()
    which.add_argument(
        "--attempts-before", type=int, metavar="STEP", help="remove attempts of steps before this one"
    )
    which.add_argument(
        "--keep-attempts", type=int, metavar="N", help="remove attempts, except those of the last N steps"
    )
    prune.add_argument("--checkpoints", type=int, metavar="N", help="remove checkpoints, except the newest N")
    prune.add_argument(
        "--yes",
        action="store_true",
        help="do it; without this option the command only lists what it would remove",
    )
    for each in (listing, compare, prune):
        each.add_argument("--json", action="store_true", help="machine-readable output")
    return parser


def _list(arguments: argparse.Namespace) -> None:
    folder = arguments.dir
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}; --dir says where runs are kept")
    states = [(run_folders.state(path), run_folders.size(path)) for path in run_folders.find(folder)]
    states.sort(key=lambda one: one[0].updated)
    if arguments.json:
        rows = [{**asdict(state), "path": str(state.path), "size": size} for state, size in states]
        print(json.dumps(rows, indent=2))
        return
    if not states:
        raise UserError(f"there are no runs at or below {folder}")
    from rich.text import Text

    table = plain_table("run", "kind", "state", "step>", "reward>", "held out>", "size>", "written>")
    for state, size in states:
        name = str(state.path.relative_to(folder)) if state.path != folder else str(folder)
        table.add_row(
            Text(visible(name)),
            state.kind or "?",
            Text(state.status, style=COLOURS[state.status]),
            f"{state.step}/{state.steps}" if state.steps else str(state.step),
            "-" if state.reward is None else compact(state.reward),
            "-" if state.accuracy is None else percent(state.accuracy),
            _bytes(size),
            f"{duration(max(0.0, time.time() - state.updated))} ago",
        )
    make_console().print(table)
    for problem in (state.problem for state, _ in states if state.problem):
        make_console().print(Text(visible(problem), style="red"))


def _compare(arguments: argparse.Namespace) -> None:
    from toolwright.config.keys import format_value
    from toolwright.observe.comparison import compare
    from toolwright.observe.evaluation import last_evaluation
    from toolwright.observe.evaluation_table import show_differences

    if len(arguments.runs) < 2:
        raise UserError("runs compare needs two runs or more")
    found = compare([find_run(name) for name in arguments.runs], every=arguments.full)
    if arguments.json:
        print(json.dumps({**asdict(found), "runs": [str(run) for run in found.runs]}, indent=2))
        return
    from rich.text import Text

    names = [visible(name) for name in arguments.runs]
    table = plain_table("setting", *names)
    for key, values in found.settings.items():
        shown = ["-" if value is None else visible(format_value(value)) for value in values]
        table.add_row(key, *map(Text, shown))
    if not found.settings:
        table.add_row("the same in all", *("" for _ in names))
    make_console().print(table)
    make_console().print()
    table = plain_table("at the end", *(f"{name}>" for name in names))
    for key, figures in found.figures.items():
        table.add_row(key, *("-" if figure is None else compact(figure) for figure in figures))
    make_console().print(table)
    for run, name, held_out in zip(found.runs[1:], names[1:], found.held_out, strict=True):
        if held_out is not None:
            samples = last_evaluation(run).samples
            make_console().print()
            show_differences(make_console(), held_out, first=names[0], second=name, samples=samples)


def _prune(arguments: argparse.Namespace) -> None:
    runs = [find_run(name) for name in arguments.runs]
    found = [
        one
        for run in runs
        for one in retention.removable(
            run,
            attempts_before=arguments.attempts_before,
            keep_attempts=arguments.keep_attempts,
            keep_checkpoints=arguments.checkpoints,
        )
    ]
    sizes = {path: run_folders.size(path) if path.is_dir() else path.stat().st_size for path in found}
    total = sum(sizes.values())
    if arguments.yes:
        for path in found:
            retention.remove(path)
    if arguments.json:
        listed = {str(path): size for path, size in sizes.items()}
        print(json.dumps({"removed": arguments.yes, "bytes": total, "files": listed}, indent=2))
        return
    for path, size in sizes.items():
        print(f"{_bytes(size):>10}  {visible(str(path))}")
    if not found:
        print("nothing to remove")
    elif arguments.yes:
        print(f"{_bytes(total):>10}  removed")
    else:
        print(f"{_bytes(total):>10}  would be removed; add --yes to do it")


def _bytes(size: float) -> str:
    for unit in ("B", "kB", "MB"):
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"
