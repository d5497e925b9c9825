"""A run folder as the trainer leaves it: real metrics, real rollouts, a few steps long."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolwright.observe.metrics import Metrics
from toolwright.record import save
from toolwright.trajectory import Failure, Segment, Task, Trajectory

NASTY = '<script>alert("x")</script> & \x1b[2J</pre>'


def make_attempt(
    *, group: str, index: int, reward: float | None, answer: str = "The answer is 84.", failure: str = ""
) -> Trajectory:
    task = Task(
        id=group,
        prompt=[
            {"role": "system", "content": "You solve sums."},
            {"role": "user", "content": "What is 12 times 7?"},
        ],
        ground_truth="84",
        data_source="arithmetic",
    )
    attempt = Trajectory(task, group, index, reward=reward, stop="eos", counts={"tool_calls": 1})
    attempt.append(Segment("prompt", [1, 2], text="rendered prompt"))
    attempt.append(Segment("policy", [3, 4], [-0.5, -0.1], text="calculator(12*7)"))
    called = {"name": "calculator", "arguments": '{"x": "12*7"}', "seconds": 0.012, "trouble": ""}
    broken = {"name": "", "trouble": "malformed"}
    attempt.append(Segment("tool", [5], text="result 84", calls=[called, broken]))
    attempt.append(Segment("environment", [6], text="the room is quiet", reward=0.25))
    attempt.append(Segment("policy", [7], [-0.2], text=answer))
    if failure:
        attempt.failure = Failure("task", failure)
    return attempt


def make_step(step: int) -> list[Trajectory]:
    first, second = f"s{step}-apple", f"s{step}-berry"
    return [
        make_attempt(group=first, index=0, reward=0.0, answer=f"It is 11. {NASTY}"),
        make_attempt(group=first, index=1, reward=1.0),
        make_attempt(group=second, index=0, reward=0.5, answer="Half right."),
        make_attempt(group=second, index=1, reward=None, failure="the sandbox took more than 30 s"),
    ]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "grpo <b>arithmetic"
    (folder / "rollouts").mkdir(parents=True)
    metrics = Metrics(folder / "metrics.jsonl")
    metrics.append(0, {"held_out/accuracy": 0.1, "held_out/reward": 0.1, "time/total_s": 1.0})
    for step in range(1, 7):
        values: dict[str, float | int | str] = {
            "reward/mean": step / 10,
            "response/tokens_mean": 12.0 + step,
            "policy/kl": 1e-5 * step,
            "policy/grad_norm": float("nan") if step == 3 else 1.0,
            "time/total_s": 2.0,
            "time/sample_s": 1.0,
            "time/update_s": 0.5,
            "throughput/tokens_per_s": 9000.0,
            "novel/<thing>": step * 7,
            "novel/word": "calm",
        }
        if step % 2 == 0:
            values |= {"held_out/accuracy": {2: 0.4, 4: 0.75, 6: 0.625}[step], "time/evaluate_s": 0.5}
        metrics.append(step, values)
        save(folder / "rollouts" / f"step_{step:06d}.parquet", make_step(step))
    (folder / "command.txt").write_text("toolwright train task=arithmetic 'name=<i>'\n")
    (folder / "config.yaml").write_text(
        "algorithm: {name: grpo, adv_estimator: grpo, loss: ppo}\ntask: {name: arithmetic}\n"
        "model: {path: null, layers: 3, width: 96}\nrollout: {prompts: 16, samples: 8}\n"
    )
    return folder
