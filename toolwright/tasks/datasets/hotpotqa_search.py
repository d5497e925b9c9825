"""HotpotQA without its passages: they become a corpus, and the policy has to search for them."""

from __future__ import annotations

from toolwright.tasks.datasets import DATASETS, Dataset, Example
from toolwright.tasks.datasets.search_qa import search_qa
from toolwright.tasks.rows import Row


@DATASETS.register("hotpotqa-search")
def hotpotqa_search() -> Dataset:
    # The first half of the training questions: their passages alone are 400,000.
    files = {
        "train": "distractor/train-00000-of-00002.parquet",
        "validation": "distractor/validation-00000-of-00001.parquet",
    }
    like = search_qa()
    return Dataset("hotpotqa", files, _example, hub="hotpotqa/hotpot_qa", documents=like.documents)


def _example(row: Row) -> Example:
    """`supporting_titles` name the two passages that have the answer."""
    facts = row["supporting_facts"]
    titles = facts["title"] if isinstance(facts, dict) else [title for title, _ in facts]
    return Example(
        prompt=f"{row['question']}\nThe answer needs facts from two passages: search for them. End with the "
        "answer, a few words, within <answer> and </answer>.",
        ground_truth=row["answer"],
        extra={
            "id": str(row["_id"] if "_id" in row else row["id"]),
            "question": row["question"],
            "supporting_titles": sorted(set(titles)),
        },
    )
