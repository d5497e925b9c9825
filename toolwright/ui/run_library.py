"""The runs below a folder, found by looking, and what is kept of each while it is looked at."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import cached_property
from itertools import islice
from pathlib import Path

from toolwright.observe import run_folders
from toolwright.observe.attempt_index import AttemptIndex, AttemptTable
from toolwright.observe.token_texts import TokenTexts
from toolwright.ui.config_file import ConfigFile
from toolwright.ui.metrics_table import MetricsTable
from toolwright.ui.problem import PageProblem
from toolwright.ui.run_files import RunFiles
from toolwright.ui.timeline_file import TimelineFile

MOST_RUNS = 5000
LOOK_AGAIN_S = 3.0
PATIENCE = 30  # looking for runs takes at most one part in so many of the time
MOST_ATTEMPTS = 300_000  # in memory, of all runs; the run that was looked at last is kept whole


class OpenRun:
    """One run: its files, and what was read of them so far."""

    def __init__(self, name: str, path: Path) -> None:
        self.name, self.files = name, RunFiles(path)
        self._metrics, self._timeline = MetricsTable(), TimelineFile()
        self._attempts = AttemptIndex()
        self._config = ConfigFile()

    @property
    def metrics(self) -> MetricsTable:
        self._metrics.read(self.files.file("metrics.jsonl"))
        return self._metrics

    @property
    def timeline(self) -> TimelineFile:
        self._timeline.read(self.files.file("timeline.json"))
        return self._timeline

    @property
    def attempts(self) -> AttemptTable:
        return self._attempts.refresh(self.files.rollouts())

    @property
    def config(self) -> ConfigFile:
        self._config.read(self.files)
        return self._config

    @cached_property
    def tokens(self) -> TokenTexts:
        return TokenTexts(self.files.file)

    @property
    def attempts_in_memory(self) -> int:
        return len(self._attempts.table)

    def forget_attempts(self) -> None:
        self._attempts = AttemptIndex()


class RunLibrary:
    """Every run below `folder`, by its path from there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self._lock = threading.Lock()
        self._runs: dict[str, OpenRun] = {}
        self._look_at = 0.0

    def names(self) -> list[str]:
        """The runs there are, looked for again every few seconds."""
        with self._lock:
            started = time.monotonic()
            if started >= self._look_at:
                found = dict(self._find())
                self._runs = {name: self._runs.get(name) or OpenRun(name, found[name]) for name in found}
                now = time.monotonic()
                self._look_at = now + max(LOOK_AGAIN_S, PATIENCE * (now - started))
            return list(self._runs)

    def get(self, name: str) -> OpenRun:
        """A run by its name. Only names that were found are known, so a name cannot lead elsewhere."""
        if name not in self._runs:
            self.names()
        run = self._runs.get(name)
        if run is None or not run.files.path.is_dir():
            raise PageProblem(404, f"there is no run {name[:200]!r} here")
        return run

    def all(self) -> list[OpenRun]:
        return [run for name in self.names() if (run := self._runs.get(name)) is not None]

    def read_ahead(self) -> None:
        """Read the attempts of the run that changed last, before somebody asks for them."""
        last = max(self.all(), key=lambda run: run.files.updated, default=None)
        if last is not None:
            self.make_room(last)
            last.attempts  # noqa: B018 - reading them keeps them

    def make_room(self, current: OpenRun) -> None:
        """Forget the attempts of runs looked at before, the oldest first, once there are too many."""
        with self._lock:
            if current.name in self._runs:
                self._runs[current.name] = self._runs.pop(current.name)
            total = sum(run.attempts_in_memory for run in self._runs.values())
            for run in list(self._runs.values()):
                if total <= MOST_ATTEMPTS or run is current:
                    break
                total -= run.attempts_in_memory
                run.forget_attempts()

    def _find(self) -> Iterator[tuple[str, Path]]:
        for path in islice(run_folders.find(self.folder), MOST_RUNS):
            name = self.folder.name or "run" if path == self.folder else str(path.relative_to(self.folder))
            if _is_text(name):
                yield name, path


def _is_text(name: str) -> bool:
    """Return True if the name can be written in JSON: one that is not UTF-8 cannot."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
