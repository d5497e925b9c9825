"""A training run as a Python object: iterate over its steps, look at them, save the model."""

from __future__ import annotations

import atexit
import shutil
import threading
import weakref
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from toolwright.config.schema import Config
from toolwright.failures import UserError
from toolwright.interface.chart import MetricsChart
from toolwright.interface.event_loop import outside_event_loop
from toolwright.interface.request import UserRequest
from toolwright.interface.short_traceback import ShortTraceback
from toolwright.observe.metrics import Metrics
from toolwright.record import load
from toolwright.runtime.reaper import reap_children
from toolwright.trainer.loop import TrainingLoop
from toolwright.trainer.run_folder import RunFolder
from toolwright.trajectory import Trajectory


@dataclass(frozen=True)
class TrainingStep:
    """A step that was taken and recorded. `metrics` are those of metrics.jsonl."""

    number: int
    metrics: dict[str, float]
    rollouts: Path

    @cached_property
    def attempts(self) -> list[Trajectory]:
        """Every attempt of this step, read from the run folder when first asked for."""
        return load(self.rollouts)

    def __repr__(self) -> str:
        reward = self.metrics.get("reward/mean")
        return f"TrainingStep(number={self.number}{'' if reward is None else f', reward={reward:.3g}'})"


class Trainer:
    """Train by reinforcement learning.

        trainer = Trainer("task=sums", "train.steps=50", model="models/smollm2-135m", reward=my_reward)
        for step in trainer:
            print(step.number, step.metrics["reward/mean"])
        trainer.save("out")

    Args:
        words: What `toolwright train` takes: `"key=value"`, `"group=preset"`, `"--config-name"`, `"mine"`.
        model: A Hugging Face folder.
        reward: A function that scores an attempt.
        tools: Functions with docstrings, classes, or names of built-in tools.
        task: A `TaskSet`, a list of `Task`s, or a function that returns a `TaskSet`.
        environment: A class with `reset`, `step` and `close`, that the tasks are attempted in.
        estimator: A function that turns rewards into advantages.

    Leaving the loop early writes a checkpoint. A second loop goes on where the first one ended, and so does a
    new `Trainer("run.name=NAME", "run.resume=true")`. The trainer closes itself after its last step; use it
    in a `with` statement, or call `close`, to end its processes earlier.
    """

    def __init__(
        self,
        *words: str,
        model: str | Path | None = None,
        reward: Any = None,
        tools: Sequence[Any] = (),
        task: Any = None,
        environment: Any = None,
        estimator: Any = None,
    ) -> None:
        own: dict[str, Any] = {"model": model, "reward": reward, "tools": tools, "task": task}
        own |= {"environment": environment, "estimator": estimator}
        with ShortTraceback(), outside_event_loop(), ExitStack() as opened:
            request = opened.enter_context(UserRequest("train", words, **own))
            config: Config = request.config()
            self._run_folder = RunFolder.claim(config.run, made_of=(config.algorithm.name, config.task.name))
            opened.enter_context(reap_children(signals=False))
            self._loop = opened.enter_context(closing(TrainingLoop(config)))
            self._command = ["toolwright.Trainer", *request.words]
            self._close = weakref.finalize(self, _close, opened.pop_all())
        self._steps: weakref.ref[Generator[TrainingStep]] | None = None

    @property
    def config(self) -> Config:
        """The configuration of this run, with every `auto` decided."""
        return self._loop.config

    @property
    def folder(self) -> Path:
        """The run folder. It is written to when the first step begins."""
        return self._run_folder.path

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The metrics of all steps so far. Step 0 is the evaluation before training."""
        return Metrics.read(self.folder / "metrics.jsonl")

    def chart(self, *names: str) -> MetricsChart:
        """A chart of these metrics over the steps, for a notebook to show. Without names: the reward."""
        return MetricsChart(self.metrics, names or ("reward/mean", "held_out/accuracy"))

    def __iter__(self) -> Iterator[TrainingStep]:
        self._end_loop()
        steps = self._stretch()
        self._steps = weakref.ref(steps)
        _loops.add(steps)
        return steps

    def run(self) -> Path:
        """Take all steps that are left. Returns the run folder."""
        for _ in self:
            pass
        return self.folder

    def save(self, folder: str | Path) -> Path:
        """Write the model as it is now, as a Hugging Face folder."""
        target = Path(folder)
        if target.exists() and not (target / "config.json").is_file():
            raise UserError(f"{target} exists and is not a model's folder; save to another one")
        fresh = target.with_name(f"{target.name}.partial")
        shutil.rmtree(fresh, ignore_errors=True)
        if self._close.alive:
            with outside_event_loop():
                self._loop.roles.learners.export(fresh)
        elif self._run_folder.model.is_dir():
            shutil.copytree(self._run_folder.model, fresh)
        else:
            raise UserError(f"{self.folder} has no model: the trainer was closed before its first step")
        shutil.rmtree(target, ignore_errors=True)
        fresh.rename(target)
        return target

    def close(self) -> None:
        """End the run's processes. A loop that is still open ends first, with a checkpoint."""
        self._end_loop()
        self._close()

    def _end_loop(self) -> None:
        if self._steps is not None and (steps := self._steps()) is not None:
            steps.close()

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _stretch(self) -> Generator[TrainingStep]:
        """The steps that are left. A loop over them that ends early leaves a checkpoint behind."""
        if self._loop.step_done >= self.config.train.steps and not self._close.alive:
            return
        if not self._close.alive:
            again = f"Trainer('run.name={self.folder.name}', 'run.resume=true')"
            raise UserError(f"this trainer is closed; continue with {again}")
        with reap_children():
            steps = self._loop.steps(self._run_folder, command=self._command)
            try:
                while True:
                    with ShortTraceback(), outside_event_loop():
                        done = next(steps, None)
                    if done is None:
                        break
                    yield TrainingStep(
                        done.number,
                        done.metrics,
                        self._run_folder.rollouts / f"step_{done.number:06d}.parquet",
                    )
            finally:
                with outside_event_loop():
                    steps.close()
        self._close()


def _close(opened: ExitStack) -> None:
    with outside_event_loop():
        opened.close()


_loops: weakref.WeakSet[Generator[TrainingStep]] = weakref.WeakSet()


def _end_loops() -> None:
    for steps in list(_loops):
        steps.close()


# A checkpoint needs threads, which the interpreter refuses by the time that `atexit` calls. It has no public
# hook before that; without the private one, such a loop leaves no checkpoint.
getattr(threading, "_register_atexit", atexit.register)(_end_loops)
