"""MATH-500: competition problems whose answers are LaTeX expressions."""

from __future__ import annotations

from toolwright.tasks.datasets import DATASETS, Dataset, Example
from toolwright.tasks.rows import Row


@DATASETS.register("math500")
def math500() -> Dataset:
    return Dataset("HuggingFaceH4/MATH-500", {"test": "test.jsonl"}, _example)


def _example(row: Row) -> Example:
    return Example(
        prompt=f"{row['problem']}\nThink step by step and put the final answer within \\boxed{{}}.",
        ground_truth=row["answer"],
        extra={key: row[key] for key in ("subject", "level", "unique_id", "solution")},
    )
