"""The table: every key of verl with its translation.

A module for each block of verl's configuration holds the keys that become ours. `untranslated.yaml` holds
the others.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import yaml

from toolwright.verl.row import KeyRow
from toolwright.verl.table import (
    actor,
    algorithm,
    critic,
    data,
    environment,
    model,
    prime,
    reward,
    rollout,
    tools,
    trainer,
)

UNTRANSLATED = yaml.safe_load(
    Path(__file__).parents[1].joinpath("untranslated.yaml").read_text(encoding="utf-8")
)


def _untranslated(section: str) -> Iterator[KeyRow]:
    for support, reasons in UNTRANSLATED[section].items():
        for reason, keys in reasons.items():
            for key in keys:
                yield KeyRow(key, support, reason, harmless=tuple(UNTRANSLATED["harmless"].get(key, ())))


SECTIONS: dict[str, list[KeyRow]] = {
    "Data": data.ROWS,
    "Model": model.ROWS,
    "Algorithm": algorithm.ROWS,
    "Actor and reference": actor.ROWS,
    "Rollout": rollout.ROWS,
    "Tools and search": [*tools.ROWS, *environment.ROWS],
    "Critic": critic.ROWS,
    "Rewards": [*reward.ROWS, *prime.ROWS],
    "Trainer": trainer.ROWS,
    "Everything else": [],
}
SECTIONS = {section: [*rows, *_untranslated(section)] for section, rows in SECTIONS.items()}
ROWS: list[KeyRow] = [row for rows in SECTIONS.values() for row in rows]


@functools.cache
def _by_key() -> dict[str, KeyRow]:
    return {row.key: row for row in ROWS}


def row_of(key: str) -> KeyRow | None:
    """The row of this key: its own, or else the narrowest row for many keys that covers it."""
    names = key.split(".")
    above = [f"{'.'.join(names[:depth])}.*" for depth in range(len(names), 0, -1)]
    return next((_by_key()[name] for name in (key, *above) if name in _by_key()), None)
