"""Countdown: numbers to be joined into an expression of a given worth; made here, or read from files."""

from __future__ import annotations

from toolwright.tasks import SplitSizes
from toolwright.tasks.builtin import countdown as game
from toolwright.tasks.datasets import Example, dataset
from toolwright.tasks.rows import Row


def _generate(
    *, seed: int, train: int, test: int, numbers: int = 4, max_number: int = 50
) -> dict[str, list[Row]]:
    tasks = game.countdown(
        sizes=SplitSizes(seed, train, test),
        numbers=numbers,
        max_number=max_number,
        max_target=numbers * max_number,
    )
    return {
        split: [{"nums": t.ground_truth["numbers"], "target": t.ground_truth["target"]} for t in found]
        for split, found in (("train", tasks.train), ("test", tasks.held_out))
    }


@dataset("countdown", "countdown", {}, generate=_generate)
def countdown(row: Row) -> Example:
    numbers, target = [int(number) for number in row["nums"]], int(row["target"])
    return Example(
        prompt=f"Join the numbers {', '.join(map(str, numbers))} with + - * and parentheses, each at most "
        f"once, into an expression that equals {target}. Think step by step and end with the expression "
        "within <answer> and </answer>.",
        ground_truth={"numbers": numbers, "target": target},
    )
