"""Trackers that misbehave, and one that writes down what it is told."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from toolwright.observe.trackers import TrackedEnd, TrackedRun, TrackedStep, Tracker


class Diary(Tracker):
    def __init__(self, file: str) -> None:
        self.file = Path(file)

    def write(self, **entry: object) -> None:
        with self.file.open("a") as file:
            file.write(json.dumps(entry) + "\n")

    def begin(self, run: TrackedRun) -> None:
        self.write(begin=run.name, id=run.id, resumed=run.resumed, command=run.command, after=run.step)
        self.write(config=run.config, notes=run.notes)

    def step(self, step: TrackedStep) -> None:
        rewards = [attempt.reward for attempt in step.attempts]
        self.write(step=step.number, metrics=step.metrics, rewards=rewards)

    def finish(self, end: TrackedEnd) -> None:
        self.write(end=end.status, summary=end.summary, report=str(end.report))


class Hanging(Tracker):
    def __init__(self, at: str) -> None:
        self.at = at

    def _hang(self, now: str) -> None:
        if now == self.at:
            time.sleep(3600)

    def begin(self, run: TrackedRun) -> None:
        self._hang("begin")

    def step(self, step: TrackedStep) -> None:
        self._hang("step")

    def finish(self, end: TrackedEnd) -> None:
        self._hang("finish")


class Raising(Tracker):
    def __init__(self, steps: int = 1000) -> None:
        self.steps = steps  # the first ones

    def step(self, step: TrackedStep) -> None:
        if step.number <= self.steps:
            raise ConnectionError("the network is down")


class Dying(Tracker):
    def step(self, step: TrackedStep) -> None:
        os._exit(3)
