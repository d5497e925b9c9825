"""A run in a few words and numbers: one line of the page's list."""

from __future__ import annotations

import time
from typing import Any

from toolwright.observe.run_folders import planned_steps, status
from toolwright.observe.run_settings import model_name
from toolwright.ui.config_file import ConfigFile
from toolwright.ui.run_files import WATCHED
from toolwright.ui.run_library import OpenRun

MAIN_METRICS = (
    "reward/mean",
    "held_out/accuracy",
    "held_out/reward",
    "policy/entropy",
    "policy/loss",
    "policy/preference_accuracy",
    "loss",
    "response/tokens_mean",
    "throughput/tokens_per_s",
    "time/total_s",
)
DRAWN = ("reward/mean", "policy/preference_accuracy", "held_out/accuracy", "policy/loss", "loss")
PARTS = ("metrics", "attempts", "timeline", "incidents", "search")  # that have a view of their own
POINTS = 60


def card(run: OpenRun, *, now: float | None = None) -> dict[str, Any]:
    """Everything that the list of runs shows. Attempts are counted by files, not read."""
    config, metrics, rollouts = run.config, run.metrics, run.files.count_rollouts()
    step, steps = max(metrics.steps, default=0), planned_steps(config.kind, config.tree)
    versions = run.files.versions()
    written = {WATCHED[part]: changed / 1e9 for part, (changed, _) in versions.items()}
    updated = max(written.values(), default=0.0)
    longest = max((value for _, value in metrics.points("time/total_s")), default=0.0)
    last = step if metrics.rows else -1
    state = status(last, steps, written, config.command, longest_step_s=longest, now=now)
    drawn = next((name for name in DRAWN if metrics.last(name) is not None), "")
    has = [part for part in PARTS if part in versions and (part != "attempts" or rollouts)]
    if any(name.startswith("held_out/") for name in metrics.names):
        has.append("evaluations")
    return {
        "name": run.name,
        "kind": config.kind,
        "state": state,
        "step": step,
        "steps": steps,
        "algorithm": str(config.at("algorithm.name") or ""),
        "task": str(config.at("task.name") or ""),
        "model": model_name(config.tree),
        "seed": _plain(config.at("run.seed")),
        "started": _started(config) or updated,
        "updated": updated,
        "seconds": metrics.seconds,
        "rollout_steps": rollouts,
        "attempts": run.attempts_in_memory or None,
        "last": {name: value for name in MAIN_METRICS if (value := metrics.last(name)) is not None},
        "deaths": int(sum(value for _, value in metrics.points("runtime/deaths"))),
        "has": has,
        "drawn": drawn,
        "spark": _thinned([value for _, value in metrics.points(drawn)]),
    }


def _started(config: ConfigFile) -> float | None:
    first = config.command.partition("\n")[0].removeprefix("# ").strip()
    try:
        return time.mktime(time.strptime(first, "%Y-%m-%d %H:%M:%S"))
    except (ValueError, OverflowError):
        return None


def _thinned(values: list[float]) -> list[float]:
    if len(values) <= POINTS:
        return values
    return [values[place * (len(values) - 1) // (POINTS - 1)] for place in range(POINTS)]


def _plain(value: Any) -> Any:
    return value if isinstance(value, int | str) else None
