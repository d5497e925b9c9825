"""Train by reinforcement learning, as a verl command line says.

usage: python -m toolwright.trainer.main_ppo [key=value …] [options]

Examples:
  python -m toolwright.trainer.main_ppo algorithm.adv_estimator=grpo data.train_files=train.parquet \\
      actor_rollout_ref.model.path=model actor_rollout_ref.rollout.n=8 trainer.n_gpus_per_node=1
  python -m toolwright.trainer.main_ppo … --show      what it becomes here
  python -m toolwright.trainer.main_ppo … --fit       scaled down to this machine

Options:
  --show                   print the translation and stop
  --fit                    scale the run down to this machine; prints what it changed
  --dry-run                print the resolved configuration and stop
  --config-path DIR        with --config-name: a folder with a config of yours over verl's ppo_trainer
  --config-name NAME       its name there

Keys are verl's; a key of ours is said as toolwright.KEY=VALUE. docs/coming-from-verl.md lists them all.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, NoReturn

from toolwright.failures import UserError

PROGRAM = "toolwright.trainer.main_ppo"


class VerlParser(argparse.ArgumentParser):
    """Errors that are the user's to read."""

    def __init__(self) -> None:
        super().__init__(add_help=False, allow_abbrev=False)
        self.add_argument("words", nargs="*")
        self.add_argument("--help", "-h", action="store_true")
        for flag in ("--show", "--fit", "--dry-run"):
            self.add_argument(flag, action="store_true")
        self.add_argument("--config-path", "-cp", "--config-dir", "-cd")
        self.add_argument("--config-name", "-cn")

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; `python -m {PROGRAM} --help` lists the options")


def main(argv: list[str] | None = None) -> int:
    """What the user got wrong is one message on stderr and exit status 2."""
    line = sys.argv[1:] if argv is None else argv
    try:
        return _run(line)
    except UserError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{PROGRAM}: interrupted", file=sys.stderr)
        return 130


def _run(line: list[str]) -> int:
    args = VerlParser().parse_intermixed_args(line)
    if args.help:
        print((__doc__ or "").rstrip())
        return 0
    from toolwright.config.validate import listed
    from toolwright.verl import show
    from toolwright.verl.translate import translate

    made = translate(args.words, fit=args.fit, config=_config(args.config_path, args.config_name))
    if args.show:
        print(show.translation(made))
    if made.problems:
        raise UserError(listed(made.problems))
    if args.show:
        return 0
    for remark in show.remarks(made):
        print(remark, file=sys.stderr)
    return _launch(made.command, made.words, dry_run=args.dry_run, said=["python", "-m", PROGRAM, *line])


def _launch(command: str, words: list[str], *, dry_run: bool, said: list[str]) -> int:
    from toolwright.config.launch import launch

    def start(config: Any, _: list[str]) -> object:
        if command == "eval":
            from toolwright.cli.eval import Start

            return Start(as_json=False)(config, said)
        from toolwright.trainer.loop import train

        return train(config, command=said)

    try:
        return launch(command, [*words, *["--dry-run"][: int(dry_run)]], about=__doc__ or "", start=start)
    except UserError as error:
        raise UserError(
            f"{error}\n(in Toolwright's keys; --show tells which of verl's they came from)"
        ) from None


def _config(folder: str | None, name: str | None) -> Path | None:
    """The user's own file, where one is named; `ppo_trainer` is verl's, whose defaults hold anyway."""
    if name is None or name.removesuffix(".yaml") == "ppo_trainer":
        return None
    if folder is None:
        raise UserError(f"--config-name {name}: say where it is by --config-path DIR")
    return Path(folder) / f"{name.removesuffix('.yaml')}.yaml"
