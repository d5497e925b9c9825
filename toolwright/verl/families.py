"""Configurations of RLinf and RAGEN in verl's words, so that verl's own rules translate them.

A table of each family says of its keys which are verl's under another name, near, without meaning here, or
refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from toolwright.verl import keys
from toolwright.verl.flat import FlatTable
from toolwright.verl.flat.ragen import RAGEN
from toolwright.verl.flat.rlinf import RLINF
from toolwright.verl.translation import TranslatedSetting, Translation

OURS = "toolwright."
# Functions that RLinf's files call within ${…}.
RESOLVERS: dict[str, Callable[..., Any]] = {
    "subtract": lambda whole, part: whole - part,
    "not": lambda value: not value,
}


@dataclass(frozen=True)
class Family:
    name: str
    marks: tuple[str, ...]  # blocks of keys that this family alone has
    table: FlatTable


FAMILIES = (
    Family("RLinf", ("runner.", "cluster.", "agentloop."), RLINF),
    Family("RAGEN", ("es_manager.", "agent_proxy."), RAGEN),
)


@dataclass
class VerlLine:
    """A command line of any family in verl's words: values by its keys, and what else became of the line."""

    values: dict[str, Any]
    family: str = "verl"
    typed: dict[str, str] = field(default_factory=dict)  # by verl's key: the words that became it
    settings: list[TranslatedSetting] = field(default_factory=list)
    translation: Translation = field(default_factory=Translation)


def in_verls_words(values: Mapping[str, Any], *, fit: bool) -> VerlLine:
    """The values by verl's keys. Those of verl and of forks that keep its keys stay as they are."""
    family = next((one for one in FAMILIES if any(key.startswith(one.marks) for key in values)), None)
    if family is None:
        return VerlLine(dict(values))
    found = family.table.translate(_resolved(values), command="train", fit=fit)
    line = VerlLine({}, family.name, translation=found)
    for setting in found.settings:
        key, value, sources = setting
        if sources:
            line.typed[key] = found.origin(setting)
        if key.startswith(OURS):
            line.settings.append(TranslatedSetting(key.removeprefix(OURS), value, (key,)))
        else:
            line.values[key] = value
    return line


def _resolved(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values with their `${references}` read. One to a default of verl's is left to verl's rules."""
    tree: dict[str, Any] = {}
    for key, value in values.items():
        keys.put(tree, key, value)
    for name, function in RESOLVERS.items():
        OmegaConf.register_new_resolver(name, function, replace=True)

    def read(value: Any) -> Any:
        if not isinstance(value, str) or "${" not in value:
            return value
        try:
            return OmegaConf.create({**tree, "asked for": value})["asked for"]
        except OmegaConfBaseException:
            return value

    return {key: read(value) for key, value in values.items()}
