"""A run folder as the trainer leaves it: real metrics, real rollouts, a few steps long."""

from __future__ import annotations

import json
import re
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
            "policy/ppo_kl": 1e-5 * step,
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


# Everything that a text could do to whoever shows it: escape sequences, scripts, reversed and hidden text,
# markup of HTML, Markdown, Rich and Textual.
HOSTILE = (
    "\x1b]0;owned\x07\x1b[31m\x9b2J\x00\r<script>alert(1)</script>\u202etxet\u2066\u200e\u200b\ufeff\U000e0041"
    "[bold red]b[/] [@click=app.quit]x[/] [link=http://x]y[/link] `` ````` \n```\n~~~~\n# h\n<!--\u2028&amp;"
)
OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff\U000e0000-\U000e0fff]"
)


def hostile_attempt(index: int = 0) -> Trajectory:
    """Hostile in every field that a text can stand in."""
    task = Task(
        id=HOSTILE,
        prompt=[
            {"role": HOSTILE, "content": HOSTILE},
            {"role": "user", "content": HOSTILE + "\ud83d"},
        ],
        ground_truth={HOSTILE: HOSTILE},
        data_source=HOSTILE,
    )
    attempt = Trajectory(task, HOSTILE, index, reward=float(index), stop=HOSTILE)
    attempt.counts, attempt.reward_parts, attempt.timings = {HOSTILE: 1.0}, {HOSTILE: 1.0}, {HOSTILE: 1.0}
    attempt.append(Segment("prompt", [1], text=HOSTILE))
    attempt.append(Segment("policy", [3, 4], [-0.5, -0.1], text=HOSTILE, anchor=HOSTILE))
    call = {"name": HOSTILE, "arguments": HOSTILE, "seconds": 1.0, "trouble": HOSTILE}
    attempt.append(Segment("tool", [5], text=HOSTILE, calls=[call]))
    attempt.append(Segment("environment", [6], text="x" * 50_000 + HOSTILE))
    attempt.append(Segment("policy", [7], [-0.2], text=HOSTILE))
    if index == 1:
        attempt.failure = Failure("task", HOSTILE)
    return attempt


@pytest.fixture
def hostile_run(tmp_path: Path) -> Path:
    """A run folder in which every text is hostile, its own name included."""
    name = HOSTILE.replace("/", "").replace("\x00", "").replace("\n", "\r")
    folder = tmp_path / name.encode()[:200].decode(errors="ignore")
    (folder / "rollouts").mkdir(parents=True)
    values = {
        HOSTILE: 1.0,
        "reward/mean": 0.5,
        f"time/{HOSTILE}_s": 1.0,
        f"held_out/{HOSTILE}": 0.5,
        "word": HOSTILE,
    }
    for step in (1, 2):
        Metrics(folder / "metrics.jsonl").append(step, values)
        save(folder / "rollouts" / f"step_{step:06d}.parquet", [hostile_attempt(0), hostile_attempt(1)])
    incident = {"step": HOSTILE, "who": HOSTILE, "what": HOSTILE, "done": HOSTILE, "died": True}
    (folder / "incidents.jsonl").write_text(json.dumps(incident) + "\n")
    (folder / "command.txt").write_text(HOSTILE)
    config = {
        "algorithm": {"name": HOSTILE},
        "task": {"name": HOSTILE},
        "model": {"path": HOSTILE},
        HOSTILE: 1,
    }
    (folder / "config.yaml").write_text(json.dumps(config))
    return folder
