"""Questions for an agent that searches: files like Search-R1's or HotpotQA's. Passages become a corpus."""

from __future__ import annotations

from typing import Any

from toolwright.tasks.datasets import DATASETS, Dataset, Example
from toolwright.tasks.rows import Row

JUDGED = ("nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle")


@DATASETS.register("search-qa")
def search_qa() -> Dataset:
    files = {split: f"{split}.parquet" for split in ("train", "test")}
    return Dataset("em", files, _example, hub="PeterJinGo/nq_hotpotqa_train", documents=_documents)


def _example(row: Row) -> Example:
    answers = row["golden_answers"] if "golden_answers" in row else row["answer"]
    source = str(row.get("data_source") or "")
    return Example(
        prompt=f"{row['question']}\nSearch for what you do not know. Give the answer, a few words, within "
        "<answer> and </answer>.",
        ground_truth={
            "target": [str(answer) for answer in answers] if isinstance(answers, list) else [str(answers)]
        },
        extra={"question": row["question"], "id": str(row.get("_id") or row.get("id") or "")},
        data_source=f"searchR1_{source}" if source in JUDGED else None,
    )


def _documents(row: Row) -> list[Row]:
    context: Any = row.get("context") or []
    if isinstance(context, dict):  # the hub's columns; the original has pairs
        context = list(zip(context["title"], context["sentences"], strict=True))
    return [{"title": title, "text": "".join(sentences)} for title, sentences in context]
