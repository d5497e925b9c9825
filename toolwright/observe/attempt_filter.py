"""Filters of attempts that people write: `reward<0.5 stop=length tools>0 some words`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from operator import eq, ge, gt, le, lt, ne
from typing import Any

import numpy as np

from toolwright.failures import UserError, nearest
from toolwright.observe.attempt_index import AttemptTable
from toolwright.observe.text_search import search

Array = np.ndarray[Any, Any]
# What people write, and the column of the table where that has another name.
WRITTEN = {"tokens": "length", "tools": "tool_calls", "errors": "tool_errors"}
TEXTS = ("group", "task", "source", "stop", "question", "failure")
COMPARED = {"<=": le, ">=": ge, "!=": ne, "=": eq, "<": lt, ">": gt}
FLAGS = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}
_TERM = re.compile(
    r'(?P<name>[\w/]+)(?P<sign><=|>=|!=|==|=|<|>|~)(?P<value>"[^"]*"|\S*)|"(?P<quoted>[^"]*)"|(?P<word>\S+)'
)


@dataclass(frozen=True)
class AttemptCondition:
    """A comparison of a column with a value, as the user wrote it."""

    name: str
    sign: str
    value: str

    def holds(self, table: AttemptTable) -> Array:
        """Return for each attempt of the table if the condition holds."""
        if self.name == "step":
            return self._compare(table.step)
        if self.name == "failed":
            return self._flag(table.numbers["failed"] > 0)
        if self.name in TEXTS:
            return self._text(table)
        column = WRITTEN.get(self.name, self.name)
        if column not in table.numbers:
            known = ["step", *WRITTEN, *TEXTS, *table.numbers]
            raise UserError(f"attempts have no column {self.name!r}; {nearest(self.name, known)}")
        return self._compare(table.numbers[column])

    def _compare(self, values: Array) -> Array:
        if self.value.lower() == "none" and self.sign in ("=", "!="):
            return np.isnan(values) == (self.sign == "=")
        try:
            number = float(self.value)
        except ValueError:
            raise UserError(f"{self}: {self.value!r} is not a number") from None
        if self.sign not in COMPARED:
            raise UserError(f"{self}: {self.name} is a number; compare it with = != < <= > or >=")
        return np.asarray(COMPARED[self.sign](values, number) & ~np.isnan(values))

    def _flag(self, values: Array) -> Array:
        if self.sign not in ("=", "!=") or self.value.lower() not in FLAGS:
            raise UserError(f"{self}: write {self.name}=yes or {self.name}=no")
        return np.asarray(values == (FLAGS[self.value.lower()] == (self.sign == "=")))

    def _text(self, table: AttemptTable) -> Array:
        """Compare without regard to case. Commas separate several values."""
        if self.sign not in ("=", "!=", "~"):
            raise UserError(f"{self}: {self.name} is a text; compare it with = != or ~ (contains)")
        column, wanted = table.texts[self.name], [part.lower() for part in self.value.split(",")]
        words = [word.lower() for word in column.words.all]
        if self.sign == "~":
            fits = [any(part in word for part in wanted) for word in words]
        else:
            fits = [(word in wanted or word == self.value.lower()) == (self.sign == "=") for word in words]
        return np.array(fits, bool)[column.codes] if fits else np.zeros(len(table), bool)

    def __str__(self) -> str:
        return f"{self.name}{self.sign}{self.value}"


@dataclass(frozen=True)
class AttemptFilter:
    """Conditions that all hold, and texts that the attempt's prompt or answers all contain."""

    text: str = ""
    conditions: tuple[AttemptCondition, ...] = ()
    words: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> AttemptFilter:
        conditions, words = [], []
        for term in _TERM.finditer(text):
            if term["name"]:
                value = term["value"].strip('"')
                if not value:
                    raise UserError(f"{term[0]}: a value is missing")
                conditions.append(AttemptCondition(term["name"], term["sign"].replace("==", "="), value))
            elif word := term["quoted"] or term["word"]:
                words.append(word)
        return cls(text.strip(), tuple(conditions), tuple(words))

    def matching(self, table: AttemptTable) -> Array:
        """The places of the attempts that it lets through, in order of step and row."""
        return contain(table, self.places(table), self.words)

    def places(self, table: AttemptTable) -> Array:
        """The attempts for which the conditions hold, whatever their texts contain."""
        keep = np.ones(len(table), bool)
        for condition in self.conditions:
            keep &= condition.holds(table)
        return np.flatnonzero(keep)


def contain(table: AttemptTable, places: Array, words: Iterable[str]) -> Array:
    """The attempts whose prompt or answers contain all the words."""
    for word in words:
        found = search(table, places, word, skip=0, limit_s=math.inf)
        places = np.array(sorted(found.places), np.int64)
    return places
