"""An evaluation, task by task: what was scored, its measures with intervals, and how it differs from another.

A run folder keeps each in a line of `evaluations.jsonl`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from toolwright.failures import UserError
from toolwright.observe.estimates import (
    Estimate,
    PairedDifference,
    estimate,
    majority_at_k,
    paired,
    pass_at_k,
)
from toolwright.observe.metrics import Metrics
from toolwright.rewards.votes import can_vote, vote_of
from toolwright.trajectory import OUTCOME, Trajectory, as_groups

FILE = "evaluations.jsonl"
REASONS = 3  # why nothing was scored, of which a message tells so many
ACCURACY, REWARD = "accuracy", "reward"
PREFIX = "held_out/"


@dataclass(frozen=True)
class TaskScores:
    """The scored attempts at one task, in order."""

    id: str
    digest: str  # of prompt and truth: the same name may be another task elsewhere
    source: str
    right: list[bool]
    rewards: list[float]
    majority: dict[str, float] = field(default_factory=dict)  # maj@k by k; empty where answers cannot vote
    outcomes: dict[str, list[float]] = field(default_factory=dict)  # what an environment says beside success

    @property
    def key(self) -> tuple[str, str]:
        return self.id, self.digest

    def measure(self, name: str) -> float | None:
        """The task's own value of a measure; None if it has too few attempts for it, or none of the kind."""
        if name in self.outcomes:
            return sum(self.outcomes[name]) / len(self.outcomes[name])
        kind, _, k = name.partition("_at_")
        if kind == ACCURACY:
            return sum(self.right) / len(self.right)
        if kind == REWARD:
            return sum(self.rewards) / len(self.rewards)
        if kind == "maj":
            return self.majority.get(k)
        if kind != "pass":
            return None
        return pass_at_k(sum(self.right), len(self.right), int(k)) if int(k) <= len(self.right) else None


@dataclass(frozen=True)
class EvaluationResult:
    """The tasks of one evaluation; `counts` holds what is not an estimate: attempts, failed, truncated, …"""

    tasks: list[TaskScores]
    counts: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, attempts: Sequence[Trajectory], *, tools: bool = False) -> EvaluationResult:
        """Evaluate attempts. Raises a UserError if none was scored. `tools`: calls are worth counting."""
        scored = [t for t in attempts if t.failure is None and t.reward is not None]
        if not scored:
            reasons = list(dict.fromkeys(t.failure.message for t in attempts if t.failure))
            more = [f"and {len(reasons) - REASONS} other reasons"] if len(reasons) > REASONS else []
            told = "; ".join([*reasons[:REASONS], *more])
            raise UserError(f"none of the {len(attempts)} held-out attempts could be scored: {told}")
        counts = {
            "tokens_mean": sum(t.sampled_tokens for t in scored) / len(scored),
            "truncated": sum(t.cut for t in scored) / len(scored),
            "attempts": len(scored),
            "failed": len(attempts) - len(scored),
        }
        if tools or any("tool_calls" in t.counts for t in scored):
            calls = [t.counts.get("tool_calls", 0) for t in scored]
            counts["calling"] = sum(count > 0 for count in calls) / len(calls)
            counts["tool_calls"] = sum(calls) / len(calls)
        return cls([_scores(group.trajectories) for group in as_groups(scored)], counts)

    @property
    def samples(self) -> int:
        """Attempts at a task, where none of them failed."""
        return max(len(task.right) for task in self.tasks)

    @property
    def names(self) -> list[str]:
        """The measures that this many attempts allow, in the order of the table."""
        ks = sizes(self.samples)
        voted = [k for k in ks if any(str(k) in task.majority for task in self.tasks)]
        outcomes = sorted({name for task in self.tasks for name in task.outcomes})
        votes = (f"maj_at_{k}" for k in voted)
        return [ACCURACY, *(f"pass_at_{k}" for k in ks), *votes, *outcomes, REWARD]

    @property
    def main_names(self) -> list[str]:
        """The measures without those of fewer attempts than there are."""
        return [name for name in self.names if "_at_" not in name or name.endswith(f"_at_{self.samples}")]

    def estimate(self, name: str) -> Estimate:
        """Estimate a measure over the tasks that have enough attempts for it."""
        values = [value for task in self.tasks if (value := task.measure(name)) is not None]
        return estimate(values)

    @property
    def sources(self) -> dict[str, EvaluationResult]:
        """The same by data source, if there are several."""
        found: dict[str, list[TaskScores]] = {}
        for task in self.tasks:
            found.setdefault(task.source, []).append(task)
        several = sorted(found.items()) if len(found) > 1 else ()
        return {name: EvaluationResult(tasks) for name, tasks in several}

    def metrics(self, *, whole: bool = False) -> dict[str, float]:
        """Return the figures by their names in metrics.jsonl. `whole`: every measure with its interval, for a
        report of its own."""
        found: dict[str, float] = {}
        for name in self.names if whole else self.main_names:
            found |= _named(name, self.estimate(name), interval=whole or name == ACCURACY)
        for source, own in self.sources.items():
            for name in own.names if whole else (ACCURACY, REWARD):
                place = f"{source_name(source)}/{name}"
                found |= _named(place, own.estimate(name), interval=whole)
        return {f"{PREFIX}{name}": value for name, value in {**found, **self.counts}.items()}

    def as_line(self, step: int) -> str:
        """Format the result as a line of `evaluations.jsonl`."""
        row = {"step": step, "counts": self.counts, "tasks": [asdict(task) for task in self.tasks]}
        return json.dumps(row, ensure_ascii=True, allow_nan=False)


