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
    if scored > STEP:
        _rest("hangs", 600)
    return [float(len(set(answer))) for answer in completions]


def estimate(*, rewards: Tensor, mask: Tensor, group: Sequence[Hashable]) -> tuple[Tensor, Tensor]:
    """GRPO's, but slow in the first step."""
    if len(rewards) == STEP:
        _rest("learns", 3)
    return advantages.compute("grpo", rewards=rewards, mask=mask, group=group)


def _rest(note: str, seconds: float) -> None:
    file = Path(__file__).with_name(note)
    if not file.exists():
        file.touch()
        time.sleep(seconds)
