"""A run in a few words and numbers: one line of the page's list."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from toolwright.observe.run_folders import QUIET_S, QUIET_STEPS, planned_steps
from toolwright.observe.run_settings import model_name
from toolwright.ui.config_file import ConfigFile
from toolwright.ui.metrics_table import MetricsTable
from toolwright.ui.run_files import Version
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
    updated = max((changed for changed, _ in versions.values()), default=0) / 1e9
    state = _state(config, versions, metrics, (step, steps), time.time() if now is None else now)
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
        "algorithm": _text(config.at("algorithm.name")),
        "task": _text(config.at("task.name")),
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


def _state(
    config: ConfigFile,
    versions: Mapping[str, Version],
    metrics: MetricsTable,
    steps: tuple[int, int | None],
    now: float,
) -> str:
    """A run writes its report last. Of a run on another machine, how long it has been quiet must do."""
    (step, planned), written = steps, {part: changed for part, (changed, _) in versions.items()}
    if planned is not None and metrics.rows and step >= planned:
        return "finished"
    if written.get("report", -1) >= max(written.get("metrics", 0), written.get("config", 0)):
        return "finished" if planned is None else "stopped"
    alive = config.process_alive
    if alive is None:
        longest = max((value for _, value in metrics.points("time/total_s")), default=0.0)
        quiet_s = now - max(written.values(), default=0) / 1e9
        alive = quiet_s < max(QUIET_S, QUIET_STEPS * longest)
    return "running" if alive else "stopped"


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


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _plain(value: Any) -> Any:
    return value if isinstance(value, int | str) else None
