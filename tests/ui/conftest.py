"""Run folders to look at: a real small training, and attempts that hold whatever a model may write."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.settings import configure
from toolwright.observe.metrics import Metrics
from toolwright.record import save
from toolwright.trainer.loop import train
from toolwright.trajectory import Failure, Segment, Task, Trajectory

from .served import ServedPage, serving

RUN = "sweep/words"
SMALL = (
    *("task=reverse", "task.train_size=16", "task.held_out_size=8", "task.params.max_length=3"),
    *("model.layers=1", "model.width=16", "model.heads=2", "model.kv_heads=2", "model.ffn=32"),
    *("rollout.prompts=2", "rollout.samples=4", "rollout.max_tokens=4", "run.threads=1"),
)
HOSTILE = "hostile <b>run"
NASTY = '<script>alert("x")</script>\x1b[2J\u202egnp.exe\x00=1+1'


def trained(runs: Path, *own: str) -> Path:
    """The folder of a whole small run in this process."""
    config = configure([*SMALL, f"run.dir={runs}", *own])
    return train(config, command=["toolwright", "train", *own])


def hostile_attempt(step: int, number: int) -> Trajectory:
    task = Task(
        f"../../etc/{number // 2} {NASTY}",
        [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": f"What is {number}? {NASTY}"},
        ],
        ground_truth={"answer": NASTY},
        data_source="=cmd()",
    )
    attempt = Trajectory(
        task, f"{step}/{number // 2} {NASTY}", number % 2, seed=2**62, reward=number / 4, stop="eos",
        reward_parts={"acc": float(number % 2)}, counts={"tool_calls": number, "tool_errors": 0},
        timings={"attempt_s": 1.5}, weights_version=step - 1,
    )  # fmt: skip
    attempt.append(Segment("prompt", [1, 2], text="asked"))
    attempt.append(Segment("policy", [3, 4], [-0.5, -0.25], text=f"calculator({number})"))
    called = {"name": "calculator", "arguments": NASTY, "seconds": 0.01, "trouble": ""}
    attempt.append(Segment("tool", [5], text=NASTY, calls=[called]))
    attempt.append(Segment("policy", [6] * (number + 1), [-1.0] * (number + 1), text=f"Answer {number}."))
    if number == 3:
        attempt.failure, attempt.reward = Failure("task", f"the sandbox hung {NASTY}"), None
    return attempt


def hostile_run(folder: Path) -> Path:
    (folder / "rollouts").mkdir(parents=True)
    metrics = Metrics(folder / "metrics.jsonl")
    for step in (1, 2, 3):
        metrics.append(step, {"reward/mean": step / 10, "time/total_s": 2.0, f"odd/{NASTY}": float("nan")})
        attempts = [hostile_attempt(step, number) for number in range(4)]
        save(folder / "rollouts" / f"step_{step:06d}.parquet", attempts)
    (folder / "config.yaml").write_text('algorithm: {name: "\\ud800<i>"}\ntrain: {steps: 10}\n')
    (folder / "log.txt").write_text(NASTY)
    (folder / "incidents.jsonl").write_text('{"step": 2, "who": "rollout-1", "what": "died"}\n{"torn')
    return folder


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ui") / "runs"
    trained(folder, f"run.name={RUN}", "eval.every=1", "train.steps=3")
    hostile_run(folder / HOSTILE)
    return folder


@pytest.fixture(scope="session")
def page(runs: Path) -> Iterator[ServedPage]:
    with serving(runs) as served:
        yield served
