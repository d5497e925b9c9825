"""The metrics of a step: its attempts and its updates in numbers, named as in metrics.jsonl."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from torch import Tensor

from toolwright.batch import Batch
from toolwright.observe.evaluation import source_name
from toolwright.trainer.sampling import SampledStep
from toolwright.trajectory import Trajectory


def of_sample(sampled: SampledStep) -> dict[str, float]:
    """The metrics of the attempts that a step sampled."""
    attempts = [t for t in sampled.attempts if t.failure is None]
    metrics: dict[str, float] = {
        "attempts/failed": sampled.failed,
        "groups/kept": len(sampled.groups),
        "groups/dropped": sampled.dropped,
        "groups/flat": sampled.flat,
        "groups/replayed": sampled.replayed,
        "groups/rounds": sampled.rounds,
    }
    if not attempts:
        return metrics
    rewards = [t.reward or 0.0 for t in attempts]
    tokens = [t.sampled_tokens for t in attempts]
    metrics.update(
        {
            "reward/mean": statistics.fmean(rewards),
            "reward/std": statistics.pstdev(rewards),
            "reward/min": min(rewards),
            "reward/max": max(rewards),
            "response/tokens_mean": statistics.fmean(tokens),
            "response/tokens_max": max(tokens),
            "response/truncated": statistics.fmean(t.cut for t in attempts),
            "turns/mean": statistics.fmean(t.turns for t in attempts),
        }
    )
    metrics.update(_by_source(attempts))
    for part in sorted({name for t in attempts for name in t.reward_parts}):
        mean = statistics.fmean(t.reward_parts.get(part, 0.0) for t in attempts)
        metrics.setdefault(f"reward/{part}", mean)
    for count in sorted({name for t in attempts for name in t.counts}):
        metrics.setdefault(f"attempts/{count}", statistics.fmean(t.counts.get(count, 0) for t in attempts))
    return metrics


def tool_use(sampled: SampledStep, seconds: float) -> dict[str, float]:
    """Measure tool calls of a step that took `seconds` to sample: how many ran at the same time, and for
    those in the sandbox how many ran, waited and were ended."""
    names = {
        "tool_s": "tool_calls",
        "sandbox_s": "sandbox_runs",
        "sandbox_queue_s": "sandbox_queue",
    }
    spent = {name: [t.timings[name] for t in sampled.attempts if name in t.timings] for name in names}
    found = {f"use/{names[name]}": sum(times) / max(seconds, 1e-9) for name, times in spent.items() if times}
    if spent["sandbox_s"]:
        found["use/sandbox_waited_s"] = sum(spent["sandbox_queue_s"])
        found["use/sandbox_kills"] = sum(t.counts.get("sandbox_kills", 0) for t in sampled.attempts)
    return found


def _by_source(attempts: Sequence[Trajectory]) -> dict[str, float]:
    """Reward and accuracy by data source; empty if there is only one source."""
    if len({t.task.data_source for t in attempts}) < 2:
        return {}
    sources: dict[str, list[Trajectory]] = {}
    for trajectory in attempts:
        sources.setdefault(trajectory.task.data_source, []).append(trajectory)
    metrics: dict[str, float] = {}
    for source, own in sorted(sources.items()):
        place = f"source/{source_name(source)}"
        metrics[f"{place}/reward"] = statistics.fmean(t.reward or 0.0 for t in own)
        metrics[f"{place}/accuracy"] = statistics.fmean(t.accuracy or 0.0 for t in own)
        metrics[f"{place}/attempts"] = len(own)
    return metrics


OF_FIRST_UPDATE = ("gap/", "correction/")  # metrics of weights that have not moved yet


def of_updates(role: str, rows: Sequence[dict[str, float]]) -> dict[str, float]:
    """Average the metrics of a step's updates. Skipped updates are counted instead."""
    if not rows:
        return {}
    names = [name for name in rows[0] if not name.startswith(OF_FIRST_UPDATE)]
    means = {f"{role}/{name}": statistics.fmean(row[name] for row in rows) for name in names}
    return {**means, f"{role}/skipped": sum(row["skipped"] for row in rows), f"{role}/lr": rows[-1]["lr"]}


def of_gap(batch: Batch, log_prob: Tensor) -> dict[str, float]:
    """The gap between the log-probabilities of engine and learner. `Policy.update` uses the same names."""
    difference = log_prob - batch.columns["sampled_log_prob"]
    return {
        "gap/abs_mean": float(difference.abs().mean()),
        "gap/kl": float(-difference.mean()),
        "gap/abs_max": float(difference.abs().max()),
    }
