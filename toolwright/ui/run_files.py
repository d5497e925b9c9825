"""One run's files, as the page may read them: regular files below the run's own folder."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from toolwright.observe import rollouts
from toolwright.observe.rollouts import Version

WATCHED = {
    "metrics": "metrics.jsonl",
    "attempts": "rollouts",
    "timeline": "timeline.json",
    "incidents": "incidents.jsonl",
    "log": "log.txt",
    "search": "searches",
    "config": "config.yaml",
    "report": "report.html",
}
MOST_TEXT = 4 << 20


class RunFiles:
    """A run's folder. Every path is checked when it is used: a link must not lead out of the folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def file(self, *names: str) -> Path | None:
        """A regular file of the run, or None."""
        return self._inside(stat.S_ISREG, *names)

    def folder(self, *names: str) -> Path | None:
        return self._inside(stat.S_ISDIR, *names)

    def _inside(self, kind: object, *names: str) -> Path | None:
        try:
            path = self.path.joinpath(*names).resolve(strict=True)
            allowed = path.is_relative_to(self.path) and kind(path.stat().st_mode)  # type: ignore[operator]
        except (OSError, ValueError, RuntimeError):  # not there, a NUL in the name, a circle of links
            return None
        return path if allowed else None

    def text(self, *names: str, most: int = MOST_TEXT, tail: bool = False) -> str:
        """The text of a file, or its first or last part if it is long; empty if there is none."""
        path = self.file(*names)
        if path is None:
            return ""
        try:
            with path.open("rb") as file:
                if tail:
                    file.seek(max(0, file.seek(0, os.SEEK_END) - most))
                return file.read(most).decode("utf-8", "replace")
        except OSError:
            return ""

    def rollouts(self) -> dict[int, tuple[Path, Version]]:
        """Step to file and version, in order of step."""
        return {} if self.folder("rollouts") is None else rollouts.versions(self.path, links=False)

    def count_rollouts(self) -> int:
        """Count the steps that have attempts, which is cheaper than asking about each file."""
        folder = self.folder("rollouts")
        try:
            names = os.listdir(folder) if folder is not None else []
        except OSError:
            return 0
        return sum(rollouts.NAME.fullmatch(name) is not None for name in names)

    def versions(self) -> dict[str, Version]:
        """The time and size of each part of the run, which the live view watches."""
        parts = {part: rollouts.version_of(self.path / name, links=False) for part, name in WATCHED.items()}
        return {part: version for part, version in parts.items() if version is not None}

    @property
    def updated(self) -> float:
        """The time of the last change to the run, in seconds since 1970."""
        return max((changed for changed, _ in self.versions().values()), default=0) / 1e9
