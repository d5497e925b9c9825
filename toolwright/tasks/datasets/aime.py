"""AIME 2025: thirty competition problems whose answers are integers from 0 to 999."""

from __future__ import annotations

from toolwright.tasks.datasets import DATASETS, Dataset, Example
from toolwright.tasks.rows import Row


@DATASETS.register("aime")
def aime() -> Dataset:
    return Dataset("math-ai/aime25", {"test": "test.jsonl"}, _example)


def _example(row: Row) -> Example:
    problem = row["problem"] if "problem" in row else row["question"]
    return Example(
        prompt=f"{problem}\nThink step by step and end with the answer, an integer, within \\boxed{{}}.",
        ground_truth=str(row["answer"]).strip(),
    )
