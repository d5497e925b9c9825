"""Look at a run's attempts in the terminal: interactively, or as lines for pipes; export them."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolwright.failures import UserError, nearest
from toolwright.observe import attempt, rollouts
from toolwright.observe.console import make_console
from toolwright.observe.listing import list_attempts, list_groups, list_steps, show_attempts
from toolwright.trajectory import Group, Trajectory, as_groups

if TYPE_CHECKING:
    import numpy as np

    from toolwright.observe.attempt_index import AttemptTable

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
    if arguments.where is None and arguments.export is None:
        _print(arguments, run, files)
    else:
        _select(arguments, run, files)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="toolwright view", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", metavar="RUN", help="a run folder, or its name under runs/")
    parser.add_argument(
        "--step", type=int, metavar="N", help="the groups of this step (else of the last one)"
    )
    parser.add_argument(
        "--group", metavar="G", help="all attempts of this group; the start of its name is enough"
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--best", action="store_true", help="the attempt with the highest reward")
    which.add_argument("--worst", action="store_true", help="the attempt with the lowest reward")
    which.add_argument(
        "--where",
        metavar="FILTER",
        help="attempts of the step that fit, such as 'reward<0.5 stop=length tools>0 some words'",
    )
    parser.add_argument(
        "--export",
        metavar="FILE",
        help="write the attempts: FILE.md as a dialogue, FILE.jsonl as JSON lines, - prints JSON lines",
    )
    parser.add_argument("--full", action="store_true", help="every row and every character")
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
    hint = nearest(name, known) if known else "and there is no runs/ here with others"
    raise UserError(f"no run at {name}; {hint}")


def _step(arguments: argparse.Namespace, run: Path, files: dict[int, Path]) -> int:
    step = max(files) if arguments.step is None else int(arguments.step)
    if step not in files:
        kept = (
            ", ".join(map(str, files))
            if len(files) <= 12
            else f"{len(files)} from {min(files)} to {max(files)}"
        )
        raise UserError(f"{run} keeps no rollouts of step {step}; its steps: {kept}")
    return step


def _print(arguments: argparse.Namespace, run: Path, files: dict[int, Path]) -> None:
    console = make_console()
    one = arguments.best or arguments.worst
    if arguments.step is None and arguments.group is None and not one:
        list_steps(console, run, files, full=arguments.full)
        return
    step = _step(arguments, run, files)
    found = rollouts.read(files[step])
    groups = as_groups(found)
    if arguments.group is not None:
        named = {group.trajectories[0].group: group for group in groups}
        groups = [named[_group_name(named, arguments.group, step)]]
    if one:
        shown = [_extreme(groups, step, worst=arguments.worst)]
    elif arguments.group is not None:
        shown = groups[0].trajectories
    else:
        list_groups(console, run, step, groups, full=arguments.full)
        return
    rewards = [t.reward for t in attempt.scored(found)]
    show_attempts(console, step, shown, rewards=rewards, full=arguments.full)


def _select(arguments: argparse.Namespace, run: Path, files: dict[int, Path]) -> None:
    """List or export attempts of one step, of which only the small columns are read first."""
    import numpy as np

    from toolwright.observe.attempt_filter import AttemptFilter
    from toolwright.observe.attempt_index import AttemptIndex
    from toolwright.observe.export import print_json_lines, selected, write_export

    step = _step(arguments, run, files)
    table = AttemptIndex().refresh({step: (files[step], rollouts.version(files[step]) or (0, 0))})
    if table.problems:
        raise UserError(table.problems[step])
    places = AttemptFilter.parse(arguments.where or "").matching(table)
    if arguments.group is not None:
        names = table.texts["group"]
        group = _group_name(set(names.of(np.arange(len(table)))), arguments.group, step)
        places = places[names.codes[places] == names.words.find(group)]
    if arguments.best or arguments.worst:
        places = _extreme_place(table, places, step, worst=arguments.worst)
    if arguments.export is None:
        list_attempts(make_console(), table, places, full=arguments.full)
    elif arguments.export == "-":
        print_json_lines(selected(table, places))
    else:
        title = f"{run.resolve().name}: step {step} {arguments.where or ''}"
        count = write_export(Path(arguments.export), title, selected(table, places))
        print(f"{count} attempts written to {attempt.visible(arguments.export)}", file=sys.stderr)


def _extreme_place(
    table: AttemptTable, places: np.ndarray[Any, Any], step: int, *, worst: bool
) -> np.ndarray[Any, Any]:
    scored = [place for place in places if not table.numbers["failed"][place]]
    rewards = {place: table.numbers["reward"][place] for place in scored}
    known = {place: reward for place, reward in rewards.items() if reward == reward}
    if not known:
        raise UserError(f"none of these {len(places)} attempts of step {step} has a reward")
    chosen = (min if worst else max)(known, key=known.__getitem__)
    return places[places == chosen]


def _group_name(known: Iterable[str], name: str, step: int) -> str:
    names = list(known)
    if name in names:
        return name
    matches = [one for one in names if one.startswith(name)]
    if len(matches) == 1:
        return matches[0]
    found = (
        f"{len(matches)} groups of step {step} start with {name!r}"
        if matches
        else f"no group {name!r} in step {step}"
    )
    raise UserError(f"{found}; {nearest(name, names)}")


def _extreme(groups: Sequence[Group], step: int, *, worst: bool) -> Trajectory:
    every = [t for group in groups for t in group.trajectories]
    ranked = attempt.scored(every)
    if not ranked:
        reason = next((f": {t.failure.message}" for t in every if t.failure), "")
        raise UserError(f"none of these {len(every)} attempts of step {step} has a reward{reason}")
    return ranked[-1 if worst else 0]
