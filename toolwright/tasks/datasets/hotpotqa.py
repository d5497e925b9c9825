"""HotpotQA: questions that need two of ten passages."""

from __future__ import annotations

from toolwright.tasks.datasets import DATASETS, Dataset, Example
from toolwright.tasks.rows import Row


@DATASETS.register("hotpotqa")
def hotpotqa() -> Dataset:
    files = {"validation": "distractor/validation-00000-of-00001.parquet"}
    return Dataset("hotpotqa/hotpot_qa", files, _example)


def _example(row: Row) -> Example:
    context, facts = row["context"], row["supporting_facts"]
    if isinstance(context, dict):  # the hub's columns; the original has pairs
        context = list(zip(context["title"], context["sentences"], strict=True))
        facts = list(zip(facts["title"], facts["sent_id"], strict=True))
    passages = "\n\n".join(f"{title}: {''.join(sentences)}" for title, sentences in context)
    return Example(
        prompt=f"{passages}\n\nQuestion: {row['question']}\nAnswer with a few words only.",
        ground_truth=row["answer"],
        extra={
            "id": str(row["_id"] if "_id" in row else row["id"]),
            "question": row["question"],
            "supporting_titles": sorted({title for title, _ in facts}),
            "type": row["type"],
            "level": row["level"],
        },
    )
