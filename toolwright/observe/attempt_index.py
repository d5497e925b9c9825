"""The attempts of a run in memory: where each lies, and its small columns. It grows with the run's steps."""

from __future__ import annotations

import statistics
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from toolwright.failures import UserError
from toolwright.observe.attempt import visible
from toolwright.observe.attempt_columns import NUMBERS, TEXTS, UNREADABLE, AttemptColumns
from toolwright.observe.numbers import compact
from toolwright.observe.rollouts import Version, version_of

Array = np.ndarray[Any, Any]
STEP_COLUMNS = ("groups", "attempts", "failed", "reward", "least", "most", "tool calls", "ended by")


class WordList:
    """Words and their numbers, which all steps of a run share. It only grows."""

    def __init__(self) -> None:
        self.all: list[str] = []
        self._codes: dict[str, int] = {}
        self._ranks: Array = np.zeros(0, np.int32)

    def encode(self, texts: pa.DictionaryArray) -> Array:
        known = np.array([self.code_of(word) for word in texts.dictionary.to_pylist()], np.int32)
        return known[texts.indices.to_numpy()] if len(known) else np.zeros(0, np.int32)

    def code_of(self, word: str) -> int:
        """The number of a word, a new one if need be."""
        code = self._codes.setdefault(word, len(self.all))
        if code == len(self.all):
            self.all.append(word)
        return code

    def find(self, word: str) -> int:
        """The number of a word, or -1."""
        return self._codes.get(word, -1)

    def ranks(self) -> Array:
        """The place of each word in alphabetical order."""
        words = self.all[:]
        if len(self._ranks) != len(words):
            order = sorted(range(len(words)), key=words.__getitem__)
            ranks = np.empty(len(order), np.int32)
            ranks[order] = np.arange(len(order), dtype=np.int32)
            self._ranks = ranks
        return self._ranks


@dataclass(frozen=True)
class TextColumn:
    """A text for each attempt, stored as an index into the distinct texts."""

    words: WordList
    codes: Array

    def at(self, place: int) -> str:
        return self.words.all[self.codes[place]]

    def of(self, places: Array) -> list[str]:
        words = self.words.all
        return [words[code] for code in self.codes[places].tolist()]

    def ranks(self) -> Array:
        return self.words.ranks()[self.codes]


@dataclass(frozen=True)
class Digest:
    """A summary of one step's attempts."""

    groups: int
    attempts: int
    failed: int
    rewards: list[float]
    tool_calls: float
    stops: dict[str, int]  # the commonest first

    @property
    def cells(self) -> list[tuple[str, str]]:
        """A row of a table of steps, in the order of `STEP_COLUMNS`: each text with its style."""
        rewards = [compact(f(self.rewards)) if self.rewards else "-" for f in (statistics.fmean, min, max)]
        return [
            (str(self.groups), ""),
            (str(self.attempts), ""),
            (str(self.failed), "red" if self.failed else "dim"),
            *zip(rewards, ("cyan", "", ""), strict=True),
            (compact(self.tool_calls), ""),
            (", ".join(f"{visible(stop)} {count}" for stop, count in self.stops.items()), ""),
        ]


@dataclass(frozen=True)
class _Part:
    """The attempts of one step."""

    version: Version
    path: Path
    rows: int
    texts: Mapping[str, Array]
    numbers: Mapping[str, Array]
    problem: str = ""


@dataclass(frozen=True)
class AttemptTable:
    """Columns over all attempts of a run, in order of step and row. It does not change."""

    step: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    row: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    texts: Mapping[str, TextColumn] = field(default_factory=dict)
    numbers: Mapping[str, Array] = field(default_factory=dict)
    parts: Mapping[int, _Part] = field(default_factory=dict)
    first: Mapping[int, int] = field(default_factory=dict)  # of each step, the place of its first attempt

    def __len__(self) -> int:
        return len(self.step)

    @property
    def steps(self) -> list[int]:
        return list(self.parts)

    @property
    def problems(self) -> dict[int, str]:
        """Steps whose file cannot be read, and why."""
        return {step: part.problem for step, part in self.parts.items() if part.problem}

    def path(self, step: int) -> Path | None:
        part = self.parts.get(step)
        return None if part is None or part.problem else part.path

    def place(self, step: int, row: int) -> int | None:
        """Return the place of an attempt in the columns."""
        part = self.parts.get(step)
        return self.first[step] + row if part is not None and 0 <= row < part.rows else None

    def same_group(self, place: int) -> Array:
        """The places of all attempts of this one's group, in the same step."""
        codes = self.texts["group"].codes
        return np.flatnonzero((self.step == self.step[place]) & (codes == codes[place]))

    def sort_keys(self, name: str) -> Array | None:
        """A number for each attempt to sort by: NaN if it has no value. None if there is no such column."""
        if name in ("step", "row"):
            return getattr(self, name).astype(float)
        return self.texts[name].ranks().astype(float) if name in self.texts else self.numbers.get(name)

    def digest(self, step: int) -> Digest:
        mine = slice(self.first[step], self.first[step] + self.parts[step].rows)
        rewards, stops = self.numbers["reward"][mine], self.texts["stop"]
        counted = Counter(stops.codes[mine].tolist()).most_common()
        return Digest(
            groups=len(np.unique(self.texts["group"].codes[mine])),
            attempts=self.parts[step].rows,
            failed=int(self.numbers["failed"][mine].sum()),
            rewards=rewards[~np.isnan(rewards)].tolist(),
            tool_calls=float(self.numbers["tool_calls"][mine].sum()),
            stops={stops.words.all[code] or "?": count for code, count in counted},
        )


