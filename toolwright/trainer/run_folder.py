"""The run folder. It holds everything that is needed to resume, replay and audit a run, without any
service."""

from __future__ import annotations

import errno
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path

from toolwright import __version__
from toolwright.config import schema, yaml_file
from toolwright.config.keys import flatten, format_value
from toolwright.failures import ENDED, UserError
from toolwright.learner import checkpoints
from toolwright.models.tokenizer import Tokenizer
from toolwright.observe import retention, run_folders
from toolwright.observe.evaluation import FILE as EVALUATIONS
from toolwright.observe.evaluation import EvaluationResult
from toolwright.observe.metrics import Metrics
from toolwright.record import TokenValues, save
from toolwright.registry import short_name
from toolwright.runtime.host import identity
from toolwright.runtime.roles import Incident
from toolwright.runtime.timeline import Timeline
from toolwright.trajectory import Trajectory

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # the disk, a quota, the largest file that is allowed
_ROLLOUTS = re.compile(r"step_(\d+)\.(parquet|partial)")

Record = Callable[[Path, Sequence[Trajectory], Sequence[TokenValues]], None]


class RunFolder:
    def __init__(self, path: Path, *, new: bool = False, made_up: bool = False) -> None:
        """`new`: none of it exists yet. `made_up`: we chose the name, and may choose another."""
        self.path = path
        self._new, self._made_up = new, made_up

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def rollouts(self) -> Path:
        return self.path / "rollouts"

    @property
    def model(self) -> Path:
        return self.path / "model"

    @cached_property
    def metrics(self) -> Metrics:
        return Metrics(self.path / "metrics.jsonl")

    @cached_property
    def timeline(self) -> Timeline:
        return Timeline(self.path / "timeline.json")

    @classmethod
    def claim(cls, run: schema.RunConfig, *, made_of: Sequence[str]) -> RunFolder:
        """Claim a new folder, or an existing one with `run.resume`. Two runs never share a folder. Writes
        nothing."""
        made_up = [*map(short_name, made_of), time.strftime("%Y%m%d-%H%M%S")]
        path = Path(run.dir) / (run.name or "-".join(made_up))
        if run.name is None and path.exists():
            path = _unused(path)
        if run.resume:
            if not path.is_dir():
                raise UserError(f"nothing to resume: there is no run folder {path}")
            if worker := run_folders.worker(path):
                raise UserError(
                    f"run folder {path} is in use: process {worker} still runs it; wait for its end, or stop "
                    f"it with `kill {worker}`, which writes a checkpoint"
                )
        elif path.exists():
            raise UserError(
                f"run folder {path} exists; continue it with run.resume=true, or choose another run.name"
            )
        there = next(place for place in (path, *path.parents) if place.exists())
        as_now = os.access in os.supports_effective_ids  # as who writes, not as who started it
        if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK, effective_ids=as_now):
            why = "cannot be written to" if there.is_dir() else "is not a folder"
            shown = there if there.name else there.resolve()  # "." tells nobody where
            raise UserError(f"no run can be kept in {path}: {shown} {why}; choose another run.dir")
        return cls(path, new=not run.resume, made_up=run.name is None)

    def begin(
        self, config: schema.CommandConfig, *, command: Sequence[str], tokenizer: Tokenizer | None = None
    ) -> None:
        """Write down configuration and command, once they are known to work, and the tokenizer that the
        attempts' tokens are read with."""
        self.create()
        with self.explaining_write_errors(then="start again"):
            for place in (self.checkpoints, self.rollouts):
                place.mkdir(parents=True, exist_ok=True)
            self.write_config(config)
            with (self.path / "command.txt").open("a", encoding="utf-8", errors="replace") as file:
                file.write(provenance(command))
            if tokenizer is not None:
                tokenizer.backend.save(str(self.path / "tokenizer.json"))

    def write_config(self, config: schema.CommandConfig) -> None:
        """Write the configuration as of a new run, so that the file reproduces it wherever it is taken."""
        config = config.changed({"run.resume": False})
        file = self.path / "config.yaml"
        partial = file.with_name("config.yaml.partial")
        partial.write_text(yaml_file.to_yaml(config), encoding="utf-8")
        partial.replace(file)  # a run that dies while it writes can still be resumed

    def create(self) -> None:
        """Make the folder of a new run. Another run may have made it since this one claimed the name."""
        claimed = self.path
        with self.explaining_write_errors(then="start again"):
            while self._new:
                try:
                    self.path.mkdir(parents=True)
                    self._new = False
                except FileExistsError:
                    if not self._made_up:
                        raise UserError(
                            f"another run has started in {self.path} in the meantime; choose another run.name"
                        ) from None
                    self.path = _unused(claimed)

    def changed_settings(self, config: schema.CommandConfig) -> list[str]:
        """List the settings that differ from those of the run so far, as `key=new (was old)`."""
        before = dict(flatten(yaml_file.read_yaml(self.path / "config.yaml")))
        now = dict(flatten(config.model_dump(mode="json")))
        changed = [key for key in now if key in before and before[key] != now[key]]
        return [
            f"{key}={format_value(now[key])} (was {format_value(before[key])})"
            for key in changed
            if not key.startswith("run.")
        ]

    def log(self, text: str) -> None:
        with (self.path / "log.txt").open("a", encoding="utf-8", errors="replace") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")

    def note(self, step: int, incident: Incident) -> None:
        """Log an incident that the run survived. log.txt also gets its stack, if there is one."""
        with (self.path / "incidents.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(incident.as_row(step), ensure_ascii=False) + "\n")
        if incident.stack:
            self.log(f"{incident.who}:\n{incident.stack}")

    def save_rollouts(
        self,
        step: int,
        trajectories: Sequence[Trajectory],
        values: Sequence[TokenValues] = (),
        record: Record = save,
    ) -> None:
        file = self.rollouts / f"step_{step:06d}.parquet"
        try:
            record(file, trajectories, values)
        except BaseException:
            file.with_suffix(".partial").unlink(missing_ok=True)
            raise

    def save_evaluation(self, step: int, result: EvaluationResult) -> None:
        with (self.path / EVALUATIONS).open("a", encoding="utf-8") as file:
            file.write(result.as_line(step) + "\n")

    def keep_rollouts(self, steps: int | None) -> None:
        """Delete the attempts of older steps and keep this many. None keeps all."""
        for file in retention.old_attempts(self.path, steps) if steps is not None else ():
            retention.remove(file)

    def save_model(self, export: Callable[[Path], None]) -> None:
        """Save the latest policy as an ordinary Hugging Face folder. The folder is replaced whole, so that it
        is never half written."""
        fresh, old = self.path / "model.partial", self.path / "model.old"
        shutil.rmtree(fresh, ignore_errors=True)
        try:
            export(fresh)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise
        shutil.rmtree(old, ignore_errors=True)
        if self.model.exists():
            self.model.rename(old)
        fresh.rename(self.model)
        shutil.rmtree(old, ignore_errors=True)

    def rewind(self, step: int) -> None:
        """Delete what was written after this step, and incomplete files, so that a resumed run leaves one
        history."""
        for lines in ("metrics.jsonl", EVALUATIONS):
            Metrics.truncate(self.path / lines, after_step=step)
        self.timeline.rewind(step)
        for file in self.rollouts.iterdir():
            # What is not ours stays: a note, a folder of somebody's analysis.
            if (name := _ROLLOUTS.fullmatch(file.name)) and (name[2] == "partial" or int(name[1]) > step):
                file.unlink()
        for leftover in [self.path / "model.partial", *self.checkpoints.glob("*.partial")]:
            shutil.rmtree(leftover, ignore_errors=True)
        old = self.path / "model.old"
        if old.exists() and not self.model.exists():
            old.rename(self.model)
        shutil.rmtree(old, ignore_errors=True)

    @contextmanager
    def noting_error(self) -> Iterator[None]:
        """Log the error that ends the run, for people who look at its folder later."""
        try:
            yield
        except Exception as error:
            text = str(error) if isinstance(error, UserError) else traceback.format_exc()
            with suppress(OSError):  # the disk may be what is wrong
                self.log(f"{ENDED}: {text}")
            raise

    @contextmanager
    def explaining_write_errors(self, *, then: str) -> Iterator[None]:
        """Explain write errors: a full or read-only disk and a deleted folder are not bugs. The message says
        what is safe and how to continue."""
        try:
            yield
        except Exception as error:
            found = self._write_error(error)
            if found is None:
                raise
            last = checkpoints.latest(self.checkpoints)
            kept = f"the last whole checkpoint is {last}; " if last else ""
            what, remedy = found
            raise UserError(f"{what}; {kept}{remedy}, then {then}") from error

    def _write_error(self, error: Exception) -> tuple[str, str] | None:
        """The problem with the folder and its remedy, if the error is about the folder."""
        cause = getattr(error, "cause", None)  # of an error that Ray brought from another process
        cause = cause if isinstance(cause, Exception) else error
        number, why = _number(cause), " ".join(str(cause).split())
        if number in FULL:
            return f"no room to write in {self.path}: {why}", "make room"
        if number is None:
            return None
        if number in (errno.ENOENT, errno.ENOTDIR) and not self.path.is_dir():
            if self._new:
                return f"the run folder {self.path} cannot be created: {why}", "choose another run.dir"
            return f"the run folder {self.path} is gone: {why}", "put it back"
        if number == errno.EROFS or str(self.path) in why:
            return f"cannot write in {self.path}: {why}", "make it writable"
        return None


def _number(error: Exception) -> int | None:
    """The system's error number. Libraries in Rust have it in their message alone."""
    found = re.search(r"\(os error (\d+)\)", str(error))
    return error.errno if isinstance(error, OSError) else int(found[1]) if found else None


def _unused(path: Path) -> Path:
    number = 2
    while (candidate := path.with_name(f"{path.name}-{number}")).exists():
        number += 1
    return candidate


def provenance(command: Sequence[str]) -> str:
    """The command, versions and machine of a run: everything that is needed to repeat it."""
    import torch

    own = identity()
    lines = [
        f"# {time.strftime('%Y-%m-%d %H:%M:%S')}",
        shlex.join(command),
        f"toolwright {__version__}, python {platform.python_version()}, torch {torch.__version__}",
        f"{platform.platform()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads",
        f"git {_git_state()}",
        f"directory {Path.cwd()}",
        f"process {own.pid} on {own.host}, begun {own.born}",
    ]
    return "\n".join(lines) + "\n"


def _git_state() -> str:
    try:
        head = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            cwd=Path(sys.modules["toolwright"].__file__ or ".").parent,
            capture_output=True,
            text=True,
            timeout=5,
        )
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return head.stdout.strip() or "unknown"
