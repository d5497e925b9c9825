"""DROP: reading comprehension with discrete reasoning; any one of several answers is right."""

from __future__ import annotations

from toolwright.tasks.datasets import DATASETS, Dataset, Example
from toolwright.tasks.rows import Row


@DATASETS.register("drop")
def drop() -> Dataset:
    files = {split: f"data/{split}-00000-of-00001.parquet" for split in ("train", "validation")}
    return Dataset("ucinlp/drop", files, _example)


def _example(row: Row) -> Example:
    if "passage" in row:  # the hub's columns
        text = f"Passage: {row['passage']}\nQuestion: {row['question']}"
        answers, id = row["answers_spans"]["spans"], row["query_id"]
    else:  # AFlow's: the passage and the question in one, the answers divided by |
        text = row["context"].removesuffix("Answer:").rstrip()
        answers, id = row["ref_text"].split("|"), row["id"]
    return Example(
        prompt=f"{text}\nAnswer with a number or a few words only.",
        ground_truth=list(dict.fromkeys(answers)),
        extra={"id": str(id)},
    )
