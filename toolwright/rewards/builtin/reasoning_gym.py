"""The score that reasoning-gym itself gives the answer of one of its puzzles, from 0 to 1."""

from __future__ import annotations

import json
from typing import Any

from toolwright.failures import TaskFailure, UserError
from toolwright.rewards import SCORERS
from toolwright.rewards.answers import stated


@SCORERS.register("reasoning_gym", needs=["final"])
def reasoning_gym(solution_str: str, ground_truth: Any) -> float:
    try:
        from reasoning_gym import get_score_answer_fn
    except ImportError:
        raise UserError(
            "scorer 'reasoning_gym' needs its package: pip install 'toolwright[reasoning-gym]'"
        ) from None
    try:
        entry = json.loads(ground_truth)
        score = get_score_answer_fn(entry["metadata"]["source_dataset"])
    except (TypeError, ValueError, KeyError) as error:
        raise TaskFailure(
            f"the ground truth is no entry of reasoning-gym: {type(error).__name__}: {error}"
        ) from None
    return float(score(answer=stated(solution_str, strict=False), entry=entry))
