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
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from toolwright.failures import UserError

if TYPE_CHECKING:
    from toolwright.verl.flat import FlatTranslation
    from toolwright.verl.row import TranslatedSetting
    from toolwright.verl.translate import Translation

PROGRAM = "toolwright.trainer.main_ppo"
ARROW = "  ←  "
NOTED = "Without meaning here, or to be known:"
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
    return _guarded(sys.argv[1:] if argv is None else argv, typed=["python", "-m", PROGRAM])


def main_module(argv: list[str] | None = None) -> int:
    """`toolwright verl MODULE …`: the same for a module by its name, whose configuration has one too."""
    words = sys.argv[2:] if argv is None else argv
    if not words or words[0].startswith("-"):
        print((__doc__ or "").rstrip())
        return 0 if words and words[0] in ("-h", "--help") else 2
    module, line = _launched(words)
    return _guarded(line, module=module, typed=["toolwright", "verl", module])


def _launched(words: list[str]) -> tuple[str, list[str]]:
    """The module and its arguments, behind a launcher's own: `torchrun … -m MODULE`, `launch MODULE …`."""
    from toolwright.verl.flat.other_commands import is_other_command

    module, line = words[0], list(words[1:])
    if module in LAUNCHERS and "-m" in line:
        place = line.index("-m")
        return line[place + 1], line[place + 2 :]
    if not is_other_command(module) and line and is_other_command(line[0]):
        return line[0], line[1:]
    return module, line


def flags(words: list[str]) -> tuple[list[str], bool, bool]:
    """The line without --show and --fit, and whether it has them."""
    return [word for word in words if word not in ("--show", "--fit")], "--show" in words, "--fit" in words


def _guarded(line: list[str], *, typed: list[str], module: str | None = None) -> int:
    try:
        return _run_other(line, module, typed) if _is_other(module) else _run(line, module, typed)
    except UserError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{PROGRAM}: interrupted", file=sys.stderr)
        return 130


def _is_other(module: str | None) -> bool:
    from toolwright.verl.flat.other_commands import is_other_command

    return module is not None and is_other_command(module)


def _run_other(line: list[str], module: str | None, typed: list[str]) -> int:
    """An entry point of verl's beside PPO: by keys, or by options of a script."""
    from toolwright.verl import overrides
    from toolwright.verl.flat import other_commands

    words, show, fit = flags(line)
    found = other_commands.table_of(str(module))
    if found is None:
        result = other_commands.arguments_for(str(module), words, fit=fit)
    else:
        args = VerlParser().parse_intermixed_args(words)
        file = config_file(args.config_path, args.config_name)
        parsed = overrides.parse(args.words, config=file if not isinstance(file, str) else None)
        command, table = found
        result = table.translate(parsed.values, command=command, fit=fit)
        result.notes += parsed.notes
        result.problems += parsed.problems
        result.words += parsed.ours
    return run_flat(result, show=show, typed=[*typed, *line])


def run_flat(translation: FlatTranslation, *, show: bool, typed: list[str]) -> int:
    from toolwright.cli import main as run_command
    from toolwright.config.validate import format_problems

    if show:
        print(translation.describe())
    if translation.problems:
        raise UserError(format_problems(translation.problems))
    if show:
        if translation.command in CONFIGURED:
            check(translation.command, translation.line)
        return 0
    for text in (*translation.changes, *translation.notes):
        print(f"note: {text}", file=sys.stderr)
    return run_command([translation.command, *translation.line])


