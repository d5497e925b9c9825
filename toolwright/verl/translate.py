"""Translate a verl command line into one of ours, and list what was changed and what has no equivalent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolwright.config.keys import format_value
from toolwright.failures import UserError
from toolwright.verl import keys, overrides
from toolwright.verl.config import REFERENCE, Machine, VerlConfig
from toolwright.verl.families import in_verls_words
from toolwright.verl.table import ROWS, KeyRow, Rule, row_of
from toolwright.verl.translation import TranslatedSetting, Translation


@dataclass(kw_only=True)
class VerlTranslation(Translation):
    """A command line of verl's. The sources of its settings are verl's keys."""

    verl: VerlConfig

    @property
    def missing_files(self) -> list[str]:
        return [path for path, here in self.verl.files.items() if not here]

    def typed_sources(self, setting: TranslatedSetting) -> list[str]:
        """Keys on the command line that a setting comes from, by a `${reference}` in verl's defaults too."""
        read = " ".join(str(keys.leaves().get(other, "")) for other in setting.sources)
        named = {*setting.sources, *REFERENCE.findall(read)}
        return [key for key in {**self.verl.overrides, **self.verl.typed} if key in named]

    def as_typed(self, *keys: str) -> str:
        return ", ".join(dict.fromkeys(self.verl.as_typed(key) for key in keys))

    def origin(self, setting: TranslatedSetting) -> str:
        typed = self.typed_sources(setting)
        words = self.as_typed(*(typed or setting.sources))
        return words if typed else f"{words} (verl's default)"

    def says(self, key: str) -> bool:
        typed = any(key in self.typed_sources(setting) for setting in self.settings)
        return typed or super().says(self.verl.typed.get(key, key))


def translate(
    line: Sequence[str],
    *,
    machine: Machine | None = None,
    fit: bool = False,
    config: Path | str | None = None,
    files_may_miss: bool = False,
) -> VerlTranslation:
    """Translate every override and collect all mistakes, so that they are reported together.

    `config`: a file of the user's, or the name of a configuration of verl's. With `files_may_miss`, files
    that the line names need not be here.
    """
    parsed = overrides.parse(line, config=config)
    other = in_verls_words(parsed.values, fit=fit)
    rows = {key: row for key in other.values if (row := row_of(key))}
    known = {key: other.values[key] for key in rows}
    verl = VerlConfig(known, machine or Machine.here(), fit, files_may_miss, other.family, other.typed)
    result = VerlTranslation(
        fit=fit,
        command="eval" if verl["trainer.val_only"] else "train",
        # The preset of a file, whatever the task: those of environments are for tiny models.
        arguments=["task=file"],
        ours=parsed.ours,
        changes=other.translation.changes,
        notes=[*parsed.notes, *other.translation.notes],
        problems=[*parsed.problems, *other.translation.problems],
        verl=verl,
    )
    result.problems += [_unknown(key, value) for key, value in other.values.items() if key not in known]
    _apply_rules(result)
    if any(setting.ours == "reward.function" for setting in other.settings):
        result.settings = [one for one in result.settings if not one.ours.startswith("reward.params.")]
    for setting in other.settings:  # in place of what verl's defaults led to
        result.set(setting.ours, setting.value, *setting.sources)
    for key, row in rows.items():
        if not result.says(key):
            _account_for(key, row, result)
    result.problems = list(dict.fromkeys(result.problems))
    result.changes = list(dict.fromkeys(result.changes))
    return result


def _apply_rules(translation: VerlTranslation) -> None:
    for rule in dict.fromkeys(row.rule for row in ROWS if row.rule is not None):
        try:
            rule(translation.verl, translation)
        except UserError as error:
            translation.refuse(str(error))
        except (TypeError, ValueError) as error:
            translation.refuse(_wrong_type(rule, translation.verl, error))


def _account_for(key: str, row: KeyRow, translation: VerlTranslation) -> None:
    """Note or refuse a key that the user set and that nothing here uses, with the reason."""
    value, harmless = translation.verl[key], ""
    if value is None or value in row.harmless or (key in keys.leaves() and value == keys.leaves()[key]):
        # The default of a key that is only near says what verl does, once another key asks for it.
        same = row.support == "refused" or not value or value in row.harmless
        harmless = "as it is here" if same else "verl's default"
    translation.account_for(key, row.support, row.how, harmless=harmless)


def _unknown(key: str, value: Any) -> str:
    if key in keys.blocks():
        return f"{key}={format_value(value)}: a block of keys, not a value"
    return f"{key}={format_value(value)}: not a key of verl's; {keys.nearest_key(key)}"


def _wrong_type(rule: Rule, verl: VerlConfig, error: Exception) -> str:
    words = [verl.as_typed(row.key) for row in ROWS if row.rule is rule and verl.is_set(row.key)]
    return f"{', '.join(words) or 'verl’s defaults'}: of the wrong type ({error})"
