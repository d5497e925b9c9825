"""A tiny model that wanders learns to walk: its success in a small grid world rises clearly over its start."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from toolwright.cli import main
from toolwright.config.compose import Source, resolve
from toolwright.config.schema import Config
from toolwright.trainer.loop import Trainer

TASK = ("task=gridworld", "task.params.width=4", "task.params.height=3", "task.params.min_steps=5")
MODEL = ("model.layers=1", "model.width=32", "model.heads=2", "model.kv_heads=2", "model.ffn=64")
SMALL = (*TASK, *MODEL, "task.held_out_size=8", "model.context=256", "run.threads=1", "rollout.max_turns=10")


@pytest.mark.slow
def test_gigpo_teaches_a_wanderer_to_reach_the_goal(tmp_path: Path) -> None:
    warm = ["task.params.noise=0.4", "task.train_size=128", "steps=150", "batch=16", "optimizer.lr=1e-2"]
    assert main(["sft", *SMALL, *warm, f"run.dir={tmp_path}", "run.name=warm"]) == 0
    own = ["task.train_size=4", "rollout.prompts=4", "rollout.samples=12", "update.policy.lr=2e-3"]
    words = [*SMALL, "algorithm=gigpo", f"model.path={tmp_path}/warm/model", *own, "algorithm.kl.where=none"]
    config = resolve(Source(), words).config
    assert isinstance(config, Config)
    trainer, success = Trainer(config), []
    try:
        for step in range(1, 31):
            sampled = trainer.sample(step)
            assert not sampled.failures
            success.append(statistics.fmean(t.counts["success"] for t in sampled.trajectories))
            trainer.learn(sampled, step)
    finally:
        trainer.close()
    before, after = statistics.fmean(success[:3]), statistics.fmean(success[-5:])
    assert before < 0.6, "it is to be learned, not known"
    assert after > before + 0.25
