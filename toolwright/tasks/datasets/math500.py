"""MATH-500: competition problems whose answers are LaTeX expressions."""

from __future__ import annotations

from toolwright.tasks.datasets import DATASETS, Dataset, Example
from toolwright.tasks.rows import Row


@DATASETS.register("math500")
def math500() -> Dataset:
    return Dataset("HuggingFaceH4/MATH-500", {"test": "test.jsonl"}, _example)


def _example(row: Row) -> Example:
    """Read a row of MATH-500, or of MATH and AFlow's files of it, whose answer is the solution's box."""
    answer = row["answer"] if "answer" in row else row["solution"]
    if "answer" not in row and "\\boxed" not in answer:
        raise ValueError("it has no answer, and its solution has no \\boxed{}")
    return Example(
        prompt=f"{row['problem']}\nThink step by step and put the final answer within \\boxed{{}}.",
        ground_truth=answer,
        extra={key: row[key] for key in ("subject", "type", "level", "unique_id", "solution") if key in row},
    )
