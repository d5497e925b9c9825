"""Launch a command: parse its options, resolve its configuration, and start one run or a sweep."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from toolwright import __version__
from toolwright.config.compose import Source, composer, resolve
from toolwright.config.hydra_errors import as_user_errors
from toolwright.config.origin import ResolvedConfig
from toolwright.config.overrides import ParsedOverrides
from toolwright.config.show import show
from toolwright.config.validate import format_problems
from toolwright.failures import UserError
from toolwright.registry import load_object

Start = Callable[[Any, list[str]], object]
Work = Callable[[ResolvedConfig, list[str]], object]
DescribeAuto = Callable[[Any], Sequence[str]]  # lines about the `auto` values of a configuration
MULTIRUN = "hydra.mode=MULTIRUN"

OPTIONS = """\
Options:
  --dry-run                  print the resolved configuration and stop
  --json                     machine-readable output
  --config-dir DIR           a folder of your presets and configs, laid out like the built-in ones
  --config-name, -cn NAME    your own config; its defaults list begins with `- {primary}`
  --multirun, -m             a run for each combination of values: key=a,b
  --cfg job|hydra|all        print what Hydra composed, before validation
  --version                  print the version

All keys with their values, origins and descriptions:
  toolwright config{schema} --explain
"""


class LaunchParser(argparse.ArgumentParser):
    """Our options and the supported ones of Hydra, with errors for the user to read."""

    def __init__(self, command: str) -> None:
        super().__init__(add_help=False)
        self.command = command
        self.add_argument("overrides", nargs="*")
        for flags in (("--help", "-h"), ("--multirun", "-m"), ("--dry-run",), ("--explain",), ("--json",)):
            self.add_argument(*flags, action="store_true")
        for flags in (("--config-dir", "-cd"), ("--config-name", "-cn")):
            self.add_argument(*flags)
        self.add_argument("--cfg", "-c", choices=["job", "hydra", "all"])
        self.add_argument("--config-path", "-cp")
        self.add_argument("--experimental-rerun")
        self.add_argument("--version", action="version", version=f"toolwright {__version__}")

    def parse(self, argv: list[str]) -> argparse.Namespace:
        args = self.parse_intermixed_args(argv)
        for option, instead in (("config_path", "--config-dir"), ("experimental_rerun", "run.resume=true")):
            if getattr(args, option):
                raise UserError(f"--{option.replace('_', '-')} is not supported here; use {instead}")
        return args

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; `toolwright {self.command.split()[0]} --help` lists the options")


def source_of(command: str, args: argparse.Namespace) -> Source:
    """The source that the options name. `--config-name` may also be a path to the file."""
    name, folder = args.config_name, args.config_dir
    if name and folder is None and (Path(name).is_file() or Path(f"{name}.yaml").is_file()):
        folder, name = str(Path(name).parent), Path(name).name
    return Source(command, folder, name.removesuffix(".yaml") if name else None)


def help_text(command: str, about: str, source: Source) -> str:
    """Usage, the purpose of the command, its groups with their presets, and its options."""
    with composer(source) as composing:
        groups = composing.vocabulary().groups
    width, columns = max(map(len, groups), default=0), shutil.get_terminal_size().columns - 2
    indent = " " * (width + 4)
    lines = [
        textwrap.fill(f"  {group:<{width}}  {', '.join(choices)}", columns, subsequent_indent=indent)
        for group, choices in groups.items()
    ]
    schema = "" if source.primary == "train" else f" {source.primary}"
    return "\n".join(
        [
            f"usage: toolwright {command} [key=value …] [group=preset …] [options]\n",
            f"{about.strip()}\n",
            *(["Config groups and their presets:", *lines, ""] if lines else []),
            OPTIONS.format(primary=source.primary, schema=schema),
        ]
    )


def launch(
    command: str,
    argv: list[str],
    *,
    about: str,
    start: Start | str | None,
    usage: str = "",
    describe_auto: DescribeAuto | None = None,
) -> int:
    """Resolve the configuration of the command line, then call `start(config, command)`.

    `start` is a function, or the reference of one to import only then. Without it, print the configuration.
    `describe_auto` adds to --explain what `auto` would become.
    """
    args = LaunchParser(usage or command).parse(argv)
    source = source_of(command, args)
    if args.help:
        print(help_text(usage or command, about, source))
        return 0
    showing = partial(_show, explain=args.explain, as_json=args.json, describe_auto=describe_auto)
    work: Work = showing if start is None or args.dry_run else partial(_begin, start)
    if args.cfg:
        _print_composed(source, args)
    elif args.multirun or MULTIRUN in args.overrides:
        _sweep(source, [word for word in args.overrides if word != MULTIRUN], work)
    elif work is showing:
        work(resolve(source, args.overrides), [])
    else:
        _run(source, args.overrides, work, ["toolwright", *(usage or command).split(), *argv])
    return 0


def _show(
    resolved: ResolvedConfig,
    _: list[str],
    *,
    explain: bool,
    as_json: bool,
    describe_auto: DescribeAuto | None,
) -> None:
    notes = describe_auto(resolved.config) if explain and describe_auto else ()
    show(resolved, explain=explain, as_json=as_json, notes=notes)


def _begin(start: Start | str, resolved: ResolvedConfig, command: list[str]) -> object:
    if isinstance(start, str):
        return load_object(start)(resolved.config, command=command)
    return start(resolved.config, command)


class _JobFailed(Exception):
    """Carries an error of a job past `as_user_errors`, which would report it as the user's mistake."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


