"""The score that reasoning-gym itself gives the answer of one of its puzzles, from 0 to 1."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

from toolwright.failures import TaskFailure, extra
from toolwright.rewards import SCORERS
from toolwright.rewards.answers import stated


@SCORERS.register("reasoning_gym", needs=["final"])
def reasoning_gym(solution_str: str, ground_truth: Any) -> float:
    try:
        entry = json.loads(ground_truth)
        score = _score_of(entry["metadata"]["source_dataset"])
    except (TypeError, ValueError, KeyError) as error:
        raise TaskFailure(
            f"the ground truth is not an entry of reasoning-gym: {type(error).__name__}: {error}"
        ) from None
    return float(score(answer=stated(solution_str, strict=False), entry=entry))


@functools.cache
def _score_of(kind: str) -> Callable[..., float]:
    """Find the scorer of a data set once: the package makes the data set for it, and reads its word list."""
    with extra("reasoning-gym", needed_by="scorer 'reasoning_gym'"):
        from reasoning_gym import get_score_answer_fn
    found: Callable[..., float] = get_score_answer_fn(kind)
    return found