class AttemptIndex:
    """Builds the table, and rebuilds it when a step's file is new, changed or gone."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._word_lists = {name: WordList() for name in TEXTS}
        self._files: Mapping[int, tuple[Path, Version]] = {}
        self.table = self._joined({})

    def refresh(self, files: Mapping[int, tuple[Path, Version]]) -> AttemptTable:
        with self._lock:
            if files != self._files:
                known = self.table.parts
                parts = {
                    step: known[step]
                    if step in known and known[step].version == version
                    else self._load(path, version)
                    for step, (path, version) in files.items()
                }
                self.table, self._files = self._joined(parts), files
            return self.table

    def _load(self, path: Path, version: Version) -> _Part:
        try:
            found = AttemptColumns(path)
        except UNREADABLE as error:
            why = " ".join(str(error).split())[:300]
            return _Part(version, path, 0, {}, {}, problem=f"{path.name} cannot be read: {why}")
        texts = {name: self._word_lists[name].encode(column) for name, column in found.texts.items()}
        return _Part(version, path, found.rows, texts, found.numbers)

    def _joined(self, parts: Mapping[int, _Part]) -> AttemptTable:
        """Join the columns of all steps, one array each. A step without a column has no numbers and empty
        texts."""
        sizes = [part.rows for part in parts.values()]
        step = np.repeat(np.array(list(parts), np.int64), sizes)
        texts = {
            name: TextColumn(words, _joined_column(name, "texts", parts.values(), words.code_of("")))
            for name, words in self._word_lists.items()
        }
        names = dict.fromkeys([*NUMBERS, *(name for part in parts.values() for name in part.numbers)])
        numbers = {name: _joined_column(name, "numbers", parts.values(), np.nan) for name in names}
        nothing = np.full(len(step), np.nan)
        no_failure = self._word_lists["failure_kind"].code_of("")
        numbers["failed"] = (texts["failure_kind"].codes != no_failure).astype(float)
        # The weights of step 0 sample step 1: an attempt of older ones is stale by the difference.
        numbers["staleness"] = np.maximum(step - 1 - numbers["version"], 0.0)
        numbers["tool_calls"] = np.nan_to_num(numbers.get("counts/tool_calls", nothing))
        numbers["tool_errors"] = np.nan_to_num(numbers.get("counts/tool_errors", nothing))
        numbers["seconds"] = numbers.get("timings/attempt_s", nothing)
        starts = np.cumsum([0, *sizes])[:-1].tolist()
        row = np.arange(len(step)) - np.repeat(np.array(starts, np.int64), sizes)
        return AttemptTable(step, row, texts, numbers, parts, dict(zip(parts, starts, strict=True)))


def read_index(files: Mapping[int, Path]) -> AttemptTable:
    """The attempts of these files, by step. Raises a UserError if one of them cannot be read."""
    table = AttemptIndex().refresh({step: (path, version_of(path) or (0, 0)) for step, path in files.items()})
    for problem in table.problems.values():
        raise UserError(problem)
    return table


def _joined_column(name: str, kind: str, parts: Iterable[_Part], missing: float) -> Array:
    empty = np.zeros(0, np.int32 if kind == "texts" else float)
    columns = [(getattr(part, kind).get(name), part.rows) for part in parts]
    found = [np.full(rows, missing, empty.dtype) if own is None else own for own, rows in columns]
    return np.concatenate([empty, *found])