def _run(source: Source, words: list[str], work: Work, command: list[str]) -> None:
    with composer(source) as composing:
        parsed = composing.parse(words)
        resolved = composing.resolve(parsed)
    if not _says_something_to_hydra(source, parsed):
        work(resolved, command)
        return
    failures: list[Exception] = []

    def once(composed: DictConfig) -> None:
        try:
            work(resolved, command)
        except Exception as error:
            # Hydra would print a line of its own before the message.
            failures.append(error)

    _hydra_main(source, once, parsed.lines)
    if failures:
        raise failures[0]


def _says_something_to_hydra(source: Source, parsed: ParsedOverrides) -> bool:
    """True if callbacks, variables or a folder may be set for the job. Our presets ask Hydra for none of it,
    and it would compose the configuration twice more, which takes longer than all else before the run."""
    own_file = source.folder is not None or source.config_name is not None
    return own_file or any(override.key_or_group.startswith("hydra") for override in parsed.overrides)


def _sweep(source: Source, words: list[str], work: Work) -> None:
    with composer(source) as composing:
        parsed = composing.parse(words, sweep=True)
        if parsed.problems:
            raise UserError(format_problems(parsed.problems))
        for job in composing.jobs(parsed):
            composing.check_job(job)
    # Jobs that differ only in their names need no numbers.
    task = _Job(source, work, time.strftime("%Y%m%d-%H%M%S"), numbered=parsed.swept != {"run.name"})
    try:
        _hydra_main(source, task, parsed.lines, "--multirun")
    except _JobFailed as failed:
        raise failed.error from None


@dataclass(frozen=True)
class _Job:
    """A run of a sweep; plain data, so that any launcher can send it to another process."""

    source: Source
    work: Work
    stamp: str
    numbered: bool

    def __call__(self, composed: DictConfig) -> object:
        job = HydraConfig.get()
        folders = [word for word in job.overrides.hydra if word.startswith("hydra.searchpath=")]
        words = [*folders, *(str(word).removeprefix("++") for word in job.overrides.task)]
        print(f"job {job.job.num}: {' '.join(words)}", file=sys.stderr, flush=True)
        try:
            if self.numbered:
                words = [word for word in words if not word.startswith("run.name=")]
                name = composed.run.name or f"{self.source.schema.name_for(composed)}-{self.stamp}"
                words.append(f"run.name={name}-{job.job.num}")
            resolved = resolve(self.source, words)
            return self.work(resolved, ["toolwright", self.source.command, *self.source.flags, *words])
        except Exception as error:
            raise _JobFailed(error) from error


def _print_composed(source: Source, args: argparse.Namespace) -> None:
    """Let Hydra print what it composed."""
    with composer(source) as composing:
        parsed = composing.parse(args.overrides, sweep=True)
    if parsed.problems:
        raise UserError(format_problems(parsed.problems))
    _hydra_main(source, lambda composed: None, parsed.lines, "--cfg", args.cfg)


def _hydra_main(source: Source, task: Callable[[DictConfig], object], lines: list[str], *flags: str) -> None:
    """Run `task` as an application of Hydra's."""
    folder = str(source.folder) if source.folder else None
    application = hydra.main(config_path=folder, config_name=source.name, version_base="1.3")(task)
    GlobalHydra.instance().clear()
    with _command_line(["toolwright", *flags, *lines]), as_user_errors(source.name, []):
        application()


@contextmanager
def _command_line(argv: list[str]) -> Iterator[None]:
    """Set what `hydra.main` reads: `sys.argv`, and the variable that makes it raise instead of exit."""
    before, full_error = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv, os.environ["HYDRA_FULL_ERROR"] = argv, "1"
    try:
        yield
    finally:
        sys.argv = before
        os.environ.pop("HYDRA_FULL_ERROR")
        if full_error is not None:
            os.environ["HYDRA_FULL_ERROR"] = full_error
