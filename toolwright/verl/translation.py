"""The translation of a command line of verl, of TRL or of a fork: our keys, and a line for each other key."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from toolwright.config.keys import format_value
from toolwright.config.overrides import quote


class TranslatedSetting(NamedTuple):
    """One of our keys with its value, and the keys that it comes from."""

    ours: str
    value: Any
    sources: tuple[str, ...]


@dataclass
class Translation:
    """A translated command line.

    Every key of the line is in one of four lists: a source of `settings`, in `changes` (done nearly the same
    way), in `notes` (not used, or good to know) or in `problems`, which stop the run.
    """

    values: Mapping[str, Any] = field(default_factory=dict)  # by key, as they were typed
    defaults: Mapping[str, Any] = field(default_factory=dict)  # of the library, for keys that are not set
    library: str = "verl"
    form: str = "{}={}"  # how a key is typed with its value
    fit: bool = False
    command: str = "train"
    settings: list[TranslatedSetting] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)  # of our command, before its keys
    ours: list[str] = field(default_factory=list)  # `toolwright.KEY=VALUE`, without the prefix
    changes: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    accounted: set[str] = field(default_factory=set)  # keys that need no row of a table any more

    def read(self, *keys: str) -> None:
        """Take these keys as accounted for: others that are read together with them say what they become."""
        self.accounted.update(keys)

    def set(self, ours: str, value: Any, *sources: str) -> None:
        """Set one of our keys. The last value counts."""
        self.settings = [one for one in self.settings if one.ours != ours]
        self.settings.append(TranslatedSetting(ours, value, sources))

    def set_folder(self, folder: str, source: str) -> None:
        """Set the folder that the run writes to: its parent and its name."""
        path = Path(folder).expanduser()
        self.set("run.dir", str(path.parent), source)
        self.set("run.name", path.name, source)

    def note(self, text: str, *keys: str) -> None:
        """Say something that the user should know of these keys; the run goes on."""
        self.notes.append(self._about(keys, text))

    def near(self, text: str, *keys: str) -> None:
        """Say what is done nearly so: a change with `--fit`, a problem without."""
        if self.fit:
            self.changes.append(self._about(keys, text))
        else:
            self.refuse(f"{text}; --fit accepts that", *keys)

    def refuse(self, text: str, *keys: str) -> None:
        """Say why the command line cannot be translated."""
        self.problems.append(self._about(keys, text))

    def account_for(self, key: str, support: str, how: str, *, harmless: str) -> None:
        """Note or refuse a key that nothing here uses. `support`, `how`: the kind of its row, and the reason.
        `harmless`: why its value asks for nothing; empty if it does."""
        if support in ("near", "refused") and harmless:
            self.note(harmless, key)
        elif support == "refused":
            self.refuse(f"has no equivalent: {how}", key)
        elif support == "near":
            self.near(how, key)
        elif support == "translated":
            why = f": it counts {how}" if how.startswith("if ") else f" ({how or 'another key decides'})"
            self.note(f"without effect here{why}", key)
        else:
            self.note(f"{'not used' if support == 'unused' else 'nothing to set'}: {how}", key)

    @property
    def whole(self) -> dict[str, Any]:
        """The values that are set, over the library's defaults."""
        return {**self.defaults, **self.values}

    def as_typed(self, *keys: str) -> str:
        """The keys among these that are set, with their values."""
        return ", ".join(
            self.form.format(key, format_value(self.values[key])) for key in keys if key in self.values
        )

    def _about(self, keys: tuple[str, ...], text: str) -> str:
        self.accounted.update(keys)
        return f"{self.as_typed(*keys)}: {text}" if keys else text

    def value(self, ours: str) -> Any:
        """The value of one of our keys."""
        return next(one.value for one in self.settings if one.ours == ours)

    @property
    def words(self) -> list[str]:
        """The arguments of our command: presets first; `toolwright.KEY=VALUE` wins over a translated key."""
        own = {word.partition("=")[0] for word in self.ours}
        words = [f"{one.ours}={quote(one.value)}" for one in self.settings if one.ours not in own]
        presets = [word for word in words if "." not in word.partition("=")[0]]
        return [*self.arguments, *presets, *(word for word in words if word not in presets), *self.ours]

    @property
    def missing_files(self) -> list[str]:
        """Files that the line names and that are not here."""
        return []

    def origin(self, setting: TranslatedSetting) -> str:
        """The words that a setting comes from: keys as they were typed, or else the library's defaults."""
        if typed := self.as_typed(*setting.sources):
            return typed
        known = [key for key in setting.sources if key in self.defaults]
        words = [self.form.format(key, format_value(self.whole[key])) for key in known]
        return f"{', '.join(words)} ({self.library}'s default)" if words else ", ".join(setting.sources)

    def says(self, key: str) -> bool:
        """Return True if a list names this key."""
        named = re.compile(rf"(?<![\w.]){re.escape(key)}(?!\w|\.\w)")
        sources = map(self.origin, self.settings)
        return any(map(named.search, (*sources, *self.changes, *self.notes, *self.problems)))

    def describe(self) -> str:
        """The four lists, the files that are missing, and the same as a command of ours."""
        settings = [(f"{one.ours}={format_value(one.value)}", self.origin(one)) for one in self.settings]
        settings += [(word, f"toolwright.{word}") for word in self.ours]
        width = max((len(text) for text, _ in settings), default=0)
        listed = {
            "Translated:": [f"{text:<{width}}  ←  {origin}" for text, origin in settings],
            "Nearly so (--fit):": self.changes,
            "Not used, or good to know:": self.notes,
            "Refused:": self.problems,
            "Files that are not here:": self.missing_files,
            "The same run as a command of Toolwright:": [
                shlex.join(["toolwright", self.command, *self.words])
            ],
        }
        sections = [[head, *(f"  {line}" for line in lines)] for head, lines in listed.items() if lines]
        return "\n\n".join("\n".join(section) for section in sections)
