"""Evaluation: held-out tasks are attempted and scored, and never learned from."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing

from toolwright.agents.attempt import seed_of
from toolwright.agents.rollout import AttemptRequest
from toolwright.config import schema
from toolwright.failures import UserError
from toolwright.observe.evaluation import EvaluationResult
from toolwright.observe.report import write_report
from toolwright.runtime.reaper import reap_children
from toolwright.trainer.preparation import prepare
from toolwright.trainer.roles import start_roles
from toolwright.trainer.run_folder import RunFolder
from toolwright.trajectory import Task, Trajectory

Attempting = Callable[..., Awaitable[list[Trajectory]]]  # Rollouts.attempt, Rollout.run
Scoring = Callable[[Sequence[Trajectory]], Awaitable[None]]


def requests_for(
    tasks: Sequence[Task],
    samples: int,
    *,
    of: str,
    seed: int,
    sampling: tuple[tuple[str, float], ...] = (),
) -> list[AttemptRequest]:
    """Ask for so many attempts at each task. `of` names their groups, and their seeds follow from it."""
    return [
        AttemptRequest(task, f"{of}/{task.id}", i, seed_of(seed, of, task.id, i), sampling)
        for task in tasks
        for i in range(samples)
    ]


async def held_out(
    config: schema.Config, tasks: Sequence[Task], *, attempt: Attempting, score: Scoring
) -> tuple[EvaluationResult, list[Trajectory]]:
    """Attempt and score the tasks. The seeds are always the same, so that runs can be compared."""
    sampling = tuple((key, int(v) if key == "top_k" else v) for key, v in config.eval.sampling.items())
    requests = requests_for(
        tasks, config.eval.samples, of="held_out", seed=config.run.seed, sampling=sampling
    )
    attempts = await attempt(requests, temperature=config.eval.temperature)
    await score([t for t in attempts if t.failure is None])
    return EvaluationResult.of(attempts, tools=bool(config.tools or config.tool_config_path)), attempts


def evaluate(
    config: schema.Config, *, command: Sequence[str], say: Callable[[str], None] = lambda line: None
) -> EvaluationResult:
    """Score the configured model on the held-out tasks. Nothing is written unless the run has a new name.
    `say` is called with each decision about settings that are `auto`."""
    folder = RunFolder.claim(config.run, made_of=()) if keeps(config.run) else None
    prepared = prepare(config, learns=False)
    config = prepared.role_config.config
    if not prepared.held_out:
        raise UserError("there are no held-out tasks to evaluate on; set task.held_out")
    with reap_children(), closing(start_roles(prepared.role_config, learns=False)) as roles:
        roles.rewards.check(prepared.held_out)
        for line in [*prepared.decided, *_same_attempts(config.eval)]:
            say(line)
        result, attempts = roles.loop.run(
            held_out(config, prepared.held_out, attempt=roles.rollouts.attempt, score=roles.rewards.score)
        )
    result.counts["skipped_prompts"] = prepared.skipped_held_out
    if folder is not None:
        folder.begin(config, command=command, tokenizer=prepared.tokenizer)
        folder.save_rollouts(0, attempts)
        folder.save_evaluation(0, result)
        folder.metrics.append(0, result.metrics(whole=True))
        write_report(folder.path)
    return result


def _same_attempts(config: schema.Evaluation) -> list[str]:
    if config.samples == 1 or config.temperature > 0:
        return []
    return [
        f"eval.temperature=0: all {config.samples} attempts at a task are the same; 1.0 makes them differ"
    ]


def keeps(run: schema.RunConfig) -> bool:
    """True if an evaluation writes its attempts to a folder: it has a name, and does not resume a run."""
    return run.name is not None and not run.resume
