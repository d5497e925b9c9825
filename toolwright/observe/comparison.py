"""Runs side by side: the settings in which they differ, and the figures that they ended with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolwright.config.keys import flatten
from toolwright.config.yaml_file import read_yaml
from toolwright.failures import UserError
from toolwright.observe.estimates import PairedDifference
from toolwright.observe.evaluation import differences, read_evaluations
from toolwright.observe.metrics import Metrics, series
from toolwright.observe.summary import outcome

OWN = frozenset({"run.name", "run.dir", "run.resume"})  # settings that differ between any two runs
FIRST = ("steps", "seconds", "held_out/before", "held_out/after", "held_out/best", "reward/mean")
MAIN = (
    "reward/std",
    "response/tokens_mean",
    "response/truncated",
    "turns/mean",
    "attempts/failed",
    "policy/loss",
    "policy/entropy",
    "policy/ppo_kl",
    "policy/clip_fraction",
    "policy/grad_norm",
    "reference/kl",
    "critic/loss",
    "gap/abs_mean",
    "throughput/tokens_per_s",
    "time/total_s",
)


@dataclass(frozen=True)
class Comparison:
    """A comparison of runs: one value a run in each row; None where a run has none."""

    runs: list[Path]
    settings: dict[str, list[Any]]
    figures: dict[str, list[float | None]]
    # Each further run less the first, by source (`""`: all) and measure. None: one was not evaluated.
    held_out: list[dict[str, dict[str, PairedDifference]] | None]


def compare(runs: Sequence[Path], *, every: bool = False) -> Comparison:
    """`every`: all metrics of the last steps, not only the main ones."""
    settings = [_settings(run) for run in runs]
    keys = list(dict.fromkeys(key for of_one in settings for key in of_one if key not in OWN))
    differ = [key for key in keys if any(s.get(key) != settings[0].get(key) for s in settings)]
    figures = [_figures(run) for run in runs]
    known = list(dict.fromkeys(name for of_one in figures for name in of_one))
    wanted = (*FIRST, *(sorted(set(known) - set(FIRST)) if every else MAIN))
    shown = [name for name in wanted if name in known]
    return Comparison(
        runs=list(runs),
        settings={key: [of_one.get(key) for of_one in settings] for key in differ},
        figures={name: [of_one.get(name) for of_one in figures] for name in shown},
        held_out=_held_out(runs),
    )


def _held_out(runs: Sequence[Path]) -> list[dict[str, dict[str, PairedDifference]] | None]:
    first, *others = [found[max(found)] if (found := read_evaluations(run)) else None for run in runs]
    return [differences(first, other) if first and other else None for other in others]


def _settings(run: Path) -> dict[str, Any]:
    if not (run / "config.yaml").is_file():
        raise UserError(f"{run} has no config.yaml: it is not a run folder")
    return dict(flatten(read_yaml(run / "config.yaml")))


def _figures(run: Path) -> dict[str, float]:
    """The last value of each metric, and what the closing table says."""
    rows = Metrics.read(run / "metrics.jsonl")
    names = dict.fromkeys(name for row in rows for name in row if name not in ("step", "nonfinite"))
    last = {name: points[-1][1] for name in names if (points := series(rows, name))}
    end = outcome(rows)
    found = {"steps": float(end.steps), "seconds": end.seconds}
    for when, point in (("before", end.before), ("after", end.after), ("best", end.best)):
        if point is not None:
            found[f"held_out/{when}"] = point[1]
    return {**found, **last}