def sizes(samples: int) -> list[int]:
    """The k of pass@k and maj@k: powers of two, and all."""
    return sorted({*(2**n for n in range(1, samples.bit_length()) if 2**n <= samples), samples} - {1})


def source_name(source: str) -> str:
    """A data source as part of a metric's name: trackers take no other characters."""
    return re.sub(r"[^\w./-]", "_", source) or "unnamed"


def right(trajectory: Trajectory) -> bool:
    """Return True if the answer counts as right: the scorer's own `acc` where it gives one, else full
    marks."""
    return trajectory.reward_parts.get("acc", trajectory.reward or 0.0) >= 1.0 - 1e-6


def read_evaluations(run: Path) -> dict[int, EvaluationResult]:
    """Read the evaluations of a run folder, by step. If a step was written twice, the last one counts."""
    found = {}
    for row in Metrics.read(run / FILE):
        try:
            tasks = [TaskScores(**task) for task in row["tasks"]]
            found[int(row["step"])] = EvaluationResult(tasks, row["counts"])
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"{run / FILE} is not a file of evaluations: {type(error).__name__} {error}"
            ) from None
    return found


def last_evaluation(run: Path) -> EvaluationResult:
    found = read_evaluations(run)
    if not found:
        raise UserError(
            f"{run} has no evaluation; `toolwright eval … run.name=NAME` writes one, and so does training "
            "with held-out tasks"
        )
    return found[max(found)]


def differences(first: EvaluationResult, second: EvaluationResult) -> dict[str, dict[str, PairedDifference]]:
    """Compare by source and measure, over the tasks that both have. `""` stands for all sources."""
    known = {task.key: task for task in first.tasks}
    pairs = [(known[task.key], task) for task in second.tasks if task.key in known]
    sources = sorted({one.source for one, _ in pairs})
    names = [name for name in first.names if name in second.names]
    found = {}
    for source in ["", *(sources if len(sources) > 1 else ())]:
        own = [pair for pair in pairs if source in ("", pair[0].source)]
        measures = {name: both for name in names if (both := _difference(own, name)) is not None}
        if measures:
            found[source] = measures
    return found


def _difference(pairs: Sequence[tuple[TaskScores, TaskScores]], name: str) -> PairedDifference | None:
    values = [(one.measure(name), other.measure(name)) for one, other in pairs]
    whole = [(one, other) for one, other in values if one is not None and other is not None]
    return paired([one for one, _ in whole], [other for _, other in whole]) if whole else None


def _scores(attempts: Sequence[Trajectory]) -> TaskScores:
    task, verdicts = attempts[0].task, [right(t) for t in attempts]
    majority: dict[str, float] = {}
    if len(attempts) > 1 and can_vote(task.ground_truth):
        answers = [vote_of(t.steps[-1].text, task.ground_truth) if t.steps else None for t in attempts]
        majority = {str(k): majority_at_k(answers, verdicts, k, seed=task.id) for k in sizes(len(attempts))}
    known = json.dumps([task.prompt, task.ground_truth, task.extra_info.get("environment")], sort_keys=True)
    return TaskScores(
        id=task.id,
        digest=hashlib.blake2b(known.encode(), digest_size=6).hexdigest(),
        source=task.data_source,
        right=verdicts,
        rewards=[float(t.reward or 0.0) for t in attempts],
        majority=majority,
        outcomes={
            name.removeprefix(OUTCOME): [t.counts[name] for t in attempts if name in t.counts]
            for name in sorted({name for t in attempts for name in t.counts if name.startswith(OUTCOME)})
        },
    )


def _named(name: str, found: Estimate, *, interval: bool) -> Mapping[str, float]:
    bounds: dict[str, Any] = {f"{name}_low": found.low, f"{name}_high": found.high} if interval else {}
    return {name: found.value, **bounds}
