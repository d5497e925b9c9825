"""Questions whose answers are a few words: DROP, HotpotQA, for searching agents and for tool calls."""

from __future__ import annotations

from typing import Any

from toolwright.tasks.datasets import Example, dataset, hub_splits
from toolwright.tasks.rows import Row

JUDGED = ("nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle")


@dataset("drop", "ucinlp/drop", hub_splits("data/{}", "train", "validation"))
def drop(row: Row) -> Example:
    """Reading comprehension with discrete reasoning; any one of several answers is right."""
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


@dataset("hotpotqa", "hotpotqa/hotpot_qa", hub_splits("distractor/{}", "validation"))
def hotpotqa(row: Row) -> Example:
    """Questions that need two of ten passages."""
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


def _documents(row: Row) -> list[Row]:
    context: Any = row.get("context") or []
    if isinstance(context, dict):  # the hub's columns; the original has pairs
        context = list(zip(context["title"], context["sentences"], strict=True))
    return [{"title": title, "text": "".join(sentences)} for title, sentences in context]


@dataset(
    "hotpotqa-search",
    "hotpotqa",
    # The first half of the training questions: their passages alone are 400,000.
    {"train": "distractor/train-00000-of-00002.parquet", **hub_splits("distractor/{}", "validation")},
    hub="hotpotqa/hotpot_qa",
    documents=_documents,
)
def hotpotqa_search(row: Row) -> Example:
    """HotpotQA without its passages: they become a corpus, and the policy has to search for them.
    `supporting_titles` name the two passages that have the answer."""
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


@dataset(
    "search-qa",
    "em",
    {"train": "train.parquet", "test": "test.parquet"},
    hub="PeterJinGo/nq_hotpotqa_train",
    documents=_documents,
)
def search_qa(row: Row) -> Example:
    """Questions for an agent that searches: files like Search-R1's or HotpotQA's, passages as a corpus."""
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


@dataset("multi-turn-tools", "em", {})
def multi_turn_tools(row: Row) -> Example:
    """Conversations to go on with by tool calls: `messages` or `question`, `answer`, and the `tools` on
    offer."""
    messages = row.get("messages") or [{"role": "user", "content": row["question"]}]
    asked = next((n for n in range(len(messages), 0, -1) if messages[n - 1].get("role") == "user"), 0)
    if not asked:
        raise ValueError("no message has the role user")
    tools = row.get("tools")
    return Example(
        prompt=messages[:asked],  # what follows is an answer
        ground_truth=row["answer"] if "answer" in row else row["ground_truth"],
        extra={} if tools is None else {"tools": [_name(tool) for tool in tools]},
        data_source=row.get("data_source"),
    )


def _name(tool: Any) -> str:
    """Return the name of a tool, which is given by name or by OpenAI's schema."""
    if isinstance(tool, dict):
        return str((tool.get("function") or tool)["name"])
    return str(tool)
