"""A translation for reading: our keys, the keys of verl's they come from, and what is said of the rest."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from toolwright.config.keys import written
from toolwright.verl.row import TranslatedSetting
from toolwright.verl.translate import Translation

ROUTE = "  ←  "


def translation(made: Translation) -> str:
    """The whole of it: settings, changes, notes, and our own command line."""
    return "\n".join([*_settings(made), *remarks(made), *_command(made)])


def remarks(made: Translation) -> list[str]:
    """What a run prints before it starts."""
    changed = [f"--fit: {text}" for text in made.changes]
    return [*changed, *(f"note: {text}" for text in made.notes)]


def _settings(made: Translation) -> Iterator[str]:
    ours = [f"{setting.ours}={written(setting.value)}" for setting in made.settings]
    width = max(map(len, ours), default=0)
    for text, setting in zip(ours, made.settings, strict=True):
        yield f"{text:<{width}}{ROUTE}{_said(setting, made)}"
    for word in made.ours:
        yield f"{word:<{width}}{ROUTE}toolwright.{word}"
    yield ""


def _said(setting: TranslatedSetting, made: Translation) -> str:
    asked = made.asked
    said = [key for key in setting.because if asked.says(key)]
    if said:
        return ", ".join(asked.shown(key) for key in said)
    return f"{', '.join(asked.shown(key) for key in setting.because)} (verl's default)"


def _command(made: Translation) -> Iterator[str]:
    yield ""
    yield "The same run in our words:"
    yield f"  {shlex.join(['toolwright', made.command, *made.words])}"
