"""What the policy's objective is given by a run, update by update."""

from __future__ import annotations

from typing import Any

import pytest

from toolwright.learner.policy import Policy

from .conftest import Build


def test_no_two_updates_draw_with_the_same_seed(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []
    update = Policy.update

    def remembering(self: Policy, *given: Any, seed: int) -> dict[str, float]:
        seeds.append(seed)
        return update(self, *given, seed=seed)

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
