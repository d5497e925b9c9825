"""reasoning-gym: puzzles of a hundred kinds, made by its own package, which also judges the answers."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import Field

from toolwright.failures import UserError, extra, nearest
from toolwright.tasks.datasets import Example, dataset
from toolwright.tasks.rows import Row

TRIES = 4  # puzzles made for each that is wanted
# Kinds that a small model gets right now and then, and that have a curriculum.
TEN = (
    "basic_arithmetic,chain_sum,products,leg_counting,letter_counting,spell_backward,simple_equations,gcd,"
    "fraction_simplification,calendar_arithmetic"
)


def generate(
    *,
    seed: int,
    train: int,
    test: int,
    kinds: str = TEN,
    levels: Annotated[int, Field(gt=0)] = 3,
    config: dict[str, Any] | None = None,
) -> dict[str, list[Row]]:
    """`kinds`: names of its data sets, divided by commas, in equal shares. `levels`: how many steps of the
    package's own curriculum each is made of, the easiest first. `config`: settings of every data set."""
    with extra("reasoning-gym", needed_by="the data set reasoning-gym"):
        import reasoning_gym as gym
        from reasoning_gym.factory import CURRICULA, create_curriculum
        from reasoning_gym.factory import DATASETS as KINDS
    names = [name.strip() for name in kinds.split(",") if name.strip()]
    for name in names:
        if name not in KINDS:
            raise UserError(f"reasoning-gym has no data set {name!r}; {nearest(name, KINDS)}")
    made: dict[str, list[Row]] = {"train": [], "test": []}
    asked: set[str] = set()
    parts = [(name, level) for name in names for level in range(levels if name in CURRICULA else 1)]
    for place, (name, level) in enumerate(parts):
        shares = [size // len(parts) + (place < size % len(parts)) for size in (train, test)]
        settings = {**(config or {}), "size": TRIES * sum(shares), "seed": seed + level}
        if name in CURRICULA and levels > 1:
            curriculum = create_curriculum(name)
            curriculum.set_global_level(level)
            settings = vars(curriculum.generate_configuration(settings))
        try:
            puzzles = gym.create_dataset(name, **settings) if sum(shares) else ()
        except (TypeError, ValueError, AssertionError) as error:
            raise UserError(f"reasoning-gym cannot make {name} with {config}: {error}") from None
        entries = _distinct(puzzles, sum(shares), asked)
        held = shares[1] * len(entries) // max(1, sum(shares))
        made["test"] += [{**entry, "level": level} for entry in entries[:held]]
        made["train"] += [{**entry, "level": level} for entry in entries[held:]]
    return made


def _distinct(entries: Iterable[Row], count: int, asked: set[str]) -> list[Row]:
    """Up to `count` entries that ask what was not `asked` yet: the easiest levels have few to ask."""
    found: list[Row] = []
    for entry in entries:
        if len(found) == count:
            break
        if entry["question"] not in asked:
            asked.add(entry["question"])
            found.append(entry)
    return found


@dataset("reasoning-gym", "reasoning_gym", {}, generate=generate)
def reasoning_gym(row: Row) -> Example:
    entry = {key: row[key] for key in ("question", "answer", "metadata")}
    kind = row["metadata"]["source_dataset"]
    return Example(
        prompt=f"{row['question'].strip()}\nGive the answer within <answer> and </answer>.",
        # As text: each kind of puzzle has other columns, and a file has one type for each.
        ground_truth=json.dumps(entry, default=str),
        extra={"kind": kind, "difficulty": f"{kind} {row.get('level', 0)}"},
        data_source=f"reasoning_gym/{kind}",
    )
