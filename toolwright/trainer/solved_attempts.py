"""Attempts that a model solved itself with its tools. A warm start without a teacher learns from them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from toolwright.agents.attempt import seed_of
from toolwright.agents.tool_prompt import ToolPrompt
from toolwright.config import schema
from toolwright.failures import UserError
from toolwright.models.tokenizer import Tokenizer
from toolwright.observe import rollouts
from toolwright.tools.settings import Settings
from toolwright.trainer.building import agents_before_run
from toolwright.trajectory import Segment, Task, Trajectory

REMEDY = "raise rollout.samples, show an example in attempts.tool_prompt, or take attempts.calls=any"


@dataclass(frozen=True)
class SolvedSelection:
    """The selected attempts, and counts of the others by reason."""

    kept: list[Trajectory]
    attempts: int
    right: int
    clean: int  # of those that are right
    with_tool: bool

    @property
    def line(self) -> str:
        tasks = len({_task_key(t.task) for t in self.kept})
        how = f", {self.clean:,} of them with clean calls" if self.with_tool else ""
        return (
            f"{self.right:,} of {self.attempts:,} attempts were right{how}; {len(self.kept):,} at {tasks:,} "
            "tasks are learned from"
        )


def select(
    attempts: Sequence[Trajectory], config: schema.SolvedAttempts, *, seed: int, tools: bool
) -> SolvedSelection:
    """Select attempts that are right, with clean calls if there are tools. No two are alike, and few are at
    the same task."""
    with_tool = config.calls == "clean" or (config.calls == "auto" and tools)
    right = [
        t for t in attempts if t.failure is None and not t.cut and (t.accuracy or 0.0) >= config.bar - 1e-6
    ]
    clean = [t for t in right if not with_tool or has_clean_calls(t)]
    by_task: dict[str, dict[tuple[int, ...], Trajectory]] = {}
    for attempt in clean:
        answer = tuple(token for s in attempt.segments if s.source != "prompt" for token in s.tokens)
        by_task.setdefault(_task_key(attempt.task), {}).setdefault(answer, attempt)
    kept: list[Trajectory] = []
    for key, different in by_task.items():
        found = list(different.values())
        random.Random(seed_of(seed, "solved", key)).shuffle(found)
        kept += found[: config.per_task]
    selection = SolvedSelection(kept, len(attempts), len(right), len(clean), with_tool)
    if not kept:
        raise UserError(f"there is nothing to learn from: {selection.line}; {REMEDY}")
    return selection


def has_clean_calls(trajectory: Trajectory) -> bool:
    """Return True if a tool was called, and every call was readable, accepted and successful."""
    counts = trajectory.counts
    faults = sum(counts.get(name, 0) for name in ("tool_errors", "format_faults", "calls_refused"))
    return counts.get("tool_calls", 0) > 0 and not faults


def read_run(folder: Path, tokenizer: Tokenizer, held_out: Sequence[Task]) -> list[Trajectory]:
    """Read the attempts of a run with their tokens, without attempts at tasks that are held out here."""
    files = rollouts.files(folder)
    if not files:
        raise UserError(f"demonstrations={folder}: the folder holds no attempts (rollouts/step_….parquet)")
    _check_tokens(folder, tokenizer)
    judged = {_task_key(task) for task in held_out}
    every = [attempt for file in files.values() for attempt in rollouts.read(file)]
    return [attempt for attempt in every if _task_key(attempt.task) not in judged]


def _check_tokens(folder: Path, tokenizer: Tokenizer) -> None:
    """Raise a UserError if recorded tokens were made with another tokenizer, where their ids mean other
    text."""
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise UserError(f"demonstrations={folder}: there is no tokenizer.json, so its tokens cannot be read")
    theirs = json.loads(file.read_text(encoding="utf-8"))
    ours = json.loads(tokenizer.backend.to_str())
    if any(theirs.get(part) != ours.get(part) for part in ("model", "added_tokens")):
        raise UserError(
            f"demonstrations={folder}: the run's model has other tokens than this one; sample again with "
            f"demonstrations={schema.SAMPLED}, or take a model of the same family"
        )


def sampling(config: schema.RolloutConfig, words: schema.SolvedAttempts) -> schema.RolloutConfig:
    """Return the rollout settings for sampling, including the tool prompt that is used for sampling only."""
    asked = config.tool_prompt if words.tool_prompt is None else words.tool_prompt
    return config.changed({"tool_prompt": asked})


async def with_own_prompts(
    attempts: Sequence[Trajectory], config: schema.RolloutConfig, tokenizer: Tokenizer, tools: Settings
) -> list[Trajectory]:
    """Return the attempts with their prompts written as this configuration writes them, and everything else
    unchanged."""
    async with agents_before_run(config, tokenizer, tools) as agents:
        prompt_of = await agents.prompts()
        return [_asked_so(one, prompt_of, tokenizer, config) for one in attempts]


def _asked_so(
    attempt: Trajectory,
    prompt_of: Callable[[Task], ToolPrompt],
    tokenizer: Tokenizer,
    config: schema.RolloutConfig,
) -> Trajectory:
    if attempt.task.extra_info.get("environment"):
        raise UserError(
            "attempts in an environment keep their prompts: leave out attempts.tool_prompt and .prompt"
        )
    prompt = prompt_of(attempt.task)
    written = tokenizer.opening(prompt.messages, tools=prompt.tools, **config.template)
    opening = Segment("prompt", written.tokens, text=written.text)
    return replace(attempt, segments=[opening, *attempt.segments[1:]])


def _task_key(task: Task) -> str:
    """Return a key that is equal for the same task in two files or two runs."""
    return json.dumps(task.prompt, sort_keys=True)
