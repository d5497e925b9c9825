"""A step's groups are complete, sampled again or dropped; what is dropped is counted and said."""

from __future__ import annotations

import copy
import shutil
from collections import Counter
from pathlib import Path

import pytest
import torch

from toolwright.algorithms import selection
from toolwright.failures import UserError
from toolwright.learner import checkpoints
from toolwright.models.attention import PackedAttention
from toolwright.trainer.loop import TrainingLoop
from toolwright.trainer.sampling import SampledStep, is_right
from toolwright.trajectory import Task, Trajectory

from .conftest import Build
from .runs import HERE, configured, metrics, rollouts, trained

FRAGILE = f"{HERE}/fragile.py"


def sizes(sampled: SampledStep) -> list[int]:
    return [len(group.trajectories) for group in sampled.groups]


def test_a_failed_attempt_drops_its_group_and_is_never_scored(tmp_path: Path) -> None:
    run = trained(tmp_path, f"rollout.agent={FRAGILE}:SometimesLost", "rollout.prompts=8")
    for row in metrics(run)[1:]:
        found = rollouts(run)[row["step"]]
        failed = [t for t in found if t.failure is not None]
        lost = {t.group for t in failed}
        assert all(t.reward is None and t.failure and t.failure.message == "the dog ate it" for t in failed)
        assert row["attempts/failed"] == len(failed) == row["groups/dropped"] == len(lost) > 0
        assert row["groups/kept"] == 8 - len(lost) > 0
        judged = [t.reward for t in found if t.reward is not None]
        assert row["reward/mean"] == pytest.approx(sum(judged) / len(judged))


def test_a_reward_that_raises_is_a_failed_attempt_and_not_a_score_of_0(build: Build) -> None:
    trainer = build(f"reward.function={FRAGILE}:moody", "rollout.prompts=16")
    sampled = trainer.sample(1)
    failed = [t for t in sampled.attempts if t.failure is not None]
    assert failed
    assert all("I do not judge answers that begin with a" in t.failure.message for t in failed if t.failure)
    assert {t.reward for t in sampled.attempts if t.failure is None} == {1.0}
    assert {t.group for t in failed}.isdisjoint(t.group for t in sampled.trajectories)


def test_attempts_lost_to_infrastructure_are_sampled_again_from_the_same_seed(build: Build) -> None:
    careful = build(f"rollout.agent={FRAGILE}:Careful").sample(1)
    lost_once = build(f"rollout.agent={FRAGILE}:LostOnce").sample(1)
    assert lost_once.failed == lost_once.dropped == 0
    assert [t.tokens for t in lost_once.trajectories] == [t.tokens for t in careful.trajectories]


def test_a_group_is_scored_while_others_are_sampled(build: Build, tmp_path: Path) -> None:
    """The first group waits for another's score; the order in which they came leaves no trace."""
    file = shutil.copy(HERE / "overlap.py", tmp_path)
    reward = f"reward.function={file}:score"
    in_turn = build(reward).sample(1)
    (tmp_path / "scored").unlink()
    overlapping = build(reward, f"rollout.agent={file}:Patient", "rollout.timeout_s=600").sample(1)
    assert overlapping.failed == 0
    assert [t.reward for t in overlapping.attempts] == [t.reward for t in in_turn.attempts]
    assert all(4 <= (t.reward or 0) < 5 for t in in_turn.attempts)


def test_a_step_in_which_every_group_fails_stops_the_run_and_keeps_what_was_learned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = (f"rollout.agent={FRAGILE}:LostFromTheThirdStepOn", "train.steps=5", "run.name=x")
    with pytest.raises(UserError, match=r"step 3: no group is complete: all 4 .* the first said: the dog"):
        trained(tmp_path, *own)
    assert "step 3: 16 attempts failed, first: the dog ate it" in capsys.readouterr().out
    last = checkpoints.latest(tmp_path / "x/checkpoints")
    assert last is not None
    state, _ = checkpoints.load(last)
    assert (state["step"], state["order"]["position"]) == (2, 8)
    assert (tmp_path / "x/log.txt").read_text().count("step 3: the dog ate it") == 16


