"""Attempts at tasks with tools of their own, by a policy that writes the calls that a test gives it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from tests.agents.scripted import ScriptedEngine
from tests.agents.templates import tokenizer
from toolwright.agents.attempt import OTHER_SIDE
from toolwright.agents.formats.hermes import Hermes
from toolwright.agents.rollout import AttemptRequest, Rollout
from toolwright.config import schema
from toolwright.rewards import Scorer
from toolwright.tools.call import ToolRequest
from toolwright.trajectory import Task, Trajectory

Call = tuple[str, dict[str, Any]]
Turn = str | Sequence[Call]  # words, or calls
NOTHING: Sequence[Turn] = ("I cannot help with that.",)


def attempted(
    tasks: Sequence[Task], plan: Callable[[Task], Sequence[Turn]], **config: Any
) -> list[Trajectory]:
    """One scored attempt at each task. The policy says the turns of `plan`, the last one again and again."""
    made = tokenizer("qwen3")
    by_attempt = {f"{task.id}/0": [_written(turn) for turn in plan(task)] for task in tasks}

    def script(attempt: str, turn: int) -> Sequence[int]:
        turns = by_attempt[attempt.removesuffix(OTHER_SIDE)]
        return made.encode(turns[min(turn, len(turns) - 1)] + "<|im_end|>")

    settings = schema.RolloutConfig(
        **{"max_tokens": 100_000, "max_turns": 60, "max_calls": 64, "retries": 0, **config}
    )
    rollout = Rollout(settings, ScriptedEngine(made, script, context=1_000_000), made)

    async def run() -> list[Trajectory]:
        try:
            found = await rollout.run([AttemptRequest(task, task.id, 0, 0) for task in tasks])
            await Scorer(schema.Reward(), default="environment").score(found)
            return found
        finally:
            await rollout.close()

    return asyncio.run(run())


def _written(turn: Turn) -> str:
    if isinstance(turn, str):
        return turn
    return "\n".join(written(call) for call in turn)


def written(call: Call) -> str:
    """A call as the policy writes it."""
    return Hermes().write(ToolRequest(*call), {})
