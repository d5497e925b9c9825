"""Evaluation: held-out tasks attempted, scored, never learned from."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import TypeVar

from toolwright import tasks as task_sets
from toolwright.agents.rollout import Rollout, Wanted, seed_of
from toolwright.config import schema
from toolwright.failures import UserError
from toolwright.rewards import Scorer
from toolwright.tools.settings import served, settings_of
from toolwright.trainer import roles
from toolwright.trajectory import Task, Trajectory, save

T = TypeVar("T")


async def held_out(
    config: schema.Config, rollout: Rollout, scorer: Scorer, tasks: Sequence[Task]
) -> tuple[dict[str, float], list[Trajectory]]:
    """Mean score and the share of right answers; the same seeds every time, so that runs can be compared."""
    wanted = [
        Wanted(task, f"held_out/{task.id}", i, seed_of(config.run.seed, "held_out", task.id, i))
        for task in tasks
        for i in range(config.eval.samples)
    ]
    attempts = await rollout.run(wanted, temperature=config.eval.temperature)
    await scorer.score([t for t in attempts if t.failure is None])
    scored = [t for t in attempts if t.failure is None and t.reward is not None]
    if not scored:
        reasons = {t.failure.message for t in attempts if t.failure}
        raise UserError(f"not one of {len(attempts)} held-out attempts could be scored: {'; '.join(reasons)}")
    return {
        "held_out/reward": sum(t.reward or 0.0 for t in scored) / len(scored),
        "held_out/accuracy": sum(right(t) for t in scored) / len(scored),
        "held_out/tokens_mean": sum(t.sampled_tokens for t in scored) / len(scored),
        "held_out/attempts": len(scored),
        "held_out/failed": len(attempts) - len(scored),
    }, attempts


async def _closed_after(work: Awaitable[T], rollout: Rollout) -> T:
    """Tools are closed in the loop that they were opened in."""
    try:
        return await work
    finally:
        await rollout.close()


def right(trajectory: Trajectory) -> bool:
    """Whether an answer counts as right: the scorer's own `acc` where it gives one, else full marks."""
    return trajectory.reward_parts.get("acc", trajectory.reward or 0.0) >= 1.0 - 1e-6


def evaluate(
    config: schema.Config, *, command: Sequence[str], save_to: Path | None = None
) -> dict[str, float]:
    """Score the configured model on the held-out tasks; nothing is written unless `save_to` names a file."""
    tasks = task_sets.load(config.task, seed=config.run.seed)
    if not tasks.held_out:
        raise UserError("there are no held-out tasks to evaluate on; set task.held_out")
    settings = settings_of(config)
    alphabet = roles.alphabet(tasks, settings)
    decoder, tokenizer = roles.build_model(config.model, alphabet, seed=config.run.seed)
    roles.use_processor(config.run, decoder)
    limit = min(config.task.max_prompt_tokens, decoder.shape.context - 1)
    chosen = roles.fitting(list(tasks.held_out), config.task, tokenizer, limit=limit)
    with served(settings) as tools:
        engine = roles.build_engine(config, decoder, tokenizer)
        rollout = Rollout(config.rollout, engine, tokenizer, tools=tools)
        scorer = Scorer(config.reward, default=tasks.scorer)
        try:
            scorer.check(chosen)
            result, attempts = asyncio.run(_closed_after(held_out(config, rollout, scorer, chosen), rollout))
        finally:
            scorer.close()
    if save_to is not None:
        save(save_to, attempts)
    return {**result, "held_out/skipped_prompts": len(tasks.held_out) - len(chosen)}
