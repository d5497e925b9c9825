"""The progress of a run: a live display on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import os
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic, perf_counter
from types import TracebackType
from typing import Any, Protocol, TextIO

from toolwright.observe.numbers import compact, duration, percent, rough
from toolwright.observe.outlet import Outlet

PLAIN_EVERY_S = 2.0
ETA_STEPS = 50  # evaluations come every few steps: the mean over this many has its share of them


@dataclass
class State:
    """The state that both displays show."""

    title: str
    total: int  # 0 as long as it is not known
    step: int = 0
    stages: list[str] = field(default_factory=list)  # the innermost last
    stage_started: float = 0.0
    values: dict[str, Any] = field(default_factory=dict)  # of the last step
    held_out: str = ""  # of the last evaluation
    rewards: list[float] = field(default_factory=list)
    step_s: float | None = None
    left_s: float | None = None
    started: float = 0.0
    stepped: float = 0.0  # when the last step ended
    ended: str = ""

    @property
    def place(self) -> str:
        """The step, and how many there will be."""
        return f"{self.step:>{len(str(self.total))}}/{self.total}" if self.total else str(self.step)

    def number(self, key: str) -> float | None:
        value = self.values.get(key)
        return float(value) if isinstance(value, int | float) and math.isfinite(value) else None

    def facts(self) -> list[str]:
        """The known values of the last step."""
        found = []
        if (reward := self.number("reward/mean")) is not None:
            found.append(f"reward {compact(reward)}")
        elif (loss := self.number("policy/loss")) is not None:
            found.append(f"loss {compact(loss)}")
        if (agreed := self.number("policy/preference_accuracy")) is not None:
            found.append(f"preferred {percent(agreed)}")
        if (away := self.number("teacher/kl")) is not None:
            found.append(f"KL to the teacher {compact(away)}")
        if self.held_out:
            found.append(f"held-out {self.held_out}")
        if (rate := self.number("throughput/tokens_per_s")) is not None:
            found.append(f"{compact(rate)} tokens/s")
        if self.step_s is not None:
            found.append(f"{duration(self.step_s)} a step")
        return found


class Display(Protocol):
    def start(self) -> None: ...
    def step(self, *, evaluated: bool) -> None: ...
    def line(self, text: str) -> None: ...
    def stop(self) -> None: ...


class Progress:
    """Times the stages of each step and shows where the run stands.

    with Progress(100, title="grpo on arithmetic") as progress:
        with progress.stage("sample"):
            ...
        metrics = {f"time/{name}_s": s for name, s in progress.timings.items()}
        progress.step(1, metrics)
    """

    def __init__(self, total_steps: int, *, title: str) -> None:
        self.state = State(title=title, total=total_steps, started=monotonic())
        self.stream = Outlet(sys.stdout)
        self._timings: dict[str, float] = {}
        self._inner: list[float] = []  # seconds spent in stages within each open stage
        self._steps_s: deque[float] = deque(maxlen=ETA_STEPS)
        self._display: Display | None = None

    @property
    def timings(self) -> dict[str, float]:
        """Seconds by stage of the current step. Time of an inner stage is not counted in the outer one."""
        return dict(self._timings)

    def __enter__(self) -> Progress:
        self.state.started = self.state.stepped = monotonic()
        if is_live(self.stream):
            from toolwright.observe.live import LiveDisplay

            self._display = LiveDisplay(self.state, self.stream)
        else:
            self._display = PlainDisplay(self.state, self.stream)
        self._display.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.state.stages.clear()
        self.state.ended = "done" if kind is None else "stopped"
        display, self._display = self._display, None
        if display is not None:
            display.stop()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        state = self.state
        outer_started = state.stage_started
        state.stage_started = monotonic()
        state.stages.append(name)
        self._inner.append(0.0)
        began = perf_counter()
        try:
            yield
        finally:
            took = perf_counter() - began
            self._timings[name] = self._timings.get(name, 0.0) + took - self._inner.pop()
            if self._inner:
                self._inner[-1] += took
            if state.stages:
                state.stages.pop()
            state.stage_started = outer_started

    def begin_steps(self) -> None:
        """Count the first step's time from here: what came before is no measure of the steps to come."""
        self.state.stepped = monotonic()

    def step(self, step: int, metrics: Mapping[str, Any]) -> None:
        """End a step: show it and reset the timings. Step 0 is the evaluation before training."""
        state, now = self.state, monotonic()
        took = now - state.stepped
        state.step, state.values, state.stepped = step, dict(metrics), now
        if step > 0:
            self._steps_s.append(took)
            state.step_s = state.number("time/total_s") or took
            state.left_s = sum(self._steps_s) / len(self._steps_s) * max(0, state.total - step)
        if (reward := state.number("reward/mean")) is not None:
            state.rewards.append(reward)
        accuracy, held_out = state.number("held_out/accuracy"), state.number("held_out/reward")
        if accuracy is not None:
            state.held_out = percent(accuracy)
        elif held_out is not None:
            state.held_out = compact(held_out)
        self._timings.clear()
        if self._display is not None:
            self._display.step(evaluated=accuracy is not None or held_out is not None)

    def line(self, text: str) -> None:
        """Print a message above the live display."""
        if self._display is not None:
            self._display.line(text)
        else:
            print(text, file=self.stream, flush=True)


class PlainDisplay:
    """Lines for a log file: first and last step, evaluations, and one every two seconds in between."""

    def __init__(self, state: State, stream: Outlet) -> None:
        self.state = state
        self.stream = stream
        self._shown: float | None = None  # when a step of training last had its line
        self._unshown = False

    def start(self) -> None:
        steps = f", {self.state.total} steps" if self.state.total else ""
        self.line(f"{self.state.title}{steps}")

    def step(self, *, evaluated: bool) -> None:
        now = monotonic()
        due = self._shown is None or now - self._shown >= PLAIN_EVERY_S
        if due or evaluated or self.state.step >= self.state.total:
            self._show()
            self._shown = now if self.state.step > 0 else None
        else:
            self._unshown = True

    def line(self, text: str) -> None:
        print(text, file=self.stream, flush=True)

    def stop(self) -> None:
        if self._unshown:  # the run stopped early: show its last step
            self._show()

    def _show(self) -> None:
        state = self.state
        parts = [f"step {state.place}", *state.facts()]
        if state.left_s:
            parts.append(f"{rough(state.left_s)} left")
        self.line("  ".join(parts))
        self._unshown = False


def is_live(stream: TextIO | Outlet) -> bool:
    """Return True for a terminal that can show a live display."""
    environment = os.environ
    if environment.get("NO_COLOR") or environment.get("CI", "").lower() not in ("", "0", "false"):
        return False
    if environment.get("TERM", "") in ("dumb", "unknown"):
        return False
    utf8 = (getattr(stream, "encoding", None) or "").lower().replace("-", "") == "utf8"
    return utf8 and stream.isatty()