def test_an_evaluation_that_fails_stops_the_run_and_keeps_what_was_learned(tmp_path: Path) -> None:
    own = (f"rollout.agent={FRAGILE}:LostFromTheSecondTimeOn", "train.steps=5", "eval.every=2", "run.name=x")
    with pytest.raises(UserError, match="none of the 8 held-out attempts could be scored: the dog ate it"):
        trained(tmp_path, *own)
    last = checkpoints.latest(tmp_path / "x/checkpoints")
    assert last is not None
    assert checkpoints.step_of(last) == 2
    assert [row["step"] for row in metrics(tmp_path / "x")] == [0, 1, 2]


def test_a_run_whose_first_step_fails_has_nothing_to_keep(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="step 1: no group is complete"):
        trained(
            tmp_path,
            f"rollout.agent={FRAGILE}:AlwaysLost",
            f"task.name={HERE}/letters.py:nothing_held_out",
            "run.name=x",
        )
    assert checkpoints.latest(tmp_path / "x/checkpoints") is None


def test_groups_without_variance_are_sampled_again_up_to_the_limit(build: Build) -> None:
    trainer = build("algorithm=dapo", "update.minibatches=1", "algorithm.selection.max_rounds=3")
    sampled = trainer.sample(1)
    rounds = Counter(int(group.split(".")[1]) for group in {t.group for t in sampled.attempts})
    assert rounds == dict.fromkeys(range(sampled.rounds), 4), "whole rounds of rollout.prompts groups"
    assert sampled.rounds == 3, "at the start most groups are all wrong"
    assert 0 < len(sampled.groups) < 4
    assert all(selection.has_signal(group.rewards) for group in sampled.groups)
    assert sampled.flat == 12 - len(sampled.groups)


def test_length_penalties_alone_do_not_count_as_signal(build: Build) -> None:
    longer = ("algorithm=dapo", "update.minibatches=1", "rollout.max_tokens=8")
    penalised = build(*longer, "reward.overlong_buffer=0.9", f"reward.function={FRAGILE}:constant").sample(1)
    assert len({t.reward for t in penalised.attempts}) > 2
    assert (len(penalised.groups), penalised.flat) == (0, 16)
    scored = (f"reward.function={FRAGILE}:longer_is_better", "reward.overlong_buffer=0")
    assert not build(*longer, *scored).sample(1).groups, "where a scorer says what is right, that is asked"
    assert build(*longer, *scored, "algorithm.selection.dynamic_sampling=reward").sample(1).groups


def test_right_is_what_the_scorer_says_and_not_what_shaping_left_of_it() -> None:
    def attempt(reward: float, **parts: float) -> Trajectory:
        return Trajectory(Task("t", []), "g", reward=reward, reward_parts=parts)

    assert is_right(attempt(-0.2, acc=1.0, overlong=-1.2)), "solved, and too long"
    assert not is_right(attempt(0.1, acc=0.0, format=1.0)), "a bonus for its form"
    assert is_right(attempt(0.5)), "without an accuracy the reward tells"
    assert is_right(attempt(-0.5, overlong=-1.0))
    assert not is_right(attempt(0.0))


def test_no_more_groups_are_kept_than_were_wanted(build: Build) -> None:
    """The last round may bring more than are missing."""
    own = (f"reward.function={FRAGILE}:variety", "rollout.prompts=6", "rollout.samples=2")
    trainer = build("algorithm=dapo", "update.minibatches=1", "rollout.max_tokens=1", *own)
    for step in range(1, 9):
        sampled = trainer.sample(step)
        if 6 * sampled.rounds - sampled.flat > 6:
            break
    else:
        pytest.fail("no round brought more than was missing")
    assert sizes(sampled) == [2] * 6


def test_a_step_without_anything_to_learn_from_updates_nothing_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = ("algorithm=dapo", "update.minibatches=1", f"reward.function={FRAGILE}:constant")
    run = trained(tmp_path, *own, "train.steps=1")
    said = "step 1: no update: not one of 16 groups in 4 rounds had attempts that differ"
    assert said in capsys.readouterr().out
    row = metrics(run)[-1]
    assert (row["groups/kept"], row["groups/flat"], row["groups/rounds"]) == (0, 16, 4)
    assert "policy/loss" not in row
    state, tensors = checkpoints.load(run / "checkpoints/step_1")
    assert state["step"] == 1
    assert tensors["policy"]["optimizer"]["updates"] == 0


