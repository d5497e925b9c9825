"""Evaluation: held-out tasks attempted, scored, never learned from."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing

from toolwright.agents.rollout import AttemptRequest, seed_of
from toolwright.config import schema
from toolwright.failures import UserError
from toolwright.observe.report import write_report
from toolwright.runtime.reaper import reap_children
from toolwright.trainer.preparation import prepare
from toolwright.trainer.roles import start_roles
from toolwright.trainer.run_folder import RunFolder
from toolwright.trajectory import Task, Trajectory

Attempting = Callable[..., Awaitable[list[Trajectory]]]  # Rollouts.attempt, Rollout.run
Scoring = Callable[[Sequence[Trajectory]], Awaitable[None]]


async def held_out(
    config: schema.Config, tasks: Sequence[Task], *, attempt: Attempting, score: Scoring
) -> tuple[dict[str, float], list[Trajectory]]:
    """Mean score and the share of right answers; the same seeds every time, so that runs can be compared."""
    requests = [
        AttemptRequest(task, f"held_out/{task.id}", i, seed_of(config.run.seed, "held_out", task.id, i))
        for task in tasks
        for i in range(config.eval.samples)
    ]
    attempts = await attempt(requests, temperature=config.eval.temperature)
    await score([t for t in attempts if t.failure is None])
    scored = [t for t in attempts if t.failure is None and t.reward is not None]
    if not scored:
        reasons = {t.failure.message for t in attempts if t.failure}
        raise UserError(f"not one of {len(attempts)} held-out attempts could be scored: {'; '.join(reasons)}")
    return {
        "held_out/reward": sum(t.reward or 0.0 for t in scored) / len(scored),
        "held_out/accuracy": sum(right(t) for t in scored) / len(scored),
        "held_out/tokens_mean": sum(t.sampled_tokens for t in scored) / len(scored),
        "held_out/truncated": sum(t.cut for t in scored) / len(scored),
        "held_out/attempts": len(scored),
        "held_out/failed": len(attempts) - len(scored),
    }, attempts


def right(trajectory: Trajectory) -> bool:
    """Whether an answer counts as right: the scorer's own `acc` where it gives one, else full marks."""
    return trajectory.reward_parts.get("acc", trajectory.reward or 0.0) >= 1.0 - 1e-6


def evaluate(
    config: schema.Config, *, command: Sequence[str], say: Callable[[str], None] = lambda line: None
) -> dict[str, float]:
    """Score the configured model on the held-out tasks; nothing is written but where a run has a new name.
    `say` is called with what was decided of what the configuration leaves open."""
    folder = RunFolder.claim(config.run, made_of=()) if keeps(config.run) else None
    prepared = prepare(config, learns=False)
    config = prepared.role_config.config
    if not prepared.held_out:
        raise UserError("there are no held-out tasks to evaluate on; set task.held_out")
    with reap_children(), closing(start_roles(prepared.role_config, learns=False)) as roles:
        roles.rewards.check(prepared.held_out)
        for line in prepared.decided:
            say(line)
        result, attempts = roles.loop.run(
            held_out(config, prepared.held_out, attempt=roles.rollouts.attempt, score=roles.rewards.score)
        )
    result["held_out/skipped_prompts"] = prepared.skipped_held_out
    if folder is not None:
        folder.begin(config, command=command, tokenizer=prepared.tokenizer)
        folder.save_rollouts(0, attempts)
        folder.metrics.append(0, result)
        write_report(folder.path)
    return result


def keeps(run: schema.RunConfig) -> bool:
    """Whether an evaluation leaves its attempts in a folder: it has a name, and not an earlier run's."""
    return run.name is not None and not run.resume
