"""Replay of rare successes, and the curriculum beside it: right numbers, and the same ones after a resume."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from toolwright.failures import UserError
from toolwright.trainer.replay import ReplayBuffer, from_json, to_json
from toolwright.trajectory import Group, Segment, Task, Trajectory

from .conftest import Build
from .runs import HERE, configured, metrics, rollouts, trained

EXACT = f"reward.function={HERE}/fragile.py:exactly"
RARE = ("rollout.samples=8", "rollout.prompts=8", "algorithm.kl.where=none", EXACT)


def group(name: str, *rewards: float, task: str = "t") -> Group:
    attempts = [
        Trajectory(
            Task(task, []),
            name,
            index=index,
            reward=reward,
            segments=[Segment("prompt", [1]), Segment("policy", [2, index], [-0.5, -1 / 3])],
        )
        for index, reward in enumerate(rewards)
    ]
    return Group(attempts[0].task, attempts)


def right(one: Group) -> list[bool]:
    return [reward > 0 for reward in one.rewards]


class TestReplayBuffer:
    def test_a_rare_success_takes_the_place_of_a_failure_where_there_are_only_failures(self) -> None:
        buffer, first, second = ReplayBuffer(4), group("1.0.0", 0, 1, 0, 0), group("2.0.0", 0, 0, 0, 0)
        buffer.observe(first, right(first))
        filled = buffer.fill(second, right(second))
        assert filled is not None
        assert filled.trajectories[:3] == second.trajectories[:3]
        again = filled.trajectories[3]
        assert (again.group, again.index, again.reward) == ("2.0.0", 3, 1)
        assert again.segments == first.trajectories[1].segments
        assert buffer.fill(first, right(first)) is None, "a group with a success of its own needs none"
        other = group("2.0.1", 0, 0, task="other")
        assert buffer.fill(other, right(other)) is None

    def test_a_task_that_is_no_longer_hard_is_forgotten(self) -> None:
        buffer, hard, easy = ReplayBuffer(4), group("1", 0, 1, 0, 0), group("2", 0, 1, 1, 0)
        buffer.observe(easy, right(easy))
        assert not buffer.kept
        buffer.observe(hard, right(hard))
        buffer.observe(easy, right(easy))
        assert not buffer.kept

    def test_the_buffer_holds_the_newest_successes(self) -> None:
        buffer = ReplayBuffer(2)
        for number, task in enumerate("abac"):
            one = group(str(number), 0, 0, 0, 1, task=task)
            buffer.observe(one, right(one))
        assert [(t.task.id, t.group) for t in buffer.state()] == [("a", "2"), ("c", "3")]

    def test_a_truncated_one_is_not_kept_where_it_would_be_masked(self) -> None:
        one = group("1", 0, 0, 0, 1)
        one.trajectories[3].stop = "length"
        for truncated in (True, False):
            buffer = ReplayBuffer(2, truncated=truncated)
            buffer.observe(one, right(one))
            assert bool(buffer.kept) == truncated

    def test_a_checkpoint_keeps_it_to_the_last_bit(self) -> None:
        kept = group("1", 0.1).trajectories
        kept[0].segments[1].calls = [{"name": "python"}]
        assert from_json(json.loads(json.dumps(to_json(kept)))) == kept


def test_replayed_attempts_are_weighed_by_their_own_log_probabilities(build: Build) -> None:
    """w = π / π_recorded, capped; attempts of the present policy keep a weight of 1."""
    varied = f"reward.function={HERE}/fragile.py:variety"  # so that the first step moves the policy
    own = ("algorithm.selection.replay=8", "update.policy.lr=3e-2", "update.minibatches=2")
    trainer = build(varied, *own)
    old = trainer.sample(1)
    trainer.learn(old, 1)
    now = trainer.sample(2)
    place, earlier = now.groups[0], old.groups[0].trajectories[0]
    trainer.sampler.replay.kept = {place.task.id: earlier}
    filled = trainer.sampler.replay.fill(place, [False] * len(place.trajectories))
    assert filled is not None
    now.groups[0] = filled
    rows = now.trajectories
    batch, figures = trainer.learner.credit.assign(rows, exact=False, baselines={}, kl_coef=0.0)
    weights, row = batch.padded("weights"), len(place.trajectories) - 1
    today = trainer.learner.policy.statistics(batch)["log_prob"]
    ratio = (today - batch.columns["sampled_log_prob"]).exp()
    assert torch.allclose(batch.columns["weights"], ratio.clamp(max=2.0))
    fresh = [i for i in range(len(rows)) if i != row]
    assert set(weights[fresh][batch.mask[fresh].bool()].tolist()) == {1.0}
    assert (weights[row][batch.mask[row].bool()] != 1.0).all()
    assert figures["correction/weight_mean"] != 1.0
    learned = trainer.learn(now, 2)
    assert learned["correction/weight_mean"] == pytest.approx(figures["correction/weight_mean"])
    assert learned["gap/abs_max"] <= 1e-5, "the gap is that of engine and learner, not of two policies"


def test_a_resumed_run_is_the_unbroken_one(tmp_path: Path) -> None:
    own = (*RARE, "algorithm.selection.replay=8", "task.order=difficulty", "task.train_size=8")
    whole = trained(tmp_path, "run.name=whole", *own, "train.steps=14")
    half = trained(tmp_path, "run.name=half", *own, "train.steps=10")
    trained(tmp_path, "run.name=half", "run.resume=true", *own, "train.steps=14")
    assert sum(row["groups/replayed"] for row in metrics(whole)[11:]) > 0
    models = [(run / "model/model.safetensors").read_bytes() for run in (whole, half)]
    assert models[0] == models[1]


def test_a_curriculum_spends_attempts_where_something_can_be_learned(tmp_path: Path) -> None:
    """A quarter of the tasks has an answer; by epochs a quarter of the attempts would go there."""
    hopeless = f"task.name={HERE}/letters.py:mostly_hopeless"
    own = (hopeless, "algorithm=curriculum", "rollout.samples=8", "train.steps=30", "update.policy.lr=5e-3")
    run = trained(tmp_path, *own)
    late = [t for step, attempts in rollouts(run).items() if step > 15 for t in attempts]
    assert sum(t.task.ground_truth != "??" for t in late) > 0.4 * len(late)


def test_replay_without_a_correction_is_refused() -> None:
    with pytest.raises(UserError, match="does not weigh"):
        configured("algorithm.selection.replay=8", "algorithm.correction.mode=none")


@pytest.mark.slow
def test_rare_successes_are_learned_sooner(tmp_path: Path) -> None:
    """Where one attempt in hundreds is right, half of the learning is finding it again."""

    def reward_at_the_end(replay: int, seed: int) -> float:
        own = (*RARE, "update.policy.lr=3e-3", "train.steps=60", f"run.seed={seed}")
        name = f"run.name={replay}-{seed}"
        run = trained(tmp_path, name, *own, f"algorithm.selection.replay={replay}")
        return sum(row["reward/mean"] for row in metrics(run)[-10:]) / 10

    for seed in (0, 1):
        assert reward_at_the_end(32, seed) > 1.5 * reward_at_the_end(0, seed)
