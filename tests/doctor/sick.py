"""Runs with really sick settings, and folders that say what a long run would have said."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import yaml

from tests.trainer.runs import HERE, configured
from toolwright.cli import main
from toolwright.doctor.diagnosis import Diagnosis, diagnose
from toolwright.doctor.run_history import RunHistory
from toolwright.failures import UserError
from toolwright.runtime.host import identity
from toolwright.trainer.loop import train

TASK = (f"task.name={HERE}/sums.py:tasks", "task.held_out_size=8", "run.threads=1")
ATTEMPTS = ("rollout.tool_prompt=''", "rollout.max_tokens=24", "rollout.max_turns=3", "model.context=96")
CALCULATOR = ("tools={calculator: {}}",)
SHAPE = ("model.layers=1", "model.width=32", "model.heads=2", "model.kv_heads=2", "model.ffn=64")


def warm_start(runs: Path) -> Path:
    """The run folder of a model that answers sums by a tool, most of the time."""
    own = ("steps=160", "batch=16", "optimizer.lr=1e-2", f"run.dir={runs}", "run.name=warm")
    assert main(["sft", *SHAPE, *TASK, *ATTEMPTS, *CALCULATOR, *own]) == 0
    return runs / "warm"


def trained(runs: Path, name: str, *own: str, steps: int = 8, task: str = "letters") -> Path:
    """The folder of a run that may end with an error."""
    config = configured(f"run.dir={runs}", f"run.name={name}", f"train.steps={steps}", *own, task=task)
    try:
        return train(config, command=["toolwright", "train", *own])
    except UserError:
        return runs / name


def sums(runs: Path, name: str, warm: Path, *own: str, steps: int = 8) -> Path:
    """From the warm start, with its tool unless another is given."""
    model = (f"model.path={warm}/model", "rollout.agent=auto", "update.policy.lr=1e-4")
    return trained(runs, name, *TASK, *ATTEMPTS, *CALCULATOR, *model, *own, steps=steps)


def tool(kind: str) -> str:
    path = Path(__file__).with_name("sick_tools.py")
    return f"tools={{calculator: {{path: '{path}:{kind}'}}}}"


def found(run: Path) -> list[Diagnosis]:
    return diagnose(RunHistory.read(run))


def named(run: Path) -> list[str]:
    return [one.name for one in found(run)]


def written(
    folder: Path,
    rows: list[dict[str, Any]],
    *,
    log: str = "",
    incidents: list[dict[str, Any]] | None = None,
    timeline: list[dict[str, Any]] | None = None,
    **config: Any,
) -> Path:
    """A run folder with these metrics, of a run of this process that has ended as planned."""
    folder.mkdir(parents=True, exist_ok=True)
    steps = max((row["step"] for row in rows), default=0)
    own = {"train": {"steps": steps}, "algorithm": {"name": "grpo"}, "task": {"name": "sums"}}
    (folder / "config.yaml").write_text(yaml.safe_dump({**own, **config}))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "log.txt").write_text(f"2026-01-01 00:00:00 model of 150,000,000 parameters\n{log}")
    if incidents:
        (folder / "incidents.jsonl").write_text("".join(json.dumps(row) + "\n" for row in incidents))
    if timeline:
        (folder / "timeline.json").write_text("[\n" + ",\n".join(map(json.dumps, timeline)) + "\n]\n")
    return folder


def steps(count: int, **series: Any) -> list[dict[str, Any]]:
    """Metrics of so many steps. A series is a number, or a function of how much of the run is over."""
    return [
        {
            "step": step,
            **{
                key.replace("__", "/"): value(step / count) if callable(value) else value
                for key, value in series.items()
            },
        }
        for step in range(1, count + 1)
    ]


def of_process(run: Path, pid: int, began: str) -> None:
    (run / "command.txt").write_text(f"toolwright train\nprocess {pid} on {identity().host}, begun {began}\n")


def aged(run: Path, seconds: float) -> None:
    """As if nothing had been written for so long."""
    for file in run.iterdir():
        then = file.stat().st_mtime - seconds
        os.utime(file, (then, then))
