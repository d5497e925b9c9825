"""Problems with numbers and expressions as answers: GSM8K, AIME 2025 and MATH-500."""

from __future__ import annotations

from toolwright.tasks.datasets import Example, dataset, hub_splits
from toolwright.tasks.rows import Row


@dataset("gsm8k", "openai/gsm8k", hub_splits("main/{}", "train", "test"))
def gsm8k(row: Row) -> Example:
    """Grade-school word problems with a number as answer."""
    question = row["question"]
    reasoning, mark, answer = row["answer"].rpartition("####")
    if not mark:
        raise ValueError("the answer has no ####")
    return Example(
        prompt=f"{question}\nThink step by step and give the final answer after ####.",
        ground_truth=answer.strip().replace(",", ""),
        extra={"question": question, "reasoning": reasoning.strip()},
    )


@dataset("aime", "math-ai/aime25", {"test": "test.jsonl"})
def aime(row: Row) -> Example:
    """Thirty competition problems whose answers are integers from 0 to 999."""
    problem = row["problem"] if "problem" in row else row["question"]
    return Example(
        prompt=f"{problem}\nThink step by step and end with the answer, an integer, within \\boxed{{}}.",
        ground_truth=str(row["answer"]).strip(),
    )


@dataset("math500", "HuggingFaceH4/MATH-500", {"test": "test.jsonl"})
def math500(row: Row) -> Example:
    """A row of MATH-500, or of MATH and AFlow's files of it, whose answer is the solution's box."""
    answer = row["answer"] if "answer" in row else row["solution"]
    if "answer" not in row and "\\boxed" not in answer:
        raise ValueError("it has no answer, and its solution has no \\boxed{}")
    return Example(
        prompt=f"{row['problem']}\nThink step by step and put the final answer within \\boxed{{}}.",
        ground_truth=answer,
        extra={key: row[key] for key in ("subject", "type", "level", "unique_id", "solution") if key in row},
    )
