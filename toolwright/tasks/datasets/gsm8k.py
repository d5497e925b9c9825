"""GSM8K: grade-school word problems with a number as answer."""

from __future__ import annotations

from toolwright.tasks.datasets import DATASETS, Dataset, Example
from toolwright.tasks.rows import Row


@DATASETS.register("gsm8k")
def gsm8k() -> Dataset:
    files = {split: f"main/{split}-00000-of-00001.parquet" for split in ("train", "test")}
    return Dataset("openai/gsm8k", files, _example)


def _example(row: Row) -> Example:
    question = row["question"]
    reasoning, mark, answer = row["answer"].rpartition("####")
    if not mark:
        raise ValueError("the answer has no ####")
    return Example(
        prompt=f"{question}\nThink step by step and give the final answer after ####.",
        ground_truth=answer.strip().replace(",", ""),
        extra={"question": question, "reasoning": reasoning.strip()},
    )