def test_resample_on_correct_keeps_as_many_as_were_wanted_of_twice_as_many(tmp_path: Path) -> None:
    run = trained(tmp_path, "algorithm=grpo_roc", "rollout.prompts=8", task="riddles")
    for row in metrics(run)[1:]:
        assert len(rollouts(run)[row["step"]]) == 8 * 4 * 2, "all of them are in the run folder"
        assert row["groups/kept"] == 8


def test_resample_on_correct_prefers_clean_attempts_among_the_right_ones(build: Build) -> None:
    trainer = build("algorithm=grpo_roc", "rollout.prompts=32", "rollout.samples=8", task="riddles")
    sampled = trainer.sample(1)
    assert sizes(sampled) == [8] * 32

    def clumsy(attempts: list[Trajectory]) -> float:
        asked = [t for t in attempts if t.counts["tool_calls"] and t.reward]
        return sum(t.counts["tool_errors"] for t in asked) / len(asked)

    assert clumsy(sampled.trajectories) < clumsy(sampled.attempts)


@pytest.mark.parametrize("scorer", ["digits_at_a_cost", "digits_with_a_bonus"])
def test_resample_on_correct_asks_accuracy_and_not_the_reward(scorer: str, build: Build) -> None:
    """Of rewards that are all below or all above 0, as many of the right and of the wrong are kept."""
    own = ("algorithm=grpo_roc", "rollout.prompts=16", f"reward.function={FRAGILE}:{scorer}")
    sampled = build(*own).sample(1)

    def wrong(attempts: list[Trajectory]) -> int:
        return sum(t.reward_parts["acc"] == 0 for t in attempts)

    mixed = 0
    for group in sampled.groups:
        among = wrong([t for t in sampled.attempts if t.group == group.trajectories[0].group])
        if 2 <= among <= 6:
            assert wrong(group.trajectories) == among // 2
            mixed += 1
    assert mixed > 5


def test_remax_measures_against_a_greedy_attempt_that_was_really_sampled(build: Build) -> None:
    trainer = build("algorithm=remax", "rollout.prompts=8")
    sampled = trainer.sample(1)
    assert [t.group for t in sampled.greedy] == [group.trajectories[0].group for group in sampled.groups]
    assert sampled.baselines == {t.group: [t.reward, t.reward] for t in sampled.greedy}
    decoder = trainer.learner.policy.decoder
    for attempt in sampled.greedy:
        attend = PackedAttention([len(attempt.tokens)], torch.device("cpu"))
        with torch.no_grad():
            logits = decoder.head(decoder.hidden(torch.tensor(attempt.tokens), attend.positions, attend))
        likeliest = logits.argmax(-1).tolist()
        for place, was_sampled in enumerate(attempt.mask):
            assert not was_sampled or attempt.tokens[place] == likeliest[place - 1]
    batch, _ = trainer.learner.credit.assign(
        sampled.trajectories, exact=True, baselines=sampled.baselines, kl_coef=0.0
    )
    given = batch.padded("advantages")[:, -1]
    expected = [(t.reward or 0.0) - sampled.baselines[t.group][0] for t in sampled.trajectories]
    assert given.tolist() == pytest.approx(expected)


def test_a_greedy_attempt_that_fails_drops_its_group_and_is_reported(build: Build) -> None:
    trainer = build("algorithm=remax", "rollout.prompts=16", f"reward.function={FRAGILE}:moody")
    sampled = trainer.sample(1)
    for trajectory in sampled.greedy:
        assert (trajectory.failure is None) == (trajectory.group in sampled.baselines)
    assert all(group.trajectories[0].group in sampled.baselines for group in sampled.groups)
    failed = [t for t in [*sampled.attempts, *sampled.greedy] if t.failure is not None]
    assert sampled.failed == len(failed) == len(sampled.failures)


def test_long_answers_cost_in_proportion(build: Build) -> None:
    """DAPO: from a part of the limit on, down to the whole penalty at the limit."""
    trainer = build(
        "algorithm=dapo",
        "update.minibatches=1",
        "rollout.max_tokens=8",
        "reward.overlong_buffer=0.5",
        "reward.overlong_penalty=0.7",
    )
    sampled = trainer.sample(1)
    lengths = set()
    for t in sampled.attempts:
        penalty = -0.7 * min(max((t.sampled_tokens - 4) / 4, 0.0), 1.0)
        assert t.reward_parts["overlong"] == pytest.approx(penalty)
        letters = [said == meant for said, meant in zip(t.response, t.task.ground_truth, strict=False)]
        assert t.reward == pytest.approx(sum(letters) / 2 + penalty)
        lengths.add(t.sampled_tokens)
    assert min(lengths) < 4 < max(lengths) == 8


