"""A user's agent and reward: attempts at the first task of a step wait until another's have been scored."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from toolwright.agents.attempt import Attempt

NOTE = Path(__file__).with_name("scored")


class Patient:
    async def attempt(self, attempt: Attempt) -> None:
        attempt.prompt(attempt.task.prompt)
        while attempt.trajectory.group.endswith(".0") and not NOTE.exists():
            await asyncio.sleep(0.01)
        await attempt.act()


def score(completions: Sequence[str], **columns: Any) -> list[float]:
    """Of as many as are compared with each other, whoever came first."""
    NOTE.touch()
    return [len(completions) + len(set(answer)) / 10 for answer in completions]
