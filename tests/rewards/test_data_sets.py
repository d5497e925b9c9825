"""Every data set of `data prepare` has its scorer: a real row's reference earns 1, a wrong answer 0."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.rewards.attempts import attempt, score
from toolwright.config import schema
from toolwright.rewards import SCORERS, Scorer
from toolwright.tasks import rows
from toolwright.tasks.datasets import DATASETS, task_rows
from toolwright.trajectory import Trajectory

RAW = Path(__file__).parents[1] / "tasks" / "raw"
FILES = {
    "gsm8k": ["gsm8k_train.jsonl"],
    "math500": ["math500.jsonl"],
    "aime": ["aime25.jsonl"],
    "humaneval": ["HumanEval.jsonl.gz"],
    "mbpp": ["mbpp.jsonl", "mbpp_sanitized.json"],
    "hotpotqa": ["hotpotqa_validate.jsonl"],
    "drop": ["drop_validate.jsonl"],
}


def right(name: str, row: dict[str, Any]) -> str:
    """What the data set's authors would have answered."""
    truth, extra = row["reward_model"]["ground_truth"], row["extra_info"]
    if name == "gsm8k":
        return f"{extra['reasoning']}\n#### {truth}"
    if name == "humaneval":
        return f"Here it is:\n```python\n{extra['declaration']}{extra['solution']}\n```\nIt works."
    if name in ("math500", "mbpp"):
        return extra["solution"]
    if name == "aime":
        return f"Of 1000 there remain \\boxed{{{truth}}}, which is less than 5000."
    return f"<think>{extra}</think> <answer>{truth[-1] if isinstance(truth, list) else truth}</answer>"


def wrong(name: str, row: dict[str, Any]) -> str:
    if name == "humaneval":
        return f"```python\n{row['extra_info']['declaration']}    return None\n```"
    if name == "mbpp":
        return "import sys\nsys.exit(0)"
    marks = {"gsm8k": "#### 123456789", "math500": "\\boxed{123456789}", "aime": "\\boxed{12345}"}
    return marks.get(name, "<answer>nothing of the kind, 123456789</answer>")


def attempts(name: str, rows: list[dict[str, Any]], answer: Any) -> list[Trajectory]:
    return [
        attempt(
            answer(name, row), row["reward_model"]["ground_truth"], row["data_source"], **row["extra_info"]
        )
        for row in rows
    ]


def test_every_data_set_has_a_scorer_under_its_name_and_its_source() -> None:
    for name in FILES:
        assert {name, DATASETS.get(name).target().data_source} <= set(SCORERS.names())


def test_every_data_set_is_tested_here_or_by_the_rows_it_prepares() -> None:
    tested_elsewhere = {"countdown", "hotpotqa-search", "multi-turn-tools", "reasoning-gym", "search-qa"}
    in_other_words = {"mbpp-functions"}
    assert {*FILES, *tested_elsewhere, *in_other_words} == set(DATASETS.names())


@pytest.mark.parametrize(("name", "file"), [(name, file) for name, files in FILES.items() for file in files])
def test_the_reference_earns_1_and_a_wrong_answer_0(name: str, file: str, sandbox_url: str) -> None:
    found = task_rows(name, rows.read(RAW / file), split="test")
    scorer = Scorer(schema.Reward(sandbox_url=sandbox_url), default=found[0]["data_source"])
    good, bad = attempts(name, found, right), attempts(name, found, wrong)
    try:
        scorer.check([t.task for t in good])
        assert score(scorer, *good) == [1.0] * len(found), [t.failure for t in good]
        assert score(scorer, *bad) == [0.0] * len(found), [t.failure for t in bad]
    finally:
        scorer.close()


def test_a_file_that_mixes_sources_is_scored_by_the_scorer_of_each_source(sandbox_url: str) -> None:
    good = [
        t
        for name, files in FILES.items()
        for t in attempts(name, task_rows(name, rows.read(RAW / files[0]), split="test"), right)
    ]
    scorer = Scorer(schema.Reward(sandbox_url=sandbox_url), default="data_source")
    try:
        scorer.check([t.task for t in good])
        assert score(scorer, *good[::-1]) == [1.0] * len(good)
    finally:
        scorer.close()