def test_truncated_attempts_are_kept_penalised_or_masked(build: Build) -> None:
    """By name. A masked one counts in its group's baseline, and has no gradient."""

    def sampled(rule: str) -> tuple[TrainingLoop, SampledStep]:
        trainer = build(f"reward.truncated={rule}", "rollout.max_tokens=8", "rollout.prompts=8")
        return trainer, trainer.sample(1)

    _, kept = sampled("keep")
    masking, masked = sampled("mask")
    assert [t.reward for t in kept.attempts] == [t.reward for t in masked.attempts]
    assert 0 < sum(t.cut for t in kept.attempts) < len(kept.attempts)
    _, penalised = sampled("penalise")
    for plain, shaped in zip(kept.attempts, penalised.attempts, strict=True):
        assert shaped.reward == (plain.reward or 0.0) - plain.cut

    judged, _ = masking.learner.credit.assign(masked.trajectories, exact=True, baselines={}, kl_coef=0.0)
    whole = [row for row, t in enumerate(masked.trajectories) if not t.cut]
    expected = copy.deepcopy(masking.learner.policy)
    expected.update(judged.select(whole), masking.learner.objective)
    masking.learn(masked, 1)
    for found, wanted in zip(
        masking.learner.policy.decoder.parameters(), expected.decoder.parameters(), strict=True
    ):
        assert torch.equal(found, wanted)


def test_a_step_of_truncated_attempts_alone_changes_nothing_if_they_are_masked(
    tmp_path: Path, build: Build
) -> None:
    trainer = build("reward.truncated=mask")
    before = copy.deepcopy(trainer.learner.policy.decoder.state_dict())
    sampled = trainer.sample(1)
    for t in sampled.trajectories:
        t.stop = "length"
    assert "policy/loss" not in trainer.learn(sampled, 1)
    after = trainer.learner.policy.decoder.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    words = (f"rollout.agent={FRAGILE}:Endless", "reward.truncated=mask", "train.steps=1")
    assert metrics(trained(tmp_path, *words))[-1]["response/truncated"] == 1.0


@pytest.mark.parametrize("limit", ["model.context=12", "rollout.max_total_tokens=12", "rollout.max_tokens=9"])
def test_the_limit_of_length_is_what_the_attempt_could_have_reached(build: Build, limit: str) -> None:
    """By tokens of a turn, of the attempt, and of the context, whichever ends first."""
    longer = ("rollout.max_tokens=11", "reward.overlong_buffer=0.5")
    trainer = build(*{word.split("=")[0]: word for word in (*longer, limit)}.values(), "rollout.prompts=8")
    attempts = trainer.sample(1).attempts
    most = 9 if limit.startswith("rollout.max_tokens") else 12 - attempts[0].given_tokens
    buffer = round(most / 2)
    assert max(t.sampled_tokens for t in attempts) == most
    for t in attempts:
        penalty = -min(max((t.sampled_tokens - most + buffer) / buffer, 0.0), 1.0)
        assert t.reward_parts["overlong"] == pytest.approx(penalty)


def test_attempts_of_a_step_have_seeds_of_their_own_and_the_same_in_every_run(build: Build) -> None:
    first, second = build().sample(1), build().sample(1)
    assert [t.tokens for t in first.attempts] == [t.tokens for t in second.attempts]
    assert len({t.seed for t in first.attempts}) == len(first.attempts)
    other_step = build().sample(2)
    assert {t.seed for t in first.attempts}.isdisjoint(t.seed for t in other_step.attempts)


def test_an_epoch_takes_every_task_once(build: Build) -> None:
    trainer = build("task.train_size=12")
    taken = [t.task.id for step in (1, 2, 3) for t in trainer.sample(step).attempts if t.index == 0]
    assert len(taken) == len(set(taken)) == 12


def test_batch_size_is_prompts_times_samples(build: Build) -> None:
    config = configured()
    assert len(build().sample(1).trajectories) == config.rollout.prompts * config.rollout.samples
