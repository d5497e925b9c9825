"""Search for the workflow that solves a data set best, and show what a search found.

Examples:
  toolwright workflow search --config quick              a search to look at: no key, no network
  toolwright workflow search --config deep data=[gsm8k]  real models
  toolwright workflow search search.select=aflow search.runs=4000
  toolwright workflow search run.name=NAME run.resume=true     go on; nothing is paid for twice
  toolwright workflow search search.select=portfolio           a list of well-known workflows, and no edits
  toolwright workflow show RUN
  toolwright workflow export RUN --as python                   the best as a file that needs only `openai`
  toolwright workflow policy FOLDER update.policy.lr=1e-3      teach a small policy to edit workflows
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from toolwright.failures import InfrastructureFailure, TaskFailure, UserError

if TYPE_CHECKING:
    from toolwright.workflow.config import WorkflowConfig


def main(argv: list[str]) -> int:
    if argv[:1] == ["search"]:
        from toolwright.config.launch import launch

        words = ["--config-name" if word == "--config" else word for word in argv[1:]]
        words = [word.replace("--config=", "--config-name=", 1) for word in words]
        return launch("workflow", words, about=__doc__ or "", start=start, usage="workflow search")
    if argv[:1] == ["show"]:
        return show(argv[1:])
    if argv[:1] == ["export"]:
        return export(argv[1:])
    if argv[:1] == ["policy"]:
        return policy(argv[1:])
    if not argv or argv[0] in ("-h", "--help"):
        print(f"usage: toolwright workflow search | show | export | policy\n\n{__doc__}")
        return 0
    raise UserError(f"toolwright workflow {argv[0]}: say search, show, export or policy")


def start(config: WorkflowConfig, command: list[str]) -> None:
    from toolwright.workflow.launch import run

    try:
        run(config, command=command)
    except (InfrastructureFailure, TaskFailure) as error:
        raise UserError(str(error)) from error


def policy(argv: list[str]) -> int:
    from pathlib import Path

    from toolwright.workflow import policy_training

    parser = argparse.ArgumentParser(
        prog="toolwright workflow policy", description="Teach a small policy to edit workflows, from nothing."
    )
    parser.add_argument("folder", metavar="FOLDER", help="a new one: warm/model speaks, model has learned")
    parser.add_argument("words", metavar="key=value", nargs="*", help="the trainer's, of the lessons")
    parser.add_argument("--seed", type=int, default=0)
    for name, default, text in (
        ("warm", policy_training.WARM_STEPS, "supervised steps that teach the language"),
        ("lessons", policy_training.LESSONS, "steps of the learner, each over worlds of its own"),
        ("worlds", policy_training.WORLDS, "simulated data sets a lesson"),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{text} ({default})")
    options = parser.parse_intermixed_args(argv)
    for name in ("warm", "lessons", "worlds"):
        if getattr(options, name) < 1:
            raise UserError(f"--{name} {getattr(options, name)}: at least 1")
    if "=" in options.folder:
        raise UserError(f"toolwright workflow policy {options.folder}: name a folder first")
    model = policy_training.train_policy(
        Path(options.folder),
        options.words,
        seed=options.seed,
        warm=options.warm,
        lessons=options.lessons,
        worlds=options.worlds,
    )
    print(f"policy  {model}")
    return 0


def export(argv: list[str]) -> int:
    from pathlib import Path

    parser = argparse.ArgumentParser(
        prog="toolwright workflow export", description="The best workflow of a search, for others to run."
    )
    parser.add_argument("run", metavar="RUN", help="a run folder, or its name under runs/")
    forms = ("python", "aflow", "langgraph")
    parser.add_argument("--as", dest="form", choices=forms, default="python", help="(python)")
    parser.add_argument("--data", help="one of the run's data sets, where there are several")
    parser.add_argument("--out", type=Path, help="a file, for aflow a folder; without it, in RUN/export")
    options = parser.parse_args(argv)
    from toolwright.cli.view import find_run
    from toolwright.workflow.export.best import export_best

    print(export_best(find_run(options.run), options.form, data=options.data, out=options.out))
    return 0


def show(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="toolwright workflow show", description="What a search found.")
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
