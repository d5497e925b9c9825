"""A tiny model that wanders learns to walk: its success in a small grid world rises clearly."""

from __future__ import annotations

import json
import random
import statistics
from pathlib import Path

import pytest

from tests.settings import configure
from toolwright.cli import main
from toolwright.config.schema import Config
from toolwright.tasks import load
from toolwright.trainer.loop import TrainingLoop

# One level, known by its places alone.
TASK = ("task=gridworld", "task.params.view=place", "task.params.min_steps=6", "task.train_size=1")
MODEL = ("model.layers=1", "model.width=32", "model.heads=2", "model.kv_heads=2", "model.ffn=64")
SMALL = (*TASK, *MODEL, "task.held_out_size=1", "model.context=192", "run.threads=1", "rollout.max_turns=14")


def configured(*own: str) -> Config:
    return configure([*SMALL, *own])


def demonstrations(file: Path, *, noise: float) -> Path:
    """Many walks of the one level, most of their steps at random."""
    tasks = load(configured(f"task.params.noise={noise}").task, seed=0)
    assert tasks.demonstrate is not None
    (level,), rng = tasks.train, random.Random(0)
    walks = [[*level.prompt, *tasks.demonstrate(level, rng)[:24]] for _ in range(96)]
    file.write_text("".join(json.dumps({"messages": walk}) + "\n" for walk in walks))
    return file


@pytest.mark.slow
def test_gigpo_teaches_a_wanderer_to_reach_the_goal(tmp_path: Path) -> None:
    shown = demonstrations(tmp_path / "walks.jsonl", noise=0.6)
    warm = [f"demonstrations={shown}", "steps=100", "batch=16", "optimizer.lr=1e-2", f"run.dir={tmp_path}"]
    assert main(["sft", *SMALL, *warm, "run.name=warm"]) == 0
    own = ["rollout.prompts=2", "rollout.samples=16", "update.policy.lr=2e-3", "algorithm.kl.where=none"]
    trainer = TrainingLoop(configured("algorithm=gigpo", f"model.path={tmp_path}/warm/model", *own))
    success = []
    try:
        for step in range(1, 26):
            sampled = trainer.sample(step)
            assert not sampled.failures
            success.append(statistics.fmean(t.counts["success"] for t in sampled.trajectories))
            trainer.learn(sampled, step)
    finally:
        trainer.close()
    before, after = statistics.fmean(success[:2]), statistics.fmean(success[-5:])
    assert before < 0.6, "it is to be learned, not known"
    assert after > before + 0.3
