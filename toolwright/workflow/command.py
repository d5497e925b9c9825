"""Search for the workflow that solves a data set best, and show what a search found.

Examples:
  toolwright workflow search --config quick              a search to look at: no key, no network
  toolwright workflow search --config deep data=[gsm8k]  real models
  toolwright workflow search search.select=aflow search.runs=4000
  toolwright workflow search run.name=NAME run.resume=true     go on; nothing is paid for twice
  toolwright workflow search search.select=portfolio           a list of well-known workflows, and no edits
  toolwright workflow show RUN
  toolwright workflow export RUN --as python                   the best as a file that needs only `openai`
  toolwright workflow train FOLDER data=[gsm8k] …              search and train the model in turn
  toolwright workflow record tables.json.gz data=[gsm8k] executor.name=chat    scores to be replayed
"""

from __future__ import annotations

from argparse import ArgumentTypeError
from typing import TYPE_CHECKING

from toolwright.cli import CommandParser
from toolwright.failures import InfrastructureFailure, TaskFailure, UserError, nearest

if TYPE_CHECKING:
    from toolwright.workflow.config import WorkflowConfig


def main(argv: list[str]) -> int:
    commands = {"search": search, "train": train, "show": show, "export": export, "record": record}
    if not argv or argv[0] in ("-h", "--help"):
        print(f"usage: toolwright workflow {' | '.join(commands)}\n\n{__doc__}")
        return 0
    if argv[0] not in commands:
        raise UserError(f"unknown command `workflow {argv[0]}`; {nearest(argv[0], commands)}")
    return commands[argv[0]](argv[1:])


def search(argv: list[str]) -> int:
    from toolwright.config.launch import launch

    words = ["--config-name" if word == "--config" else word for word in argv]
    words = [word.replace("--config=", "--config-name=", 1) for word in words]
    return launch("workflow", words, about=__doc__ or "", start=start, usage="workflow search")


def count(text: str) -> int:
    """An option that is a number from 1 on."""
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"expected a whole number from 1 on, found {text!r}")
    return int(text)


def start(config: WorkflowConfig, command: list[str]) -> None:
    from toolwright.workflow.launch import run

    try:
        run(config, command=command)
    except (InfrastructureFailure, TaskFailure) as error:
        raise UserError(str(error)) from error


def train(argv: list[str]) -> int:
    from pathlib import Path

    parser = CommandParser(
        prog="toolwright workflow train",
        description="Search for a workflow, train the model within it, and search again.",
    )
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="the folder for the runs of all rounds")
    parser.add_argument(
        "words", metavar="key=value", nargs="*", default=[], help="settings, as in `workflow search`"
    )
    parser.add_argument(
        "--rounds", type=count, default=1, help="how many trainings, each between two searches (1)"
    )
    parser.add_argument("--train", metavar="key=value", nargs="*", default=[], help="settings, as in `train`")
    options = parser.parse_intermixed_args(argv)
    from toolwright.config.from_words import from_words
    from toolwright.workflow.training import alternate

    config = from_words("workflow", options.words)
    model = alternate(options.folder, config, options.words, options.train, rounds=options.rounds)
    print(f"model   {model}")
    return 0


def record(argv: list[str]) -> int:
    import asyncio
    import time
    from pathlib import Path

    parser = CommandParser(
        prog="toolwright workflow record",
        description="Run many workflows on the tasks of a data set, and keep every score in one file.",
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="the new file, such as tables.json.gz")
    parser.add_argument(
        "words", metavar="key=value", nargs="*", default=[], help="settings, as in `workflow search`"
    )
    parser.add_argument(
        "--workflows", type=count, default=48, help="how many workflows: the portfolio and edits of it (48)"
    )
    parser.add_argument("--repeats", type=count, default=1, help="runs of each workflow on each task (1)")
    parser.add_argument("--minutes", type=float, default=60.0, help="minutes that it may take at most (60)")
    options = parser.parse_intermixed_args(argv)
    until = time.monotonic() + 60 * options.minutes
    from toolwright.config.from_words import from_words
    from toolwright.workflow.recording import record_tables

    config = from_words("workflow", options.words)
    made = record_tables(config, options.file, options.workflows, options.repeats, until=until)
    for table in asyncio.run(made):
        tasks = len(table.columns)
        print(f"{table.name}: {len(table.workflows)} workflows × {tasks} tasks × {table.repeats}", flush=True)
    return 0


def export(argv: list[str]) -> int:
    from pathlib import Path

    parser = CommandParser(
        prog="toolwright workflow export", description="The best workflow of a search, for others to run."
    )
    parser.add_argument("run", metavar="RUN", help="a run folder, or its name under runs/")
    forms = ("python", "aflow", "langgraph")
    parser.add_argument("--as", dest="form", choices=forms, default="python", help="(python)")
    parser.add_argument("--data", help="one of the run's data sets, if there are several")
    parser.add_argument("--out", type=Path, help="a file, for aflow a folder; without it, in RUN/export")
    options = parser.parse_args(argv)
    from toolwright.cli.view import find_run
    from toolwright.workflow.export.best import export_best

    print(export_best(find_run(options.run), options.form, data=options.data, out=options.out))
    return 0


def show(argv: list[str]) -> int:
    parser = CommandParser(prog="toolwright workflow show", description="What a search found.")
    parser.add_argument("run", metavar="RUN", help="a run folder, or its name under runs/")
    parser.add_argument("--data", help="one of the run's data sets; without it, all")
    parser.add_argument("--full", action="store_true", help="every candidate")
    options = parser.parse_args(argv)
    from toolwright.cli.view import find_run
    from toolwright.workflow import record as shown

    for name, record in shown.found_in(find_run(options.run), options.data).items():
        print(shown.summary(name, record))
        for title, lines in (
            ("the way to it", shown.path(record)),
            ("cost against score", shown.curve(record)),
            ("the tree", shown.tree(record, full=options.full)),
        ):
            print(f"\n{title}")
            print("\n".join(lines))
        print(f"\nthe best as code\n\n{shown.code(record)}")
    return 0
