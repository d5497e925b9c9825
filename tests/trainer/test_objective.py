"""What the policy's objective is given by a run, update by update."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from toolwright.learner.policy import Policy

from .conftest import Build
from .runs import metrics, trained
from .test_presets_learn import held_out_rewards


def test_no_two_updates_draw_with_the_same_seed(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []
    update = Policy.update

    def remembering(self: Policy, *given: Any, seed: int, **more: Any) -> dict[str, float]:
        seeds.append(seed)
        return update(self, *given, seed=seed, **more)

    monkeypatch.setattr(Policy, "update", remembering)
    own = ("algorithm=clip_cov", "update.minibatches=2", "update.epochs=2")
    for run_seed in (0, 1):
        trainer = build(*own, f"run.seed={run_seed}")
        for step in (1, 2):
            trainer.learn(trainer.sample(step), step)
    assert len(set(seeds)) == len(seeds) == 2 * 2 * 2 * 2
    seeds.clear()
    again = build(*own)
    again.learn(again.sample(1), 1)
    first = list(seeds)
    seeds.clear()
    again = build(*own)
    again.learn(again.sample(1), 1)
    assert seeds == first, "they follow from names alone"


LEARNING = ("rollout.prompts=16", "rollout.samples=8", "eval.temperature=1", "eval.samples=8")


def test_geo_rs_learns_from_the_sequences_that_it_keeps(tmp_path: Path) -> None:
    """In bfloat16 engine and learner differ by enough to put some sequences of two tokens out of bounds."""
    own = ("algorithm=geo_rs", "model.dtype=bfloat16", "update.policy.lr=1e-2", "train.steps=30")
    run = trained(tmp_path, *LEARNING, *own)
    rejected = fmean(row["correction/reject_fraction"] for row in metrics(run)[1:])
    before, after = held_out_rewards(run)
    assert 0.02 < rejected < 0.98
    assert before < 0.25
    assert after > before + 0.4


@pytest.mark.slow
def test_an_adaptive_bonus_holds_the_entropy_that_is_lost_without_it(tmp_path: Path) -> None:
    def last_steps(target: str) -> tuple[float, float]:
        """Mean entropy, and the reward that was learned all the same."""
        own = (
            "algorithm=adaptive_entropy",
            f"algorithm.entropy_target={target}",
            "algorithm.entropy_delta=0.1",
            "update.policy.lr=1e-2",
            "train.steps=40",
        )
        run = trained(tmp_path, f"run.name={target}", *LEARNING, *own)
        return fmean(row["policy/entropy"] for row in metrics(run)[-12:]), held_out_rewards(run)[-1]

    (held, reward), (lost, _) = last_steps("1.0"), last_steps("null")
    assert lost < 0.25
    assert 0.7 < held < 1.5
    assert reward > 0.6
