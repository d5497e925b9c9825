"""A run folder that may still grow, as the viewer sees it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from toolwright.failures import UserError
from toolwright.observe import rollouts
from toolwright.observe.attempt_filter import contain
from toolwright.observe.attempt_index import AttemptIndex, AttemptTable, Digest
from toolwright.observe.rollouts import Version
from toolwright.trajectory import Trajectory

Array = np.ndarray[Any, Any]
FIRST, GROWTH = 1, 16  # steps that are loaded first, and how much more each time


class FollowedRun:
    """The steps of a run and the index of their attempts. Tokens and texts stay in the files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files: dict[int, tuple[Path, Version]] = {}
        self._index = AttemptIndex()
        self.table = self._index.table
        self._digests: dict[int, tuple[Version, Digest]] = {}

    def look(self) -> bool:
        """See which files there are. True if that has changed."""
        found = rollouts.versions(self.path)
        changed, self.files = found != self.files, found
        return changed

    def load(self) -> Iterator[AttemptTable]:
        """The index of ever more steps, the newest first: the first portion is on the screen at once."""
        files = dict(self.files)
        known = {step for step, part in self.table.parts.items() if step in files}
        new = [step for step in reversed(files) if step not in known]
        size = FIRST
        while True:
            now, new = new[:size], new[size:]
            known |= set(now)
            self.table = self._index.refresh({step: files[step] for step in files if step in known})
            yield self.table
            if not new:
                return
            size *= GROWTH

    def digest(self, step: int) -> Digest | None:
        """Summarise one step; None until it is loaded."""
        table = self.table
        part = table.parts.get(step)
        if part is None:
            return None
        version, known = self._digests.get(step, (None, None))
        if known is None or version != part.version:
            known = table.digest(step)
            self._digests[step] = (part.version, known)
        return known

    def mean_rewards(self) -> list[float]:
        """The mean reward of each loaded step that has one, in order."""
        digests = [self.digest(step) for step in self.table.steps]
        return [sum(one.rewards) / len(one.rewards) for one in digests if one is not None and one.rewards]

    def attempts(self, step: int, rows: Sequence[int]) -> list[Trajectory]:
        path = self.table.path(step)
        if path is None:
            raise UserError(f"the attempts of step {step} no longer exist")
        return rollouts.read(path, rows)


@dataclass
class TextHits:
    """The attempts that contain some words, step by step: a step is searched once."""

    words: tuple[str, ...]
    by_step: dict[int, tuple[Version, Array]] = field(default_factory=dict)  # rows

    def missing(self, table: AttemptTable) -> list[int]:
        """The steps still to be searched, the newest first."""
        return [
            step
            for step in reversed(table.steps)
            if step not in self.by_step or self.by_step[step][0] != table.parts[step].version
        ]

    def search(self, table: AttemptTable, step: int) -> None:
        part, first = table.parts[step], table.first[step]
        found = contain(table, np.arange(first, first + part.rows), self.words)
        self.by_step[step] = (part.version, found - first)

    def places(self, table: AttemptTable) -> Array:
        found = [table.first[s] + rows for s, (_, rows) in self.by_step.items() if s in table.first]
        return np.concatenate([np.zeros(0, np.int64), *found])