def _run(line: list[str], module: str | None, typed: list[str]) -> int:
    args = VerlParser().parse_intermixed_args(line)
    if args.help:
        print((__doc__ or "").rstrip())
        return 0
    from toolwright.config.validate import format_problems
    from toolwright.verl.named_configs import near_of_module
    from toolwright.verl.translate import come_near, translate

    refused: list[str] = []
    named = args.config_name or _config_of(module, refused)
    config = config_file(args.config_path, named)
    translation = translate(args.words, fit=args.fit, config=config, files_may_miss=args.show)
    translation.problems[:0] = refused
    if module and not refused and translation.verl.family == "verl" and (near := near_of_module(module)):
        come_near(near, translation)
    if args.show:
        print(describe(translation))
    if translation.problems:
        raise UserError(format_problems(translation.problems))
    if args.show:
        check(translation.command, translation.words)
        return 0
    for remark in remarks(translation):
        print(remark, file=sys.stderr)
    return _launch(translation.command, translation.words, dry_run=args.dry_run, typed=[*typed, *line])


def _config_of(module: str | None, refused: list[str]) -> str | None:
    """The configuration of a module. Why it is refused joins `refused`, beside what its keys become."""
    from toolwright.verl.named_configs import config_of_module

    try:
        return None if module is None else config_of_module(module)
    except UserError as error:
        refused.append(str(error))
        return None


def _launch(command: str, words: list[str], *, dry_run: bool, typed: list[str]) -> int:
    from toolwright.config.launch import launch

    def start(config: Any, _: list[str]) -> object:
        if command == "eval":
            from toolwright.cli.eval import Start

            return Start(as_json=False)(config, typed)
        from toolwright.trainer.loop import train

        return train(config, command=typed)

    try:
        return launch(command, [*words, *["--dry-run"][: int(dry_run)]], about=__doc__ or "", start=start)
    except UserError as error:
        raise UserError(f"{error}\n({OURS}; --show lists what they come from)") from None


def check(command: str, words: list[str]) -> None:
    """Raise if the run would be refused whatever files are here: a value of the wrong type, for one."""
    from toolwright.config.compose import Source, resolve

    try:
        resolve(Source(command), words)
    except UserError as error:
        raise UserError(f"{error}\n({OURS}; the list above says what they come from)") from None


def describe(translation: Translation) -> str:
    """What became of every key, in four lists; the files it needs, and the same run as a command of ours."""
    listed = {
        "Translated:": list(_settings(translation)),
        "Nearly as in verl (--fit):": translation.changes,
        NOTED: translation.notes,
        "Refused:": translation.problems,
        "Files that are not here:": [path for path, here in translation.verl.files.items() if not here],
        "The same run as a command of Toolwright:": [
            shlex.join(["toolwright", translation.command, *translation.words])
        ],
    }
    sections = [[heading, *(f"  {line}" for line in lines)] for heading, lines in listed.items() if lines]
    return "\n\n".join("\n".join(section) for section in sections)


def remarks(translation: Translation) -> list[str]:
    """What a run prints before it starts."""
    changed = [f"--fit: {text}" for text in translation.changes]
    return [*changed, *(f"note: {text}" for text in translation.notes)]


def _settings(translation: Translation) -> Iterator[str]:
    from toolwright.config.keys import format_value

    ours = [f"{setting.ours}={format_value(setting.value)}" for setting in translation.settings]
    width = max(map(len, ours), default=0)
    for text, setting in zip(ours, translation.settings, strict=True):
        yield f"{text:<{width}}{ARROW}{_origin(setting, translation)}"
    for word in translation.ours:
        yield f"{word:<{width}}{ARROW}toolwright.{word}"


def _origin(setting: TranslatedSetting, translation: Translation) -> str:
    verl = translation.verl
    if own := translation.typed_sources(setting):
        return ", ".join(dict.fromkeys(verl.as_typed(key) for key in own))
    return f"{', '.join(verl.as_typed(key) for key in setting.sources)} (verl's default)"


def config_file(folder: str | None, name: str | None) -> Path | str | None:
    """The config file, or the name of a configuration of verl's that has no file here."""
    if name is None:
        return None
    short = name.removesuffix(".yaml")
    file = Path(folder or ".").expanduser() / f"{short}.yaml"
    return file if folder is not None and file.is_file() else short
