"""Translate a verl command line into one of ours, and list what was changed and what has no equivalent."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Quote, QuotedString

from toolwright.config.keys import find, format_value, leaves
from toolwright.config.names import Registered
from toolwright.config.schema import Config
from toolwright.failures import UserError
from toolwright.verl import keys, overrides
from toolwright.verl.config import Machine, VerlConfig
from toolwright.verl.row import FitChange, KeyRow, Note, Rule, TranslatedSetting, TranslationProblem
from toolwright.verl.table import ROWS, row_of

PLAIN = re.compile(r"[A-Za-z_][\w./+-]*")
WORDS = ("null", "true", "false", "nan", "inf")


@dataclass
class Translation:
    """A translated command line, in the order of the table. `problems` stop the run, `notes` do not."""

    verl: VerlConfig
    settings: list[TranslatedSetting] = field(default_factory=list)
    ours: list[str] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def command(self) -> str:
        return "eval" if self.verl["trainer.val_only"] else "train"

    @property
    def words(self) -> list[str]:
        """The overrides of our own command line; `toolwright.KEY=VALUE` wins over a translated key."""
        own = {word.partition("=")[0] for word in self.ours}
        words = [f"{s.ours}={quote(s.value)}" for s in self.settings if s.ours not in own]
        return ["task=file", *words, *self.ours]

    def value(self, ours: str) -> Any:
        """The value of one of our keys."""
        return next(setting.value for setting in self.settings if setting.ours == ours)


def translate(
    line: Sequence[str], *, machine: Machine | None = None, fit: bool = False, config: Path | None = None
) -> Translation:
    """Translate every override and collect all mistakes, so that they are reported together."""
    parsed = overrides.parse(line, config=config)
    known = {key: value for key, value in parsed.values.items() if row_of(key)}
    verl = VerlConfig(known, machine or Machine.here(), fit)
    result = Translation(verl, ours=parsed.ours, notes=parsed.notes, problems=parsed.problems)
    result.problems += [_unknown(key, value) for key, value in parsed.values.items() if key not in known]
    _apply_rules(result)
    for key in known:
        _account_for(key, result)
    result.problems += [problem for setting in result.settings if (problem := _missing_here(setting, verl))]
    result.problems = list(dict.fromkeys(result.problems))
    return result


def quote(value: Any) -> str:
    """A value as a word of our command line."""
    if isinstance(value, list | tuple):
        return f"[{','.join(quote(item) for item in value)}]"
    if isinstance(value, str) and (not PLAIN.fullmatch(value) or value.lower() in WORDS):
        return str(QuotedString(value, Quote.double).with_quotes())
    return format_value(value)


def _apply_rules(translation: Translation) -> None:
    rules: dict[Rule, None] = {row.rule: None for row in ROWS if row.rule is not None}
    for rule in rules:
        try:
            for outcome in rule(translation.verl):
                match outcome:
                    case TranslatedSetting():
                        translation.settings.append(outcome)
                    case Note(text):
                        translation.notes.append(text)
                    case FitChange(text):
                        translation.changes.append(text)
                    case TranslationProblem(text):
                        translation.problems.append(text)
        except UserError as error:
            translation.problems.append(str(error))
        except (TypeError, ValueError) as error:
            translation.problems.append(_wrong_type(rule, translation.verl, error))


def _account_for(key: str, translation: Translation) -> None:
    """Note or refuse a key that the user set and that nothing here uses, with the reason."""
    row = row_of(key)
    if row is None:
        return
    verl, word = translation.verl, translation.verl.as_typed(key)
    if row.support == "refused":
        if not _harmless(row, key, verl[key]):
            translation.problems.append(f"{word}: has no equivalent: {row.how}")
    elif row.support == "always":
        translation.notes.append(f"{word}: nothing to set: {row.how}")
    elif row.support == "unused":
        translation.notes.append(f"{word}: not used: {row.how}")
    elif row.rule is not None and row.ours and not _is_used(key, translation):
        translation.notes.append(f"{word}: without effect here ({row.how or 'another key decides'})")


def _is_used(key: str, translation: Translation) -> bool:
    """Whether a setting comes from this key, directly or by a `${reference}` in verl's defaults."""
    used = {other for setting in translation.settings for other in setting.sources}
    return key in used or any(key in str(keys.leaves().get(other, "")) for other in used)


def _harmless(row: KeyRow, key: str, value: Any) -> bool:
    missing = object()
    return value == keys.leaves().get(key, missing) or value is None or value in row.harmless


def _unknown(key: str, value: Any) -> str:
    if key in keys.blocks():
        return f"{key}={format_value(value)}: a block of keys, not a value"
    return f"{key}={format_value(value)}: not a key of verl's; {keys.nearest_key(key)}"


def _missing_here(setting: TranslatedSetting, verl: VerlConfig) -> str | None:
    """Report a key or a name that the table leads to and this version does not have."""
    words = ", ".join(verl.as_typed(key) for key in setting.sources)
    target = f"{setting.ours}={format_value(setting.value)}"
    if find(Config, setting.ours) is None:
        return f"{words}: would be {target}, which this version of Toolwright does not have yet"
    mark = next((m for key in leaves(Config) if key.path == setting.ours for m in key.metadata), None)
    if isinstance(mark, Registered) and isinstance(setting.value, str) and mark.problem(setting.value):
        return f"{words}: would be {target}, but there is no {mark.kind} of that name yet"
    return None


def _wrong_type(rule: Rule, verl: VerlConfig, error: Exception) -> str:
    words = [verl.as_typed(row.key) for row in ROWS if row.rule is rule and verl.is_set(row.key)]
    return f"{', '.join(words) or 'verl’s defaults'}: of the wrong type ({error})"
