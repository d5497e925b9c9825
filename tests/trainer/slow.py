"""A user's own reward and estimator: each takes its time once, and leaves a note beside this file."""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from toolwright.algorithms import advantages

GROUP, STEP = 4, 16  # attempts at a task, and of a step; an evaluation and a rehearsal have others
scored = 0


def score(completions: Sequence[str], **columns: Any) -> list[float]:
    """Hangs in the second step."""
    global scored
    scored += len(completions) if len(completions) == GROUP else 0
    if scored > STEP and _noted("hangs"):
        time.sleep(6000)
    return [float(len(set(answer))) for answer in completions]


def estimate(*, rewards: Tensor, mask: Tensor, group: Sequence[Hashable]) -> tuple[Tensor, Tensor]:
    """GRPO's, but in the first step it waits until it may go."""
    if len(rewards) == STEP and _noted("learns"):
        while not _beside("go").exists():
            time.sleep(0.02)
        _noted("went")
    return advantages.compute("grpo", rewards=rewards, mask=mask, group=group)


def _noted(note: str) -> bool:
    """Whether it is noted for the first time."""
    file = _beside(note)
    if file.exists():
        return False
    file.touch()
    return True


def _beside(note: str) -> Path:
    return Path(__file__).with_name(note)
