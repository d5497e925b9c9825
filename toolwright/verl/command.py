"""Train by reinforcement learning from a verl command line.

usage: python -m toolwright.trainer.main_ppo [key=value …] [options]
       toolwright verl MODULE [key=value …] [options]

Examples:
  python -m toolwright.trainer.main_ppo algorithm.adv_estimator=grpo data.train_files=train.parquet \\
      actor_rollout_ref.model.path=model actor_rollout_ref.rollout.n=8 trainer.n_gpus_per_node=1
  python -m toolwright.trainer.main_ppo … --show      what it becomes here
  python -m toolwright.trainer.main_ppo … --fit       scaled down to this machine
  toolwright verl recipe.dapo.main_dapo … --fit       a module of verl's or of its recipes

Options:
  --show                   print the translation and stop
  --fit                    scale the run down to this machine; prints what it changed
  --dry-run                print the resolved configuration and stop
  --config-path DIR        with --config-name: a folder with a config of yours
  --config-name NAME       its name there, or a configuration of verl's: ppo_megatron_trainer

Keys are verl's. Write a key of ours as toolwright.KEY=VALUE. docs/coming-from-verl.md lists all keys.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from toolwright.cli import main as run_command
from toolwright.config.compose import Source, resolve
from toolwright.config.launch import launch
from toolwright.config.validate import format_problems
from toolwright.failures import UserError
from toolwright.verl import overrides
from toolwright.verl.flat import other_commands
from toolwright.verl.named_configs import config_of_module, near_of_module
from toolwright.verl.translate import translate
from toolwright.verl.translation import Translation

PROGRAM = "toolwright.trainer.main_ppo"
OURS = "these are Toolwright's keys"
CONFIGURED = ("train", "sft", "eval")  # commands that take keys
LAUNCHERS = ("torchrun", "accelerate", "python", "python3")


class VerlParser(argparse.ArgumentParser):
    """Options of the command, with errors for the user to read."""

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
    """Run the command. A mistake of the user is one message on stderr and exit status 2."""
    line = sys.argv[1:] if argv is None else argv
    return _guarded(lambda: _run(line, None, typed=["python", "-m", PROGRAM, *line]))


def main_module(argv: list[str] | None = None) -> int:
    """`toolwright verl MODULE …`: the same for a module by its name, whose configuration has one too."""
    words = sys.argv[2:] if argv is None else argv
    if not words or words[0].startswith("-"):
        print((__doc__ or "").rstrip())
        return 0 if words and words[0] in ("-h", "--help") else 2
    module, line = _launched(words)
    if other_commands.is_other_command(module):
        return _guarded(lambda: _run_other(line, module))
    return _guarded(lambda: _run(line, module, typed=["toolwright", "verl", module, *line]))


def _launched(words: list[str]) -> tuple[str, list[str]]:
    """The module and its arguments, behind a launcher's own: `torchrun … -m MODULE`, `launch MODULE …`."""
    module, line = words[0], list(words[1:])
    if module in LAUNCHERS and "-m" in line:
        place = line.index("-m")
        return line[place + 1], line[place + 2 :]
    is_other = other_commands.is_other_command
    if not is_other(module) and line and is_other(line[0]):
        return line[0], line[1:]
    return module, line


def _guarded(work: Callable[[], int]) -> int:
    try:
        return work()
    except UserError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{PROGRAM}: interrupted", file=sys.stderr)
        return 130


def flags(words: list[str]) -> tuple[list[str], bool, bool]:
    """The line without --show and --fit, and whether it has them."""
    return [word for word in words if word not in ("--show", "--fit")], "--show" in words, "--fit" in words


def _run_other(line: list[str], module: str) -> int:
    """An entry point of verl's beside PPO: by keys, or by options of a script."""
    words, show, fit = flags(line)
    found = other_commands.table_of(module)
    if found is None:
        return run(other_commands.arguments_for(module, words, fit=fit), show=show)
    args = VerlParser().parse_intermixed_args(words)
    file = config_file(args.config_path, args.config_name)
    parsed = overrides.parse(args.words, config=file if not isinstance(file, str) else None)
    command, table = found
    result = table.translate(parsed.values, command=command, fit=fit)
    result.notes += parsed.notes
    result.problems += parsed.problems
    result.ours += parsed.ours
    return run(result, show=show)


def run(
    translation: Translation,
    *,
    show: bool,
    start: Callable[[Translation], int] = lambda made: run_command([made.command, *made.words]),
) -> int:
    """Start what the line became, or show it."""
    if show:
        print(translation.describe())
    if translation.problems:
        raise UserError(format_problems(translation.problems))
    if show:
        if translation.command in CONFIGURED:
            _check(translation)
        return 0
    changed = [f"--fit: {text}" for text in translation.changes]
    for remark in (*changed, *(f"note: {text}" for text in translation.notes)):
        print(remark, file=sys.stderr)
    return start(translation)


def _run(line: list[str], module: str | None, typed: list[str]) -> int:
    args = VerlParser().parse_intermixed_args(line)
    if args.help:
        print((__doc__ or "").rstrip())
        return 0
    named, refused = args.config_name, list[str]()
    try:
        named = named or (config_of_module(module) if module else None)
    except UserError as error:
        refused.append(str(error))  # beside what the keys become
    config = config_file(args.config_path, named)
    translation = translate(args.words, fit=args.fit, config=config, files_may_miss=args.show)
    translation.problems[:0] = refused
    if module and not refused and translation.verl.family == "verl" and (near := near_of_module(module)):
        translation.near(near)

    def start(made: Translation) -> int:
        return _launch(made, dry_run=args.dry_run, typed=typed)

    return run(translation, show=args.show, start=start)


def _launch(translation: Translation, *, dry_run: bool, typed: list[str]) -> int:
    def start(config: Any, _: list[str]) -> object:
        if translation.command == "eval":
            from toolwright.cli.eval import Start

            return Start(as_json=False)(config, typed)
        from toolwright.trainer.loop import train  # brings torch

        return train(config, command=typed)

    words = [*translation.words, *["--dry-run"][: int(dry_run)]]
    try:
        return launch(translation.command, words, about=__doc__ or "", start=start)
    except UserError as error:
        raise UserError(f"{error}\n({OURS}; --show lists what they come from)") from None


def _check(translation: Translation) -> None:
    """Raise if the run would be refused whatever files are here: a value of the wrong type, for one."""
    try:
        resolve(Source(translation.command), translation.words)
    except UserError as error:
        raise UserError(f"{error}\n({OURS}; the list above says what they come from)") from None


def config_file(folder: str | None, name: str | None) -> Path | str | None:
    """The config file, or the name of a configuration of verl's that has no file here."""
    if name is None:
        return None
    short = name.removesuffix(".yaml")
    file = Path(folder or ".").expanduser() / f"{short}.yaml"
    return file if folder is not None and file.is_file() else short
