"""Command lines that are a flat list of keys: verl's entry points beside PPO, and TRL's scripts.

A table says of every key which of four things it is: translated, near, without meaning here, or refused.
"""

from __future__ import annotations

import difflib
import functools
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from toolwright.config.keys import format_value
from toolwright.config.overrides import quote

FOLDER = Path(__file__).parent
KINDS = ("translated", "near", "unused", "refused")
# Values that ask for nothing, or for what is done anyway.
HARMLESS = (None, False, 0, "", "none", "no", "fp32", "float32", "AdamW", "adam")


@dataclass
class FlatTranslation:
    """What became of each key, and the command of ours."""

    fit: bool
    command: str = "train"
    settings: list[tuple[str, Any, str]] = field(default_factory=list)  # ours, value, as typed
    words: list[str] = field(default_factory=list)  # arguments of ours that are no key=value
    changes: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    verls: dict[str, Any] = field(default_factory=dict)  # what a table over verl's leaves as it is

    def set(self, ours: str, value: Any, source: str) -> None:
        self.settings = [one for one in self.settings if one[0] != ours]
        self.settings.append((ours, value, source))

    def keep_in(self, folder: str, source: str) -> None:
        """The folder that a run writes to: its parent and its name."""
        path = Path(folder).expanduser()
        self.set("run.dir", str(path.parent), source)
        self.set("run.name", path.name, source)

    def near(self, text: str) -> None:
        if self.fit:
            self.changes.append(text)
        else:
            self.problems.append(f"{text}; --fit accepts that")

    @property
    def line(self) -> list[str]:
        """The arguments of our command; a preset goes first."""
        words = [f"{ours}={quote(value)}" for ours, value, _ in self.settings]
        presets = [word for word in words if "." not in word.partition("=")[0]]
        return [*self.words, *presets, *(word for word in words if word not in presets)]

    def says(self, key: str) -> bool:
        """Whether a list names this key."""
        named = re.compile(rf"(?<![\w.]){re.escape(key)}(?![\w.])")
        sources = [source for _, _, source in self.settings]
        return any(map(named.search, (*sources, *self.changes, *self.notes, *self.problems)))

    def describe(self) -> str:
        """The four lists, and the same as a command of ours."""
        texts = [f"{ours}={format_value(value)}" for ours, value, _ in self.settings]
        width = max(map(len, texts), default=0)
        listed = {
            "Translated:": [
                f"{text:<{width}}  ←  {source}"
                for text, (_, _, source) in zip(texts, self.settings, strict=True)
            ],
            "Nearly so (--fit):": self.changes,
            "Without meaning here, or to be known:": self.notes,
            "Refused:": self.problems,
            "The same as a command of Toolwright:": [shlex.join(["toolwright", self.command, *self.line])],
        }
        sections = [[head, *(f"  {line}" for line in lines)] for head, lines in listed.items() if lines]
        return "\n\n".join("\n".join(section) for section in sections)


Special = Callable[[Mapping[str, Any], FlatTranslation], Iterator[str]]


@dataclass(frozen=True)
class FlatTable:
    """The rows of one YAML file, and a function for keys that are read together."""

    name: str
    special: Special | None = None  # yields the keys that it has accounted for
    on_verl: bool = False  # keys that are in no row are verl's

    def rows(self) -> dict[str, dict[str, Any]]:
        return _read(self.name)

    def translate(self, values: Mapping[str, Any], *, command: str, fit: bool) -> FlatTranslation:
        result = FlatTranslation(fit, command)
        done: set[str] = set()
        try:
            for key in self.special(values, result) if self.special else ():
                done.add(key)
        except (TypeError, ValueError) as error:
            result.problems.append(f"a value of the wrong type: {error}")
        for key, value in values.items():
            if key not in done and self.on_verl and not self._has(key):
                result.verls[key] = value
            elif key not in done:
                self._row(key, value, result)
            elif not result.says(key):
                result.notes.append(f"{key}={format_value(value)}: read together with other keys")
        return result

    def _has(self, key: str) -> bool:
        rows = self.rows()
        return key in rows["translated"] or any(
            _covers(keys, key) for kind in KINDS[1:] for keys in rows[kind].values()
        )

    def _row(self, key: str, value: Any, result: FlatTranslation) -> None:
        word, rows = f"{key}={format_value(value)}", self.rows()
        if key in rows["translated"]:
            result.set(rows["translated"][key], value, word)
            return
        for kind in KINDS[1:]:
            reason = next((why for why, keys in rows[kind].items() if _covers(keys, key)), None)
            if reason is None:
                continue
            if kind == "unused":
                result.notes.append(f"{word}: not used: {reason}")
            elif value in HARMLESS:
                result.notes.append(f"{word}: as it is here")
            elif kind == "near":
                result.near(f"{word}: {reason}")
            else:
                result.problems.append(f"{word}: has no equivalent: {reason}")
            return
        known = [
            *rows["translated"],
            *(k for kind in KINDS[1:] for keys in rows[kind].values() for k in keys),
        ]
        close = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
        hint = f"did you mean {close[0]}?" if close else "there is no similar one"
        result.problems.append(f"{word}: not a known key of {self.name.replace('_', ' ')}; {hint}")


def as_typed(values: Mapping[str, Any], *names: str) -> str:
    """The keys among these that are set: `key=value, key=value`."""
    return ", ".join(f"{key}={format_value(values[key])}" for key in names if key in values)


def _covers(keys: list[str], key: str) -> bool:
    return any(key == one or (one.endswith("*") and key.startswith(one[:-1])) for one in keys)


@functools.cache
def _read(name: str) -> dict[str, dict[str, Any]]:
    tree = yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    return {kind: tree.get(kind) or {} for kind in KINDS}
