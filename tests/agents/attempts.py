"""Attempts at a task by a policy that says what a test tells it, with the tools of `tools.py`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from toolwright.agents.rollout import AttemptRequest, Rollout
from toolwright.config import schema
from toolwright.models.tokenizer import Tokenizer
from toolwright.trajectory import Task, Trajectory

from .scripted import Script, ScriptedEngine, saying
from .templates import tokenizer

FILE = Path(__file__).with_name("tools.py")
NAMES = ("echo", "add", "wait", "meet", "broken", "gone", "noise", "prize")
ALL = {name: {"path": f"{FILE}:{name}"} for name in NAMES}
ALL["note"] = {"path": f"{FILE}:Note"}
FORMATS = ["tags", "hermes", "qwen3_coder", "llama3", "fenced"]
PROMPT = [{"role": "user", "content": "go"}]


def rollout_of(
    made: Tokenizer,
    script: Script,
    *,
    tools: Sequence[str] = tuple(ALL),
    context: int = 100_000,
    **config: Any,
) -> Rollout:
    engine = ScriptedEngine(made, script, context=context)
    given = {"max_tokens": 4_096, "retry_pause_s": 0.0, "retries": 0, "tool_prompt": "", **config}
    return Rollout(schema.RolloutConfig(**given), engine, made, tools={name: ALL[name] for name in tools})


def run(rollout: Rollout, count: int = 1, **extra: Any) -> list[Trajectory]:
    async def attempts() -> list[Trajectory]:
        wanted = [
            AttemptRequest(Task(f"t{i}", PROMPT, extra_info=extra), f"g{i}", 0, i) for i in range(count)
        ]
        try:
            return await rollout.run(wanted)
        finally:
            await rollout.close()

    return asyncio.run(attempts())


def tags(*turns: str, style: str = "chatml", **config: Any) -> Trajectory:
    """One attempt by a policy that says these turns, calls in tags."""
    made = tokenizer(style)
    (trajectory,) = run(rollout_of(made, saying(made, *turns), call_format="tags", **config))
    assert trajectory.failure is None, trajectory.failure
    return trajectory


def texts(trajectory: Trajectory, source: str) -> list[str]:
    return [segment.text for segment in trajectory.segments if segment.source == source]


def is_the_engines_stream(trajectory: Trajectory, rollout: Rollout) -> None:
    """Every turn was sampled from exactly the tokens before it, and exactly what was sampled is learned."""
    engine = rollout.engine
    assert isinstance(engine, ScriptedEngine)
    turns = engine.seen[f"{trajectory.group}/{trajectory.index}"]
    tokens, mask = trajectory.tokens, trajectory.mask
    sampled = [False] * len(tokens)
    for prompt, said in turns:
        assert tokens[: len(prompt)] == prompt
        assert tokens[len(prompt) : len(prompt) + len(said)] == said
        sampled[len(prompt) : len(prompt) + len(said)] = [True] * len(said)
    assert mask == sampled
    assert [len(s.log_probs) for s in trajectory.steps] == [len(said) for _, said in turns]
