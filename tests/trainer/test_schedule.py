"""How long a run goes on, and the learning rate of each of its updates."""

from __future__ import annotations

from pathlib import Path

from toolwright.observe.metrics import Metrics

from .conftest import Build
from .runs import trained


def test_the_policys_schedule_counts_its_own_updates(build: Build) -> None:
    """Warm-up and decay begin when the policy does, and decay ends with the run."""
    trainer = build(
        "algorithm=ppo",
        "update.minibatches=1",
        "update.epochs=1",
        "update.critic_warmup=2",
        "update.policy.lr=1",
        "update.policy.warmup_steps=2",
        "update.policy.decay=linear",
        "update.critic.lr=1",
        "update.critic.decay=linear",
        "train.steps=8",
    )
    figures = [trainer.learn(trainer.sample(step), step) for step in range(1, 9)]
    assert [row.get("policy/lr") for row in figures] == [None, None, 0.5, 1, 1, 0.75, 0.5, 0.25]
    assert [row["critic/lr"] for row in figures] == [1 - n / 8 for n in range(8)]


def test_a_run_that_is_out_of_time_evaluates_its_last_step_and_saves_its_model(tmp_path: Path) -> None:
    folder = trained(tmp_path, "train.steps=1000", "train.minutes=1e-9")
    rows = Metrics.read(folder / "metrics.jsonl")
    assert [row["step"] for row in rows] == [0, 1]
    assert "held_out/accuracy" in rows[-1]
    assert (folder / "model").is_dir()
