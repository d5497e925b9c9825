"""A stored step taken again: the run's own numbers where nothing changes, others where something does."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from toolwright.cli import main

from .runs import metrics, rollouts, token_values, trained

LONGER = """
def score(solution_str, ground_truth):
    "The other way round."
    return 1.0 - sum(a == b for a, b in zip(solution_str, ground_truth)) / len(ground_truth)


def broken(solution_str):
    raise ValueError("no idea")
"""
# What an update may depend on besides weights and attempts: moments, coefficients, minibatches, a reference.
SETTINGS = {
    "grpo": ("algorithm=grpo", "algorithm.kl.where=loss", "update.policy.warmup_steps=2"),
    "ppo": ("algorithm=ppo", "algorithm.kl.target=0.01", "update.minibatches=2", "update.epochs=2"),
    "dapo": ("algorithm=dapo", "update.minibatches=2", "rollout.max_tokens=8", "reward.truncated=mask"),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("replayed")
    for name, own in SETTINGS.items():
        trained(folder, "train.steps=3", "checkpoint.every=1", "checkpoint.keep=9", f"run.name={name}", *own)
    (folder / "rewards.py").write_text(LONGER)
    return folder


def replayed(capsys: pytest.CaptureFixture[str], run: Path, *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["replay", str(run), "--json", *words]) == 0, capsys.readouterr().err
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("name", SETTINGS)
def test_the_runs_own_update_again_gives_what_it_recorded(
    name: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = replayed(capsys, runs / name, "--step", "2", "--update")
    assert found["notes"] == ["computed from the checkpoint of step 1"]
    update, row = found["update"], metrics(runs / name)[2]
    assert update["own"] == update["replayed"]
    assert update["recorded"]["policy/loss"] == row["policy/loss"]
    shared = update["recorded"].keys() & update["own"].keys()
    assert {"policy/loss", "policy/grad_norm", "policy/entropy"} <= shared
    assert {key: update["own"][key] for key in shared} == {key: row[key] for key in shared}
    assert update["own"]["log_prob/change_abs"] > 0
    assert not any(one["rewarded"] or one["turned"] or one["selected"] for one in found["attempts"])
    for one, values in zip(found["attempts"], token_values(runs / name)[2], strict=True):
        assert (one["new_advantage"] is not None) == values.learned


def test_the_first_step_is_taken_from_the_weights_the_run_began_with(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = replayed(capsys, runs / "grpo", "--step", "1", "--update")
    assert found["notes"] == ["computed from the weights that the run began with"]
    assert found["update"]["own"]["policy/loss"] == metrics(runs / "grpo")[1]["policy/loss"]


def test_another_reward_changes_rewards_and_turns_advantages_round(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = replayed(capsys, runs / "grpo", "--step", "3", f"reward.function={runs}/rewards.py:score")
    stored = rollouts(runs / "grpo")[3]
    assert [one["reward"] for one in found["attempts"]] == [t.reward for t in stored]
    assert [one["new_reward"] for one in found["attempts"]] == [1.0 - (t.reward or 0.0) for t in stored]
    for one in found["attempts"]:
        assert one["new_advantage"] == pytest.approx(-one["advantage"], abs=1e-4)
        assert one["turned"] == (abs(one["advantage"]) > 1e-3)
    assert any(one["turned"] for one in found["attempts"])
    assert found["update"] == {"recorded": found["update"]["recorded"], "own": {}, "replayed": {}}
    assert found["notes"] == [], "no model was needed"


def test_another_algorithm_takes_the_place_of_the_whole_block(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a run of PPO nothing is left in its advantages: no critic, no reference in the reward."""
    found = replayed(capsys, runs / "ppo", "--step", "2", "algorithm=dr_grpo", "--update")
    assert found["update"]["replayed"]["policy/loss"] != found["update"]["own"]["policy/loss"]
    assert "critic/loss" not in found["update"]["replayed"]
    stored = rollouts(runs / "ppo")[2]
    by_group: dict[str, list[float]] = {}
    for t in stored:
        by_group.setdefault(t.group, []).append(t.score or 0.0)
    for one, t in zip(found["attempts"], stored, strict=True):
        group = by_group[t.group]
        assert one["new_advantage"] == pytest.approx((t.score or 0.0) - sum(group) / len(group), abs=1e-5)


def test_selection_may_leave_out_what_was_learned_from(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = replayed(capsys, runs / "grpo", "--step", "1", "algorithm.selection.dynamic_sampling=true")
    flat = [one for one in found["attempts"] if one["new_advantage"] is None]
    assert all(one["advantage"] == 0 and one["selected"] for one in flat)
    assert flat


def test_a_step_whose_weights_are_gone_is_taken_from_the_nearest(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "grpo"
    shutil.copytree(runs / "grpo", run)
    for step in (1, 2):
        shutil.rmtree(run / f"checkpoints/step_{step}")
    found = replayed(capsys, run, "--step", "3", "--update")
    assert found["notes"] == ["computed from the checkpoint of step 3, as those after step 2 are not kept"]
    assert found["update"]["own"]["gap/abs_max"] > 0, "another policy than these weights sampled the attempts"


def test_a_critic_that_the_run_did_not_have_is_named(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = replayed(capsys, runs / "grpo", "--step", "2", "algorithm=ppo")
    assert "the run had no critic, so advantages come from one that has learned nothing" in found["notes"]


def test_a_scorer_that_raises_leaves_attempts_out(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = replayed(capsys, runs / "grpo", "--step", "2", f"reward.function={runs}/rewards.py:broken")
    assert all(one["new_reward"] is None and one["new_advantage"] is None for one in found["attempts"])


def test_the_table_shows_what_changes(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = [
        "replay",
        str(runs / "grpo"),
        "--step",
        "2",
        f"reward.function={runs}/rewards.py:score",
        "--update",
    ]
    assert main(line) == 0
    shown = capsys.readouterr().out
    assert "of 16 attempts have an advantage whose sign changes" in shown
    assert "the run's own, again" in shown
    assert "log_prob/change_abs" in shown


def test_nothing_of_the_run_is_changed(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = runs / "dapo"
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    replayed(capsys, run, "--step", "2", "algorithm=gspo", "--update")
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--step", "9"], "keeps no attempts of step 9; it keeps those of steps 1 to 3"),
        ([], "the following arguments are required: --step"),
        (["--step", "2", "rollout.samples=2"], "a replay does not sample"),
        (["--step", "2", "algorithm=gpro"], "unknown preset 'gpro'"),
        (["--step", "2", "algorithm.sampels=2"], "unknown key"),
        (["--step", "2", "algorithm=remax"], "needs a greedy attempt at each task"),
        (["--step", "2", "algorithm=dpo"], "learns from the data's own answers"),
        (["--step", "2", "reward.function=nowhere.py:score"], "nowhere.py"),
    ],
)
def test_mistakes_are_one_sentence(
    words: list[str], said: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(runs / "grpo"), *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_folder_that_is_no_run_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(tmp_path), "--step", "1"]) == 2
    assert "it is not a run folder" in capsys.readouterr().err
