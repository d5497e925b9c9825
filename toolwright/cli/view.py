"""Look at a run's attempts in the terminal: interactively, or as lines for pipes; export them."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Collection
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from toolwright.cli import CommandParser
from toolwright.failures import UserError, nearest
from toolwright.observe import attempt, rollouts
from toolwright.observe.console import make_console
from toolwright.trajectory import as_groups

if TYPE_CHECKING:
    from toolwright.observe.attempt_index import Array, AttemptTable

LISTING = ("step", "group", "best", "worst", "full", "where", "export", "plain")
NO_TEXTUAL = (
    "toolwright: pip install 'toolwright[view]' adds the interactive viewer; this is the plain listing"
)


def main(argv: list[str]) -> int:
    arguments = _parser().parse_args(argv)
    run = find_run(arguments.run)
    files = rollouts.files(run)
    if not files:
        raise UserError(f"{run} has no rollouts: {run / 'rollouts'} holds no step_NNNNNN.parquet")
    if _is_interactive() and not any(getattr(arguments, name) not in (None, False) for name in LISTING):
        if find_spec("textual") is not None:
            from toolwright.observe.terminal.app import start

            start(run)
            return 0
        print(NO_TEXTUAL, file=sys.stderr)
    _show(arguments, run, files)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(prog="toolwright view", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", metavar="RUN", help="a run folder, or its name under runs/")
    parser.add_argument(
        "--step", type=int, metavar="N", help="show the groups of this step (default: the last)"
    )
    parser.add_argument(
        "--group", metavar="G", help="show all attempts of this group; the start of its name is enough"
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--best", action="store_true", help="show the attempt with the highest reward")
    which.add_argument("--worst", action="store_true", help="show the attempt with the lowest reward")
    which.add_argument(
        "--where",
        metavar="FILTER",
        help="list the attempts that fit, such as 'reward<0.5 stop=length tools>0 some words'",
    )
    parser.add_argument(
        "--export",
        metavar="FILE",
        help="write the attempts: FILE.md as a dialogue, FILE.jsonl as JSON lines, - prints JSON lines",
    )
    parser.add_argument("--full", action="store_true", help="show every row and every character")
    parser.add_argument("--plain", action="store_true", help="print lines in a terminal too")
    return parser


def _is_interactive() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def find_run(name: str) -> Path:
    """A run folder by its path, by its path below runs/, or by its own name if one run alone has it."""
    for path in (Path(name), Path("runs") / name):
        if path.is_dir():
            return path
    from toolwright.observe import run_folders

    known = {str(path.relative_to("runs")): path for path in run_folders.find(Path("runs"))}
    namesakes = [below for below, path in known.items() if path.name == name]
    if len(namesakes) == 1:
        return known[namesakes[0]]
    if namesakes:
        raise UserError(f"several runs are called {name}: {', '.join(namesakes)}; say which")
    hint = nearest(name, known) if known else "the folder runs/ has none here either"
    raise UserError(f"there is no run at {name}; {hint}")


def _step(arguments: argparse.Namespace, run: Path, files: dict[int, Path]) -> int:
    step = max(files) if arguments.step is None else int(arguments.step)
    if step not in files:
        kept = ", ".join(map(str, files))
        if len(files) > 12:
            kept = f"{len(files)} from {min(files)} to {max(files)}"
        raise UserError(f"{run} keeps no rollouts of step {step}; its steps: {kept}")
    return step


def _show(arguments: argparse.Namespace, run: Path, files: dict[int, Path]) -> None:
    """List or export attempts of one step. Only the small columns are read of those that are not chosen."""
    import numpy as np

    from toolwright.observe.attempt_filter import AttemptFilter
    from toolwright.observe.attempt_index import read_index
    from toolwright.observe.export import print_json_lines, selected, write_export
    from toolwright.observe.listing import list_attempts, list_groups, list_steps, show_attempts

    console, full, where = make_console(), arguments.full, arguments.where
    picks = arguments.group is not None or arguments.best or arguments.worst
    if arguments.step is None and not picks and where is None and arguments.export is None:
        list_steps(console, run, files, full=full)
        return
    step = _step(arguments, run, files)
    if not picks and where is None and arguments.export is None:
        list_groups(console, run, step, as_groups(rollouts.read(files[step])), full=full)
        return
    table = read_index({step: files[step]})
    places = AttemptFilter.parse(where or "").matching(table)
    if arguments.group is not None:
        names = table.texts["group"]
        group = _group_name(set(names.of(np.arange(len(table)))), arguments.group, step)
        places = places[names.codes[places] == names.words.find(group)]
    if arguments.best or arguments.worst:
        places = _extreme(table, places, step, worst=arguments.worst)
    if arguments.export == "-":
        print_json_lines(selected(table, places))
    elif arguments.export is not None:
        title = f"{run.resolve().name}: step {step} {where or ''}"
        count = write_export(Path(arguments.export), title, selected(table, places))
        print(f"{count} attempts written to {attempt.visible(arguments.export)}", file=sys.stderr)
    elif where is not None:
        list_attempts(console, table, places, full=full)
    else:
        shown = [one.trajectory for one in selected(table, places)]
        scored = table.numbers["reward"][(table.numbers["failed"] == 0) & ~np.isnan(table.numbers["reward"])]
        show_attempts(console, step, shown, rewards=scored.tolist(), full=full)


def _extreme(table: AttemptTable, places: Array, step: int, *, worst: bool) -> Array:
    """The place of the first attempt with the highest reward, or of the last with the lowest."""
    import numpy as np

    rewards = np.where(table.numbers["failed"] > 0, np.nan, table.numbers["reward"])[places]
    if np.isnan(rewards).all():
        said = next((f": {text}" for text in table.texts["failure"].of(places) if text), "")
        raise UserError(f"none of these {len(places)} attempts of step {step} has a reward{said}")
    at = len(places) - 1 - np.nanargmin(rewards[::-1]) if worst else np.nanargmax(rewards)
    return places[[at]]


def _group_name(names: Collection[str], name: str, step: int) -> str:
    matches = [one for one in names if one == name] or [one for one in names if one.startswith(name)]
    if len(matches) == 1:
        return matches[0]
    found = f"{len(matches)} groups of step {step} start with {name!r}"
    raise UserError(f"{found if matches else f'no group {name!r} in step {step}'}; {nearest(name, names)}")
