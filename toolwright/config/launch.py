"""From a command line to a configuration to the work: one run, or a sweep of them, by Hydra's machinery."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from hydra._internal.hydra import Hydra
from hydra._internal.utils import get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from toolwright import __version__
from toolwright.config.compose import Loader, Source, resolve
from toolwright.config.origin import Resolved
from toolwright.config.show import show
from toolwright.config.validate import listed
from toolwright.failures import UserError

Start = Callable[[Any, list[str]], object]
Work = Callable[[Resolved, list[str]], object]
Foresee = Callable[[Any], Sequence[str]]  # of a configuration
MULTIRUN = "hydra.mode=MULTIRUN"

OPTIONS = """\
Options:
  --dry-run                  print the resolved configuration and stop
  --json                     machine-readable output
  --config-dir DIR           a folder of your own presets and configs, laid out like the built-in ones
  --config-name, -cn NAME    your own config; its defaults list begins with `- {primary}`
  --multirun, -m             a run for each combination of values: key=a,b
  --cfg job|hydra|all        print what Hydra composed, before validation
  --version                  print the version

All keys with their values, origins and descriptions:
  toolwright config{schema} --explain
"""


class LaunchParser(argparse.ArgumentParser):
    """Hydra's arguments and ours, with errors that are the user's to read."""

    def __init__(self, command: str) -> None:
        super().__init__(add_help=False, conflict_handler="resolve", parents=[get_args_parser()])
        self.command = command
        self.add_argument("--version", action="version", version=f"toolwright {__version__}")
        self.add_argument("--dry-run", action="store_true")
        self.add_argument("--explain", action="store_true")
        self.add_argument("--json", action="store_true")

    def parse(self, argv: list[str]) -> argparse.Namespace:
        args = self.parse_intermixed_args(argv)
        for option, instead in {
            "config_path": "--config-dir",
            "experimental_rerun": "run.resume=true",
        }.items():
            if getattr(args, option):
                raise UserError(f"--{option.replace('_', '-')} is not supported here; use {instead}")
        return args

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; `toolwright {self.command.split()[0]} --help` lists the options")


def source_of(command: str, args: argparse.Namespace) -> Source:
    """Where to look. `--config-name` may be a path to the file as well."""
    name, folder = args.config_name, args.config_dir
    if name and folder is None and (Path(name).is_file() or Path(f"{name}.yaml").is_file()):
        folder, name = str(Path(name).parent), Path(name).name
    return Source(command, folder, name.removesuffix(".yaml") if name else None)


def help_text(command: str, about: str, source: Source) -> str:
    """Usage, what the command is for, its groups with their choices, and how to see every key."""
    groups = Loader(source).vocabulary().groups
    width = max(map(len, groups), default=0)
    lines = [f"  {group:<{width}}  {', '.join(choices)}" for group, choices in groups.items()]
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
    start: Start | None,
    usage: str = "",
    foresee: Foresee | None = None,
) -> int:
    """Resolve what the command line asks for, then `start(config, command)`; None: only show it. `foresee`
    tells with --explain what a run would decide."""
    args = LaunchParser(usage or command).parse(argv)
    source = source_of(command, args)
    if args.help:
        print(help_text(usage or command, about, source))
        return 0
    showing = _Show(explain=args.explain, as_json=args.json, foresee=foresee)
    work: Work = showing if start is None or args.dry_run else _Begin(start)
    if args.cfg or args.info or args.hydra_help:
        _ask_hydra(Loader(source), args)
    elif args.multirun or MULTIRUN in args.overrides:
        _sweep(Loader(source), [word for word in args.overrides if word != MULTIRUN], work)
    elif work is showing:
        work(resolve(source, args.overrides), [])
    else:
        _run(Loader(source), args.overrides, work, ["toolwright", *(usage or command).split(), *argv])
    return 0


@dataclass(frozen=True)
class _Show:
    explain: bool
    as_json: bool
    foresee: Foresee | None

    def __call__(self, resolved: Resolved, command: list[str]) -> None:
        told = self.foresee(resolved.config) if self.explain and self.foresee else ()
        show(resolved, explain=self.explain, as_json=self.as_json, told=told)


@dataclass(frozen=True)
class _Begin:
    start: Start

    def __call__(self, resolved: Resolved, command: list[str]) -> object:
        return self.start(resolved.config, command)


class _JobFailed(Exception):
    """Carries what a job raised past `explained`, which would take it for the user's mistake."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


def _run(loader: Loader, words: list[str], work: Work, command: list[str]) -> None:
    given = loader.read(words)
    resolved = loader.resolve(given)
    failures: list[Exception] = []

    def once(composed: DictConfig) -> None:
        try:
            work(resolved, command)
        except Exception as error:
            # Kept from Hydra, which would print a line of its own before the message.
            failures.append(error)

    with _hydra(loader) as hydra:
        hydra.run(loader.config_name, once, given.lines, with_log_configuration=False)
    if failures:
        raise failures[0]


def _sweep(loader: Loader, words: list[str], work: Work) -> None:
    given = loader.read(words, sweep=True)
    if given.problems:
        raise UserError(listed(given.problems))
    # Jobs that differ in nothing but their names need no numbers to tell them apart.
    job = _Job(loader.source, work, time.strftime("%Y%m%d-%H%M%S"), numbered=given.swept != {"run.name"})
    try:
        with _hydra(loader) as hydra, loader.explained():
            hydra.multirun(loader.config_name, job, [*given.lines, MULTIRUN], with_log_configuration=False)
    except _JobFailed as failed:
        raise failed.error from None


@dataclass(frozen=True)
class _Job:
    """One run of a sweep; only data, so that any launcher can send it to another process."""

    source: Source
    work: Work
    stamp: str
    numbered: bool

    def __call__(self, composed: DictConfig) -> object:
        job = HydraConfig.get()
        words = [str(word).removeprefix("++") for word in job.overrides.task]
        print(f"job {job.job.num}: {' '.join(words)}", file=sys.stderr, flush=True)
        try:
            if self.numbered:
                words = [word for word in words if not word.startswith("run.name=")]
                name = composed.run.name or self._made_up(composed)
                words.append(f"run.name={name}-{job.job.num}")
            resolved = resolve(self.source, words)
            return self.work(resolved, ["toolwright", self.source.command, *self.source.flags, *words])
        except Exception as error:
            raise _JobFailed(error) from error

    def _made_up(self, composed: DictConfig) -> str:
        return f"{self.source.schema.name_for(composed)}-{self.stamp}"


def _ask_hydra(loader: Loader, args: argparse.Namespace) -> None:
    given = loader.read(args.overrides, sweep=True)
    if given.problems:
        raise UserError(listed(given.problems))
    with _hydra(loader) as hydra, loader.explained():
        if args.cfg:
            hydra.show_cfg(loader.config_name, given.lines, args.cfg, args.package, args.resolve)
        elif args.info:
            hydra.show_info(args.info, loader.config_name, given.lines)
        else:
            hydra.hydra_help(loader.config_name, get_args_parser(), args)


@contextmanager
def _hydra(loader: Loader) -> Iterator[Hydra]:
    GlobalHydra.instance().clear()
    hydra = Hydra.create_main_hydra2("toolwright", loader.config_search_path)
    hydra.config_loader = loader
    try:
        yield hydra
    finally:
        GlobalHydra.instance().clear()
