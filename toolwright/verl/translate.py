"""A verl command line as one of ours: what each word becomes, what was changed, what cannot be."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Quote, QuotedString

from toolwright.config.keys import find, leaves, written
from toolwright.config.names import Registered
from toolwright.config.schema import Config
from toolwright.failures import UserError
from toolwright.verl import keys, words
from toolwright.verl.asked import VerlConfig
from toolwright.verl.machine import Machine
from toolwright.verl.row import Changed, KeyRow, Note, Rule, TranslatedSetting, TranslationProblem
from toolwright.verl.table import ROWS, row_of

PLAIN = re.compile(r"[A-Za-z_][\w./+-]*")
WORDS = ("null", "true", "false", "nan", "inf")


@dataclass
class Translation:
    """`settings` in the order of the table; `notes` are for reading, `problems` stop the run."""

    asked: VerlConfig
    settings: list[TranslatedSetting] = field(default_factory=list)
    ours: list[str] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def command(self) -> str:
        return "eval" if self.asked["trainer.val_only"] else "train"

    @property
    def words(self) -> list[str]:
        """The overrides of our own command line; what was said in our own keys has the last word."""
        said = {word.partition("=")[0] for word in self.ours}
        made = [f"{s.ours}={typed(s.value)}" for s in self.settings if s.ours not in said]
        return ["task=file", *made, *self.ours]

    def value(self, ours: str) -> Any:
        """What a key of ours was set to."""
        return next(setting.value for setting in self.settings if setting.ours == ours)


def translate(
    line: Sequence[str], *, machine: Machine | None = None, fit: bool = False, config: Path | None = None
) -> Translation:
    """Every word is judged, so that all mistakes come to light at once."""
    read = words.read(line, config=config)
    known = {key: value for key, value in read.said.items() if row_of(key)}
    made = Translation(VerlConfig(known, machine or Machine.here(), fit), ours=read.ours, notes=read.notes)
    made.problems += read.problems
    made.problems += [_unknown(key, value) for key, value in read.said.items() if key not in known]
    _apply_rules(made)
    for key in known:
        _account_for(key, made)
    made.problems += [problem for setting in made.settings if (problem := _not_there(setting, made.asked))]
    made.problems = list(dict.fromkeys(made.problems))
    return made


def typed(value: Any) -> str:
    """A value as a word of our command line."""
    if isinstance(value, list | tuple):
        return f"[{','.join(typed(item) for item in value)}]"
    if isinstance(value, str) and (not PLAIN.fullmatch(value) or value.lower() in WORDS):
        return str(QuotedString(value, Quote.double).with_quotes())
    return written(value)


def _apply_rules(made: Translation) -> None:
    rules: dict[Rule, None] = {row.rule: None for row in ROWS if row.rule is not None}
    for rule in rules:
        try:
            for outcome in rule(made.asked):
                match outcome:
                    case TranslatedSetting():
                        made.settings.append(outcome)
                    case Note(text):
                        made.notes.append(text)
                    case Changed(text):
                        made.changes.append(text)
                    case TranslationProblem(text):
                        made.problems.append(text)
        except UserError as error:
            made.problems.append(str(error))
        except (TypeError, ValueError) as error:
            made.problems.append(_wrong_type(rule, made.asked, error))


def _account_for(key: str, made: Translation) -> None:
    """What the user said and nothing here does is named, with the reason."""
    row = row_of(key)
    if row is None:
        return
    asked, said = made.asked, made.asked.shown(key)
    if row.fate == "refused":
        if not _harmless(row, key, asked[key]):
            made.problems.append(f"{said}: has no equivalent: {row.how}")
    elif row.fate == "always":
        made.notes.append(f"{said}: nothing to set: {row.how}")
    elif row.fate == "unused":
        made.notes.append(f"{said}: not used: {row.how}")
    elif row.rule is not None and row.ours and not _heard(key, made):
        made.notes.append(f"{said}: without effect here ({row.how or 'another key decides'})")


def _heard(key: str, made: Translation) -> bool:
    """Whether some setting stands on this key, by itself or by a reference of verl's own to it."""
    stood_on = {other for setting in made.settings for other in setting.because}
    return key in stood_on or any(key in str(keys.leaves().get(other, "")) for other in stood_on)


def _harmless(row: KeyRow, key: str, value: Any) -> bool:
    missing = object()
    return value == keys.leaves().get(key, missing) or value is None or value in row.harmless


def _unknown(key: str, value: Any) -> str:
    if key in keys.blocks():
        return f"{key}={written(value)}: a block of keys, not a value"
    return f"{key}={written(value)}: not a key of verl's; {keys.nearest_key(key)}"


def _not_there(setting: TranslatedSetting, asked: VerlConfig) -> str | None:
    """A key or a name that the table knows of and this version does not have yet."""
    said = ", ".join(asked.shown(key) for key in setting.because)
    target = f"{setting.ours}={written(setting.value)}"
    if find(Config, setting.ours) is None:
        return f"{said}: would be {target}, which this version of Toolwright does not have yet"
    mark = next((m for key in leaves(Config) if key.path == setting.ours for m in key.metadata), None)
    if isinstance(mark, Registered) and isinstance(setting.value, str) and mark.problem(setting.value):
        return f"{said}: would be {target}, but there is no {mark.kind} of that name yet"
    return None


def _wrong_type(rule: Rule, asked: VerlConfig, error: Exception) -> str:
    said = [asked.shown(row.key) for row in ROWS if row.rule is rule and asked.says(row.key)]
    return f"{', '.join(said) or 'verl’s defaults'}: of the wrong type ({error})"
