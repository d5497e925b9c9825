"""What the learner computed for each sampled token is kept with the attempts of the step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.trainer import pairs
from toolwright.failures import UserError
from toolwright.observe import rollouts
from toolwright.record import TokenValues
from toolwright.trajectory import Trajectory, as_groups

from .runs import metrics, token_values, trained
from .runs import rollouts as attempts_of

Kept = list[tuple[Trajectory, TokenValues]]


def kept(run: Path, step: int) -> Kept:
    return list(zip(attempts_of(run)[step], token_values(run)[step], strict=True))


def sampled(t: Trajectory) -> list[float]:
    return [log_prob for segment in t.steps for log_prob in segment.log_probs]


def test_every_sampled_token_has_an_advantage_a_probability_and_an_entropy(tmp_path: Path) -> None:
    run = trained(tmp_path, "algorithm=grpo")
    for step, row in enumerate(metrics(run)[1:], start=1):
        found = kept(run, step)
        assert all(len(v.entropies) == t.sampled_tokens for t, v in found)
        assert all(v.log_probs.tolist() == sampled(t) for t, v in found), "a native engine is exact on a CPU"
        entropies = np.concatenate([v.entropies for _, v in found])
        assert entropies.mean() == pytest.approx(row["policy/entropy"], rel=1e-5)
        by_attempt = {(t.group, t.index): v for t, v in found}
        for group in as_groups([t for t, _ in found]):
            given = [by_attempt[t.group, t.index].advantages for t in group.trajectories]
            assert all(len(set(one.tolist())) == 1 for one in given), (
                "GRPO gives a whole attempt one advantage"
            )
            assert sum(one[0] for one in given) == pytest.approx(0, abs=1e-5)


def test_several_updates_a_step_keep_the_probabilities_from_before_the_first(tmp_path: Path) -> None:
    run = trained(tmp_path, "algorithm=ppo", "update.minibatches=2", "update.epochs=2", "train.steps=1")
    for t, values in kept(run, 1):
        assert values.log_probs.tolist() == sampled(t)
        assert (values.entropies > 0).all()
        assert np.isfinite(values.advantages).all()


def test_attempts_that_were_not_learned_from_have_no_values(tmp_path: Path) -> None:
    left_out = trained(
        tmp_path / "flat", "algorithm=dapo", "train.steps=1", "rollout.samples=2", "update.minibatches=1"
    )
    learned = [v.learned for _, v in kept(left_out, 1)]
    assert sum(learned) == 2 * metrics(left_out)[1]["groups/kept"]
    assert not all(learned), "groups without a signal were left out"
    masked = trained(
        tmp_path / "cut",
        "reward.truncated=mask",
        "rollout.max_tokens=8",
        "rollout.prompts=8",
        "train.steps=1",
    )
    found = kept(masked, 1)
    assert [v.learned for _, v in found] == [not t.cut for t, _ in found]
    assert 0 < sum(t.cut for t, _ in found) < len(found)


def test_a_critic_that_learns_alone_leaves_no_values(tmp_path: Path) -> None:
    run = trained(tmp_path, "algorithm=ppo", "update.critic_warmup=1")
    assert token_values(run)[1] == [TokenValues()] * 16
    assert all(v.learned for v in token_values(run)[2])


def test_compared_answers_have_probabilities_and_no_advantages(tmp_path: Path) -> None:
    data = pairs.written(tmp_path / "pairs.jsonl", pairs.rows())
    own = ["algorithm=dpo", "task.name=preferences", f"task.train={data}", "model.context=auto"]
    for _, values in kept(trained(tmp_path, *own, "train.steps=1"), 1):
        assert values.advantages is None
        assert (values.log_probs < 0).all()
        assert (values.entropies > 0).all()


def test_values_of_each_turn_are_those_of_its_tokens(tmp_path: Path) -> None:
    run = trained(tmp_path, "algorithm=gigpo", "train.steps=1", task="rooms")
    for t, values in kept(run, 1):
        for segment, own in zip(t.segments, values.by_segment(t), strict=True):
            if segment.source == "policy":
                assert own.log_probs.tolist() == segment.log_probs
                assert len(own.advantages) == len(own.entropies) == len(segment.tokens)
            else:
                assert not own.learned


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "step_000001.parquet"
    broken.write_bytes(b"PAR1")
    with pytest.raises(UserError, match="cannot be read as rollouts"):
        rollouts.token_values(broken)
