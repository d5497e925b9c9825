"""Records which process did what when: stages as they run, and timeline.json for Chrome's tracing and
Perfetto."""

from __future__ import annotations

import json
import os
import resource
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Event:
    """A finished stage of an actor."""

    who: str
    stage: str
    started: float  # seconds since 1970
    seconds: float
    cpu_s: float  # of the whole process meanwhile
    gpu: float | None = None  # mean use, of 1
    died: str = ""  # what died beneath it and was started again, if that is what happened


@dataclass
class OpenStage:
    """A stage that has not finished."""

    stage: str
    started: float = field(default_factory=time.time)
    cpu_s: float = field(default_factory=lambda: cpu_seconds())
    gpu: list[float] = field(default_factory=list)


class Stages:
    """The open and the finished stages of a process."""

    def __init__(self, who: str) -> None:
        self.who = who
        self._lock = threading.Lock()
        self._open: list[OpenStage] = []
        self._done: list[Event] = []
        self._awaited: list[str] = []

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        mine = OpenStage(name)
        with self._lock:
            self._open.append(mine)
        try:
            yield
        finally:
            gpu = sum(mine.gpu) / len(mine.gpu) if mine.gpu else None
            event = Event(
                self.who, name, mine.started, time.time() - mine.started, cpu_seconds() - mine.cpu_s, gpu
            )
            with self._lock:
                self._open.remove(mine)
                self._done.append(event)

    @contextmanager
    def awaiting(self, whom: str) -> Iterator[None]:
        with self._lock:
            self._awaited.append(whom)
        try:
            yield
        finally:
            with self._lock:
                self._awaited.remove(whom)

    @property
    def current(self) -> list[OpenStage]:
        with self._lock:
            return list(self._open)

    @property
    def awaits(self) -> str:
        with self._lock:
            return ", ".join(self._awaited)

    def sample_gpu(self) -> None:
        """Adds a reading of the GPU's use to the stages that are open."""
        use = gpu_use()
        if use is not None:
            for stage in self.current:
                stage.gpu.append(use)

    def drain(self) -> list[Event]:
        with self._lock:
            done, self._done = self._done, []
        return done


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def gpu_use() -> float | None:
    """Return the use of the GPU from 0 to 1, or None if there is no GPU or its use cannot be read."""
    import sys

    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    try:
        return float(torch.cuda.utilization()) / 100
    except Exception:  # the driver's library is optional
        return None


def use(events: Sequence[Event]) -> dict[str, float]:
    """Return cores and GPUs in use by stage, and the seconds of each, as metrics.jsonl has them."""
    metrics: dict[str, float] = {}
    for stage in sorted({event.stage for event in events}):
        mine = [event for event in events if event.stage == stage]
        seconds = sum(event.seconds for event in mine)
        metrics[f"use/{stage}_cores"] = sum(event.cpu_s for event in mine) / max(seconds, 1e-9)
        gpu = [event for event in mine if event.gpu is not None]
        if gpu:
            weighted = sum((event.gpu or 0.0) * event.seconds for event in gpu)
            metrics[f"use/{stage}_gpu"] = weighted / max(sum(event.seconds for event in gpu), 1e-9)
    return metrics


class Timeline:
    """Writes timeline.json. The file is valid JSON after every step, although only its end is written."""

    END = b"\n]\n"

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, step: int, events: Sequence[Event]) -> None:
        rows = [
            json.dumps(
                {
                    "name": event.stage,
                    "cat": event.stage.partition(".")[0],
                    "ph": "X",
                    "ts": round(event.started * 1e6),
                    "dur": round(event.seconds * 1e6),
                    "pid": event.who,
                    "tid": event.stage,
                    "args": {"step": step, "cpu_s": round(event.cpu_s, 4)},
                }
            )
            for event in events
        ]
        if not rows:
            return
        text = ",\n".join(rows).encode() + self.END
        if not self.path.exists():
            self.path.write_bytes(b"[\n" + text)
            return
        with self.path.open("r+b") as file:
            file.seek(-len(self.END), os.SEEK_END)
            file.write(b",\n" + text)

    def rewind(self, step: int) -> None:
        """Delete the steps after this one, before a resumed run takes them again."""
        if not self.path.exists():
            return
        try:
            rows = [row for row in json.loads(self.path.read_text()) if row["args"]["step"] <= step]
        except ValueError:  # torn by a crash
            rows = []
        self.path.unlink()
        if rows:
            text = ",\n".join(map(json.dumps, rows))
            self.path.write_bytes(b"[\n" + text.encode() + self.END)
