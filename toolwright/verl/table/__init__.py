"""The table: every key of verl's with what becomes of it, a file for each block of its configuration."""

from __future__ import annotations

from toolwright.verl.row import KeyRow
from toolwright.verl.table import (
    actor,
    algorithm,
    critic,
    data,
    elsewhere,
    model,
    reward,
    rollout,
    tools,
    trainer,
)

SECTIONS: dict[str, list[KeyRow]] = {
    "Data": data.ROWS,
    "Model": model.ROWS,
    "Algorithm": algorithm.ROWS,
    "Actor and reference": actor.ROWS,
    "Rollout": rollout.ROWS,
    "Tools and search": tools.ROWS,
    "Critic": critic.ROWS,
    "Rewards": reward.ROWS,
    "Trainer": trainer.ROWS,
    "Everything else": elsewhere.ROWS,
}
ROWS: list[KeyRow] = [row for rows in SECTIONS.values() for row in rows]


def row_of(key: str) -> KeyRow | None:
    """The row that speaks of this key: its own, else the narrowest of those for many."""
    covering = [row for row in ROWS if row.covers(key)]
    return max(covering, key=lambda row: (not row.block, len(row.key)), default=None)
