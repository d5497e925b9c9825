"""Parse the overrides of a command line by Hydra's grammar, and check them against the schema."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Glob, Override, Quote, QuotedString
from hydra.errors import HydraException

from toolwright.config.keys import Key, Schema, every_key, find, format_value
from toolwright.config.schema import Config, RewardModelConfig, SupervisedConfig
from toolwright.config.validate import unknown_key
from toolwright.failures import nearest

PLAIN = re.compile(r"[A-Za-z_/][\w./+-]*", re.ASCII)  # text that needs no quotes, unless it is one of WORDS
WORDS = ("null", "true", "false", "nan", "inf")


@dataclass(frozen=True)
class Vocabulary:
    """The names that an override may set: keys of the schema, presets of the groups, and Hydra's own keys."""

    command: str
    schema: Schema
    groups: Mapping[str, Sequence[str]]
    choices: Callable[[str], Sequence[str]]  # of any group, Hydra's own among them


@dataclass
class ParsedOverrides:
    """The valid overrides of a command line, and one problem for each of the others."""

    overrides: list[Override] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def lines(self) -> list[str]:
        return [override.input_line or "" for override in self.overrides]

    @property
    def swept(self) -> set[str]:
        return {override.key_or_group for override in self.overrides if override.is_sweep_override()}

    def sets(self, key: str) -> bool:
        return any(override.key_or_group == key for override in self.overrides)

    def as_additions(self, groups: Container[str]) -> ParsedOverrides:
        """The same with `+algorithm=dapo` for `algorithm=dapo`: a resumed run has no preset to replace."""
        kept = [o for o in self.overrides if not (o.is_delete() and o.key_or_group in groups)]
        return ParsedOverrides([_as_addition(o) if o.key_or_group in groups else o for o in kept])


def parse(words: Sequence[str], vocabulary: Vocabulary, *, sweep: bool) -> ParsedOverrides:
    """Parse every word and collect all mistakes, so that they are reported together."""
    parsed = ParsedOverrides()
    seen: dict[str, str] = {}
    for word in words:
        override = _parse(word, vocabulary)
        if isinstance(override, str):
            parsed.problems.append(override)
            continue
        name = override.key_or_group
        twice = f"{word}: set twice, first as {seen[name]}; remove one of them" if name in seen else None
        problem = twice or _problem(override, vocabulary, sweep=sweep)
        if not override.is_delete():  # `~tools tools={a: {}}` takes the place of a preset's
            seen.setdefault(name, word)
        if problem:
            parsed.problems.append(problem)
        else:
            parsed.overrides += _for_hydra(override, vocabulary)
    return parsed


def _parse(word: str, vocabulary: Vocabulary) -> Override | str:
    name, equals, value = word.partition("=")
    if not equals and not word.startswith("~"):
        return _bare_word(word, vocabulary)
    parser = OverridesParser.create()
    try:
        override = parser.parse_override(word)
    except HydraException:
        key = find(vocabulary.schema, name.lstrip("+"))
        if not key or not key.text or value[:1] in tuple("'\"[{"):
            return _unreadable(word, name, value)
        # Hydra's grammar cannot read ~/tasks.jsonl or a name with an accent. Where only text is
        # allowed, take the word as it was typed.
        override = parser.parse_override(f"{name}={_quoted(value)}")
    return override if override.key_or_group else f"{word}: no key before the ="


def _bare_word(word: str, vocabulary: Vocabulary) -> str:
    for group, presets in vocabulary.groups.items():
        close = difflib.get_close_matches(word, presets, n=1, cutoff=0.75)
        if close:
            return f"{word}: not a key=value; did you mean {group}={close[0]}?"
    if find(vocabulary.schema, word):
        return f"{word}: not a key=value; `toolwright config` shows its value, {word}=… sets it"
    return f"{word}: not a key=value; settings are written like rollout.samples=8 or algorithm=grpo"


def _unreadable(word: str, name: str, value: str) -> str:
    if not value or not all(map(str.isidentifier, re.split(r"[./]", name.lstrip("+~")))):
        return f"{word}: cannot be read; settings are written like rollout.samples=8 or algorithm=grpo"
    quoted = _quoted(value)
    if value[0] == "[" and value[-1] == "]":
        quoted = f"[{','.join(_quoted(item.strip()) for item in value[1:-1].split(','))}]"
    corrected = shlex.quote(f"{name}={quoted}")
    return f"{word}: the value cannot be read; close every bracket and quote text: {corrected}"


def _as_addition(override: Override) -> Override:
    return OverridesParser.create().parse_override("+" + (override.input_line or "").lstrip("+"))


def _quoted(text: str) -> str:
    return QuotedString(text, Quote.double).with_quotes()


