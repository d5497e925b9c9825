"""Translate a verl command line into one of ours, and list what was changed and what has no equivalent."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolwright.config.keys import find, format_value, leaves
from toolwright.config.names import Registered
from toolwright.config.overrides import quote
from toolwright.config.schema import Config
from toolwright.failures import UserError
from toolwright.verl import keys, overrides
from toolwright.verl.config import REFERENCE, Machine, VerlConfig
from toolwright.verl.families import in_verls_words
from toolwright.verl.row import FitChange, KeyRow, Near, Note, Rule, TranslatedSetting, TranslationProblem
from toolwright.verl.table import ROWS, row_of


@dataclass
class Translation:
    """A translated command line, in the order of the table.

    A key of verl's is in one of four lists: a source of `settings`, in `changes` (done nearly so), in `notes`
    (without meaning here) or in `problems`, which stop the run.
    """

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
        """The overrides of our own command line; `toolwright.KEY=VALUE` wins over a translated key.

        The preset is that of a file for every task: those of environments are for tiny models.
        """
        own = {word.partition("=")[0] for word in self.ours}
        words = [f"{s.ours}={quote(s.value)}" for s in self.settings if s.ours not in own]
        return ["task=file", *words, *self.ours]

    def value(self, ours: str) -> Any:
        """The value of one of our keys."""
        return next(setting.value for setting in self.settings if setting.ours == ours)

    def typed_sources(self, setting: TranslatedSetting) -> list[str]:
        """Keys on the command line that a setting comes from, by a `${reference}` in verl's defaults too."""
        read = " ".join(str(keys.leaves().get(other, "")) for other in setting.sources)
        named = {*setting.sources, *REFERENCE.findall(read)}
        return [key for key in {**self.verl.overrides, **self.verl.typed} if key in named]

    def says(self, key: str) -> bool:
        """Whether a list names this key."""
        if any(key in self.typed_sources(setting) for setting in self.settings):
            return True
        written = self.verl.typed.get(key, key)
        named = re.compile(rf"(?<![\w.]){re.escape(written)}(?!\w|\.\w)")
        return any(named.search(text) for text in (*self.changes, *self.notes, *self.problems))


def translate(
    line: Sequence[str],
    *,
    machine: Machine | None = None,
    fit: bool = False,
    config: Path | str | None = None,
    files_may_miss: bool = False,
) -> Translation:
    """Translate every override and collect all mistakes, so that they are reported together.

    `config`: a file of the user's, or the name of a configuration of verl's. With `files_may_miss`, files
    that the line names need not be here.
    """
    parsed = overrides.parse(line, config=config)
    values, other = in_verls_words(parsed.values, fit=fit)
    known = {key: value for key, value in values.items() if row_of(key)}
    verl = VerlConfig(known, machine or Machine.here(), fit, files_may_miss, other.family, other.typed)
    result = Translation(verl, ours=parsed.ours, changes=other.changes)
    result.notes = [*parsed.notes, *other.notes]
    result.problems = [*parsed.problems, *other.problems]
    result.problems += [_unknown(key, value) for key, value in values.items() if key not in known]
    _apply_rules(result)
    _replace(result, other.settings)
    for key in known:
        if not result.says(key):
            _account_for(key, result)
    result.problems += [problem for setting in result.settings if (problem := _missing_here(setting, verl))]
    result.problems = list(dict.fromkeys(result.problems))
    result.changes = list(dict.fromkeys(result.changes))
    return result


def _replace(translation: Translation, given: list[TranslatedSetting]) -> None:
    """Put settings that another family's keys became in place of those that verl's defaults led to."""
    if any(setting.ours == "reward.function" for setting in given):
        translation.settings = [
            one for one in translation.settings if not one.ours.startswith("reward.params.")
        ]
    replaced = {setting.ours for setting in given}
    translation.settings = [one for one in translation.settings if one.ours not in replaced] + given


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
                    case Near(text):
                        come_near(text, translation)
                    case TranslationProblem(text):
                        translation.problems.append(text)
        except UserError as error:
            translation.problems.append(str(error))
        except (TypeError, ValueError) as error:
            translation.problems.append(_wrong_type(rule, translation.verl, error))


def come_near(text: str, translation: Translation) -> None:
    """Note what is done nearly as verl does it; without `--fit` it is a problem."""
    if translation.verl.fit:
        translation.changes.append(text)
    else:
        translation.problems.append(f"{text}; --fit accepts that")


def _account_for(key: str, translation: Translation) -> None:
    """Note or refuse a key that the user set and that nothing here uses, with the reason."""
    row = row_of(key)
    if row is None:
        return
    verl, word = translation.verl, translation.verl.as_typed(key)
    if row.support in ("refused", "near") and _harmless(row, key, verl[key]):
        # The default of a key that is only near says what verl does, once another key asks for it.
        same = row.support == "refused" or not verl[key] or verl[key] in row.harmless
        said = "as it is here" if same else "verl's default"
        translation.notes.append(f"{word}: {said}")
    elif row.support == "refused":
        translation.problems.append(f"{word}: has no equivalent: {row.how}")
    elif row.support == "near":
        come_near(f"{word}: {row.how}", translation)
    elif row.support == "always":
        translation.notes.append(f"{word}: nothing to set: {row.how}")
    elif row.support == "unused":
        translation.notes.append(f"{word}: not used: {row.how}")
    else:
        why = (
            f": it counts {row.how}"
            if row.how.startswith("where ")
            else f" ({row.how or 'another key decides'})"
        )
        translation.notes.append(f"{word}: without effect here{why}")


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
    mark = _registries().get(setting.ours)
    if mark is not None and isinstance(setting.value, str) and mark.problem(setting.value):
        return f"{words}: would be {target}, but there is no {mark.kind} of that name yet"
    return None


@functools.cache
def _registries() -> dict[str, Registered]:
    """Our keys whose value is the name of something registered."""
    marks = {key.path: next(iter(key.metadata), None) for key in leaves(Config)}
    return {path: mark for path, mark in marks.items() if isinstance(mark, Registered)}


def _wrong_type(rule: Rule, verl: VerlConfig, error: Exception) -> str:
    words = [verl.as_typed(row.key) for row in ROWS if row.rule is rule and verl.is_set(row.key)]
    return f"{', '.join(words) or 'verl’s defaults'}: of the wrong type ({error})"
