"""One run's files, as the page may read them: regular files below the run's own folder."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

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
_ROLLOUTS = re.compile(r"step_(\d{1,18})\.parquet")


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
        folder, found = self.folder("rollouts"), {}
        if folder is None:
            return {}
        try:
            for entry in os.scandir(folder):
                match = _ROLLOUTS.fullmatch(entry.name)
                if match and entry.is_file(follow_symlinks=False):
                    about = entry.stat(follow_symlinks=False)
                    found[int(match[1])] = (Path(entry.path), (about.st_mtime_ns, about.st_size))
        except OSError:
            return {}
        return dict(sorted(found.items()))

    def count_rollouts(self) -> int:
        """Count the steps that have attempts, which is cheaper than asking about each file."""
        folder = self.folder("rollouts")
        try:
            names = os.listdir(folder) if folder is not None else []
        except OSError:
            return 0
        return sum(_ROLLOUTS.fullmatch(name) is not None for name in names)

    def versions(self) -> dict[str, Version]:
        """When each part of the run was last written: what the live view watches."""
        found = {}
        for part, name in WATCHED.items():
            try:
                about = os.stat(self.path / name, follow_symlinks=False)
            except OSError:
                continue
            found[part] = (about.st_mtime_ns, about.st_size)
        return found

    @property
    def updated(self) -> float:
        """When anything of the run was written last."""
        return max((changed for changed, _ in self.versions().values()), default=0) / 1e9
