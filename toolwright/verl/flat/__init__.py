"""Command lines that are a flat list of keys: verl's entry points beside PPO, and TRL's scripts.

A table says of every key which of four things it is: translated, near, without meaning here, or refused.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from toolwright.verl.translation import Translation

FOLDER = Path(__file__).parent
KINDS = ("translated", "near", "unused", "refused")
# Values that ask for nothing, or for what is done anyway.
HARMLESS = (None, False, 0, "", "none", "no", "fp32", "float32", "AdamW", "adam")


# Translates keys that are read together.
Special = Callable[[Mapping[str, Any], Translation], None]


@dataclass(frozen=True)
class FlatTable:
    """The rows of one YAML file, and a function for keys that are read together.

    The file lists such keys under `together`, and under `defaults` those of the library where ours differ.
    """

    name: str
    special: Special | None = None
    on_verl: bool = False  # keys that are in no row are verl's
    own_defaults: str = "defaults"  # a part of the file that goes over its `defaults`
    library: str = "verl"
    form: str = "{}={}"  # how a key is typed with its value

    def rows(self) -> dict[str, Any]:
        return _read(self.name)

    @property
    def defaults(self) -> dict[str, Any]:
        return {**self.rows()["defaults"], **self.rows()[self.own_defaults]}

    def translate(self, values: Mapping[str, Any], *, command: str, fit: bool) -> Translation:
        result = Translation(values, self.defaults, self.library, self.form, fit, command)
        try:
            if self.special:
                self.special(values, result)
        except (TypeError, ValueError) as error:
            result.refuse(f"a value of the wrong type: {error}")
        known = {one.ours for one in result.settings}
        together = {*self.rows()["together"], *result.accounted}
        for key, ours in self.rows()["translated"].items():
            if key in self.defaults.keys() - values.keys() - together and ours not in known:
                result.set(ours, self.defaults[key], key)
        for key, value in values.items():
            kind, reason = self._row(key) or ("", "")
            if key in together or (kind == "translated" and reason in known):
                if not result.says(key):
                    result.note("read together with other keys", key)
            elif kind == "translated":
                result.set(reason, value, key)
            elif kind:
                harmless = value in self.rows()["harmless"].get(key, HARMLESS)
                result.account_for(key, kind, reason, harmless="as it is here" if harmless else "")
            elif not self.on_verl:
                result.refuse(f"not a known key of {self.name.replace('_', ' ')}; {self._nearest(key)}", key)
            elif key not in known:
                result.set(key, value)
        return result

    def _row(self, key: str) -> tuple[str, str] | None:
        """The kind of a key, and what it becomes, or the reason. Its own row goes before a row for many."""
        if key in self.rows()["translated"]:
            return "translated", self.rows()["translated"][key]
        own = [(kind, why) for one, kind, why in self._listed() if one == key]
        many = [(k, why) for one, k, why in self._listed() if one[-1] == "*" and key.startswith(one[:-1])]
        return next(iter([*own, *many]), None)

    def _listed(self) -> Iterator[tuple[str, str, str]]:
        """Each key that is not translated, with its kind and the reason."""
        for kind in KINDS[1:]:
            yield from ((key, kind, why) for why, keys in self.rows()[kind].items() for key in keys)

    def keys(self) -> list[str]:
        """Every key that has a row."""
        return [*self.rows()["translated"], *(key for key, _, _ in self._listed())]

    def _nearest(self, key: str) -> str:
        close = difflib.get_close_matches(key, self.keys(), n=1)
        return f"did you mean {close[0]}?" if close else "there is no similar one"


@functools.cache
def _read(name: str) -> dict[str, Any]:
    tree = yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    return {kind: {} for kind in (*KINDS, "harmless", "together", "defaults")} | tree
