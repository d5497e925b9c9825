"""reasoning-gym: puzzles of a hundred kinds, made by its own package, which also judges the answers."""

from __future__ import annotations

import json

from toolwright.failures import UserError, nearest
from toolwright.tasks.datasets import DATASETS, Dataset, Example
from toolwright.tasks.rows import Row


@DATASETS.register("reasoning-gym")
def reasoning_gym() -> Dataset:
    return Dataset("reasoning_gym", {}, _example, generate=_generate)


def _generate(*, seed: int, train: int, test: int, kinds: str = "leg_counting") -> dict[str, list[Row]]:
    """`kinds`: names of its data sets, divided by commas, in equal shares."""
    try:
        import reasoning_gym as gym
        from reasoning_gym.factory import DATASETS as KINDS
    except ImportError:
        raise UserError("reasoning-gym needs its package: pip install 'toolwright[reasoning-gym]'") from None
    names = [name.strip() for name in kinds.split(",") if name.strip()]
    for name in names:
        if name not in KINDS:
            raise UserError(f"reasoning-gym has no data set {name!r}; {nearest(name, KINDS)}")
    made: dict[str, list[Row]] = {"train": [], "test": []}
    for place, name in enumerate(names):
        shares = [size // len(names) + (place < size % len(names)) for size in (train, test)]
        entries = list(gym.create_dataset(name, size=sum(shares), seed=seed))
        made["train"] += entries[: shares[0]]
        made["test"] += entries[shares[0] :]
    return made


def _example(row: Row) -> Example:
    entry = {key: row[key] for key in ("question", "answer", "metadata")}
    return Example(
        prompt=f"{row['question'].strip()}\nGive the answer within <answer> and </answer>.",
        # As text: each kind of puzzle has other columns, and a file has one type for each.
        ground_truth=json.dumps(entry, default=str),
        extra={"kind": row["metadata"]["source_dataset"]},
    )
