"""HumanEval: functions to complete, checked by unit tests. The examples of their docstrings are public."""

from __future__ import annotations

from toolwright.tasks.datasets import DATASETS, Dataset, Example
from toolwright.tasks.public_tests import examples
from toolwright.tasks.rows import Row


@DATASETS.register("humaneval")
def humaneval() -> Dataset:
    return Dataset(
        "openai/openai_humaneval", {"test": "openai_humaneval/test-00000-of-00001.parquet"}, _example
    )


def _example(row: Row) -> Example:
    return Example(
        prompt=f"Complete this function. Answer with the whole of it in one Python block.\n"
        f"```python\n{row['prompt'].strip()}\n```",
        ground_truth={"test": row["test"], "entry_point": row["entry_point"]},
        extra={
            "task_id": row["task_id"],
            "declaration": row["prompt"],
            "solution": row["canonical_solution"],
            "entry_point": row["entry_point"],
            "public_tests": examples(row["prompt"], row["entry_point"]),
        },
    )
