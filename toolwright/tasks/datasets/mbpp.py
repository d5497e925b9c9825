"""MBPP: short Python problems, checked by assertions; the full and the sanitized files.

The first assertion is shown. The others are hidden: they give the reward, and no tool runs them.
"""

from __future__ import annotations

from toolwright.tasks.datasets import DATASETS, Dataset, Example
from toolwright.tasks.public_tests import called
from toolwright.tasks.rows import Row


@DATASETS.register("mbpp")
def mbpp() -> Dataset:
    files = {split: f"full/{split}-00000-of-00001.parquet" for split in ("train", "validation", "test")}
    return Dataset("google-research-datasets/mbpp", files, _example, split_of=_split)


def _split(row: Row) -> str:
    """Return the split of a row as the authors divide them, by number. The first ten are for prompts with
    examples; here they train."""
    number = int(row["task_id"])
    return "test" if 10 < number <= 510 else "validation" if 510 < number <= 600 else "train"


def _example(row: Row) -> Example:
    text = row["text"] if "text" in row else row["prompt"]
    setup = row["test_setup_code"] if "test_setup_code" in row else "\n".join(row["test_imports"])
    return Example(
        # The assertion is the only place that names the function.
        prompt=f"{text}\nAnswer with one Python block. It must pass:\n{row['test_list'][0]}",
        ground_truth={"setup": setup, "tests": row["test_list"]},
        extra={
            "task_id": int(row["task_id"]),
            "solution": row["code"],
            "entry_point": called(row["test_list"]),
            "public_tests": row["test_list"][:1],
        },
    )