def quote(value: Any) -> str:
    """Write a value as the right side of an override, so that Hydra reads the same value back."""
    if isinstance(value, list | tuple):
        return f"[{','.join(quote(item) for item in value)}]"
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{name}:{quote(item)}' for name, item in value.items())}}}"
    if isinstance(value, str) and (not PLAIN.fullmatch(value) or value.lower() in WORDS):
        return _quoted(value)
    return format_value(value)


def _escaped(text: str) -> str:
    """Escape a dictionary key, which Hydra does not let us quote."""
    return re.sub(r"([\\()\[\]{}:=, \t])", r"\\\1", text)


def _problem(override: Override, vocabulary: Vocabulary, *, sweep: bool) -> str | None:
    word = override.input_line or ""
    name = override.key_or_group
    if override.is_sweep_override() and not sweep:
        key, _, values = word.partition("=")
        return (
            f"{word}: several values; add --multirun for a run of each, or write a list as {key}=[{values}]"
        )
    if name == "hydra" or name.startswith("hydra."):
        return None
    choices = vocabulary.choices(name)
    if choices and not isinstance(override.value(), dict):
        return _preset_problem(override, vocabulary, choices)
    if "/" in name:
        return f"{word}: unknown config group; {nearest(name, vocabulary.groups)}"
    if find(vocabulary.schema, name):
        return None
    others: dict[str, Schema] = {"train": Config, "sft": SupervisedConfig, "rm": RewardModelConfig}
    for command, schema in others.items():
        if find(schema, name):
            return f"{word}: a key of `{command}`, which `{vocabulary.command}` does not have"
    return unknown_key(vocabulary.schema, name, {} if override.is_delete() else word.partition("=")[2])


def _preset_problem(override: Override, vocabulary: Vocabulary, choices: Sequence[str]) -> str | None:
    word, group = override.input_line or "", override.key_or_group
    if not group.startswith("hydra/") and group not in vocabulary.groups:
        return (
            f"{word}: `{vocabulary.command}` has no presets of {group}; {nearest(group, vocabulary.groups)}"
        )
    value = override.value()
    if override.is_delete() or isinstance(value, Glob):
        return None
    if isinstance(value, ChoiceSweep):
        value = [item.text if isinstance(item, QuotedString) else item for item in value.list]
    for name in value if isinstance(value, list) else [value]:
        if name not in choices and ".py:" in str(name) and group in ("task", "engine"):
            return f"{word}: a preset is a name; for your own {group}, set {group}.name={name}"
        if name not in choices:
            known = ", ".join(sorted(choices))
            close = difflib.get_close_matches(format_value(name), choices, n=1, cutoff=0.5)
            hint = f"did you mean {group}={close[0]}? Known" if close else "known"
            return f"{word}: unknown preset {format_value(name)!r}; {hint}: {known}"
    return None


def _for_hydra(override: Override, vocabulary: Vocabulary) -> list[Override]:
    """Write the override as Hydra needs it, so that users need not know `+` and `++`."""
    whole_block = isinstance(override.value(), dict)
    chooses = not whole_block and vocabulary.choices(override.key_or_group)
    key = None if chooses else find(vocabulary.schema, override.key_or_group)
    if key is None or override.is_delete():
        return [override]
    value = (override.input_line or "").partition("=")[2]
    # tools=[a,b]: each without settings. Beneath an open dictionary, as in task.params.x=[a,b], it is a list.
    names = _names(override.value()) if key.open and key.annotation is not Any else None
    if names is not None:
        value = "{" + ", ".join(f"{_escaped(name)}: {{}}" for name in names) + "}"
    if key.text and isinstance(override.value(), bool | int | float):
        value = _quoted(value)
    # A whole block may hold a misspelt key: the schema reports it better than Hydra does.
    forced = whole_block or _in_open(key, vocabulary.schema)
    lines = [f"{'++' if forced else ''}{override.key_or_group}={value}"]
    # Hydra merges dictionaries: by itself, tools={} would keep the tools of a preset, and tools=[a] add one.
    declared = any(key.path == other.path for other in every_key(vocabulary.schema))
    if names is not None and declared and not override.is_force_add():
        lines.insert(0, f"~{override.key_or_group}")
    parser = OverridesParser.create()
    return [parser.parse_override(line) for line in lines]


def _names(value: object) -> list[str] | None:
    """The items of a list of words, of which {} has none; None for anything else."""
    if value == {}:
        return []
    items = value if isinstance(value, list) else [None]
    words = [item.text if isinstance(item, QuotedString) else item for item in items]
    names = [word for word in words if isinstance(word, str)]
    return names if len(names) == len(words) else None


def _in_open(key: Key, schema: Schema) -> bool:
    """True if the key is an open dictionary, lies in one, or lies in what may be a plain value: Hydra adds
    keys there only with `++`."""
    parts = key.path.split(".")
    above = [find(schema, ".".join(parts[:depth])) for depth in range(1, len(parts))]
    return key.open or any(place is not None and not place.block for place in above)
