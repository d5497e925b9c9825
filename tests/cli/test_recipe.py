"""Recipes: a cold start and the training after it, from one command line."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from toolwright.cli import main
from toolwright.cli.recipe import recipes

FILES = ("model.path=somewhere", "task.train=train.parquet", "task.held_out=test.parquet")


def commands(capsys: pytest.CaptureFixture[str], *words: str) -> list[list[str]]:
    assert main(["recipe", "gsm8k_python", "--dry-run", *FILES, *words]) == 0
    return [shlex.split(line) for line in capsys.readouterr().out.splitlines()]


def test_a_recipe_is_two_commands_the_second_from_the_weights_of_the_first(
    capsys: pytest.CaptureFixture[str],
) -> None:
    start, train = commands(capsys, "run.dir=out", "run.name=mine")
    assert start[:4] == ["toolwright", "sft", "--config-name", "gsm8k_python_start"]
    assert train[:4] == ["toolwright", "train", "--config-name", "gsm8k_python"]
    assert {"model.path=somewhere", "run.name=mine_start", "task.train=train.parquet"} <= set(start)
    assert {"model.path=out/mine_start/model", "run.name=mine", "task.train=train.parquet"} <= set(train)
    assert "model.path=somewhere" not in train


def test_a_setting_goes_to_those_that_have_it(capsys: pytest.CaptureFixture[str]) -> None:
    start, train = commands(
        capsys, "rollout.samples=4", "start.rollout.samples=2", "train.steps=9", "steps=3", "algorithm=dapo"
    )
    assert {"rollout.samples=2", "steps=3"} <= set(start)
    assert {"rollout.samples=4", "train.steps=9", "algorithm=dapo"} <= set(train)
    assert not {"rollout.samples=4", "train.steps=9", "algorithm=dapo"} & set(start)
    assert not {"rollout.samples=2", "steps=3"} & set(train)


@pytest.mark.parametrize(("step", "resumes"), [(2, True), (5, False)])
def test_a_cold_start_that_was_stopped_is_resumed(
    step: int, resumes: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "mine_start"
    run.mkdir()
    (run / "config.yaml").write_text("demonstrations: sampled\nsteps: 5\n")
    (run / "metrics.jsonl").write_text(f'{{"step": {step}}}\n')
    start, train = commands(capsys, f"run.dir={tmp_path}", "run.name=mine")
    assert ("run.resume=true" in start) is resumes
    assert "run.resume=true" not in train


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["gsm8k_pyton"], "unknown recipe 'gsm8k_pyton'; did you mean 'gsm8k_python'?"),
        (["gsm8k_python", "foo.bar=1"], "foo.bar=1: unknown key"),
        (["gsm8k_python", "start.foo=1"], "foo=1: unknown key"),
        (["gsm8k_python", "train.steps=many"], "train.steps"),
    ],
)
def test_a_mistake_is_reported_before_anything_runs(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["recipe", *words, f"run.dir={tmp_path}"]) == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_recipes_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipe"]) == 0
    assert "Recipes: gsm8k_python" in capsys.readouterr().out
    assert "gsm8k_python" in recipes()


@pytest.mark.parametrize("name", recipes())
def test_both_halves_ask_in_the_same_words_and_write_calls_in_the_same_way(name: str) -> None:
    import toolwright

    start = toolwright.config("sft", "--config-name", f"{name}_start")
    train = toolwright.config("train", "--config-name", name)
    assert start.task.params == train.task.params
    for key in ("call_format", "call_params", "tool_prompt", "max_tokens", "max_turns", "tool_tokens"):
        assert getattr(start.rollout, key) == getattr(train.rollout, key), key
    assert start.tools == train.tools
