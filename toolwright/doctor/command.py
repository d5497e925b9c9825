"""Check this machine, say what looks wrong with a run, or bundle both for an issue.

Examples:
  toolwright doctor                       every check of this machine, one line each
  toolwright doctor RUN                   what looks wrong with a run, the likeliest cause first
  toolwright doctor --report [RUN]        both in one zip for an issue, without secrets
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from toolwright.cli import CommandParser
from toolwright.cli.view import find_run
from toolwright.doctor.checks import Check, in_order
from toolwright.doctor.examination import examine
from toolwright.failures import UserError, nearest
from toolwright.observe.attempt import visible
from toolwright.registry import Entry

if TYPE_CHECKING:
    from rich.console import Console


STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red"}
NAME = 24  # columns


def main(argv: list[str]) -> int:
    arguments = _parser().parse_args(argv)
    run = find_run(arguments.run) if arguments.run else None
    if arguments.report:
        return _report(arguments, run)
    if arguments.with_attempts or arguments.out:
        raise UserError("--with-attempts and --out belong to --report")
    if run is None:
        return _machine(chosen(arguments.only), arguments.json)
    return _run(run, arguments.json)


def chosen(only: str | None) -> list[Entry[Check]]:
    """The checks of these names, or all of them."""
    entries = {entry.name: entry for entry in in_order()}
    names = [*entries] if only is None else [name.strip() for name in only.split(",")]
    for name in names:
        if name not in entries:
            raise UserError(f"no check is called {name!r}; {nearest(name, entries)}")
    return [entry for name, entry in entries.items() if name in names]


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(prog="toolwright doctor", description=__doc__)
    parser.add_argument("run", nargs="?", metavar="RUN", help="a run folder, or its name under runs/")
    parser.add_argument("--only", metavar="NAMES", help="run only these checks, joined by commas")
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    parser.add_argument("--report", action="store_true", help="write a zip for an issue, without secrets")
    parser.add_argument(
        "--with-attempts", action="store_true", help="with --report: include prompts and answers"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="with --report: the zip to write")
    return parser


def _machine(checks: list[Entry[Check]], as_json: bool) -> int:
    examined = []
    console = None if as_json else _console()
    for one in examine(checks):
        examined.append(one)
        if console:
            _line(console, one.result.status, one.name, one.result.text, one.result.remedy)
    if console is None:
        print(json.dumps([one.as_row() for one in examined], indent=1, ensure_ascii=False))
    else:
        console.print(f"\n{_counted(one.result.status for one in examined)}")
    return status_of(one.result.status for one in examined)


def _run(run: Path, as_json: bool) -> int:
    from toolwright.doctor.diagnosis import diagnose
    from toolwright.doctor.run_history import RunHistory

    history = RunHistory.read(run)
    found = diagnose(history)
    if as_json:
        rows = [asdict(one) for one in found]
        print(json.dumps({**history.facts(), "findings": rows}, indent=1, ensure_ascii=False))
    else:
        console = _console()
        console.print(visible(history.headline()), markup=False)
        for one in found:
            said = f"; the commonest answer: {one.quote}" if one.quote else ""
            _line(console, one.status, one.name, one.evidence + said, one.remedy)
        console.print("nothing looks wrong" if not found else f"\n{_counted(one.status for one in found)}")
    return status_of(one.status for one in found)


def _report(arguments: argparse.Namespace, run: Path | None) -> int:
    from toolwright.doctor.bundle import write_bundle

    out, held = write_bundle(arguments.out, run, with_attempts=arguments.with_attempts)
    if arguments.json:
        print(json.dumps({"file": str(out), "holds": held}, indent=1))
        return 0
    print(f"{out} holds")
    for name, about in held.items():
        print(f"  {name:<20}  {about}")
    print(
        "Values of secrets, home folders and the names of user and machine are removed. Look through it "
        "before you attach it to an issue."
    )
    return 0


def _line(console: Console, status: str, name: str, text: str, remedy: str) -> None:
    """One line, and one more for what to do. What attempts and servers wrote may be in it."""
    from rich.text import Text

    shown = Text.assemble(
        (f"{status:<8}", STYLES[status]), (f" {name:<{NAME}} ", "bold"), " ".join(visible(text).split())
    )
    console.print(shown, soft_wrap=True)
    if remedy:
        console.print(Text(" " * (10 + NAME) + "→ " + " ".join(visible(remedy).split())), soft_wrap=True)


def _console() -> Console:
    from rich.console import Console

    return Console(highlight=False, soft_wrap=True, file=sys.stdout)


def status_of(statuses: Iterable[str]) -> int:
    return int("problem" in set(statuses))


def _counted(statuses: Iterable[str]) -> str:
    every = list(statuses)
    problems, warnings = every.count("problem"), every.count("warning")
    if not problems and not warnings:
        return "all is well"
    counts = {"problem": problems, "warning": warnings}
    return " and ".join(f"{n} {word}{'s' * (n != 1)}" for word, n in counts.items() if n)
