"""Attempts to score, as an agent would have left them."""

from __future__ import annotations

import asyncio
from typing import Any

from toolwright.config import schema
from toolwright.rewards import Scorer
from toolwright.trajectory import Segment, Task, Trajectory


def attempt(answer: str, truth: Any = None, source: str = "", **extra: Any) -> Trajectory:
    """One turn that says `answer`."""
    task = Task("t", [{"role": "user", "content": "What?"}], truth, source, extra)
    return Trajectory(task, "g", segments=[Segment("prompt", [], text="What?"), said(answer)])


def said(text: str, reward: float | None = None) -> Segment:
    return Segment("policy", [1, 2], [0.0, 0.0], text, reward=reward)


def score(scorer: Scorer, *attempts: Trajectory) -> list[float | None]:
    asyncio.run(scorer.score(attempts))
    return [attempt.reward for attempt in attempts]


def scorer(name: str, **reward: Any) -> Scorer:
    """The scorer that tasks of this data source, or a registered name, have for their own."""
    return Scorer(schema.Reward(**reward), default=name)
