"""Command lines of every family: none crashes, and each key is in one of the four lists."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.verl.conftest import BARE
from toolwright.config.compose import Source, resolve
from toolwright.tasks import TASKS
from toolwright.verl import overrides
from toolwright.verl.command import VerlParser, config_file, main, main_module
from toolwright.verl.named_configs import config_of_module
from toolwright.verl.translate import translate
from toolwright.verl.translation import Translation

LINES: dict[str, dict[str, Any]] = yaml.safe_load(
    Path(__file__).with_name("command_lines.yaml").read_text(encoding="utf-8")
)


def translated(name: str, *more: str, fit: bool = True) -> Translation:
    line = LINES[name]
    args = VerlParser().parse_intermixed_args([*line["words"].split(), *more])
    config = config_file(args.config_path, args.config_name or config_of_module(line["module"]))
    return translate(args.words, machine=BARE, fit=fit, config=config, files_may_miss=True)


@pytest.mark.parametrize("name", LINES)
def test_a_line_is_accepted_with_fit(name: str) -> None:
    translation = translated(name)
    assert translation.problems == []
    found = {setting.ours: setting.value for setting in translation.settings}
    assert {key: found.get(key) for key in LINES[name]["becomes"]} == LINES[name]["becomes"]


@pytest.mark.parametrize("name", LINES)
def test_what_a_line_becomes_is_a_configuration_of_ours(name: str) -> None:
    translation = translated(name)
    config = resolve(Source(translation.command), translation.words).config
    assert set(config.task.params) <= set(inspect.signature(TASKS.get(config.task.name).target).parameters)


@pytest.mark.parametrize("name", LINES)
def test_every_key_is_in_one_of_the_four_lists(name: str) -> None:
    shown = translated(name).describe()
    typed = [word for word in LINES[name]["words"].split() if not word.startswith("-")]
    assert [key for key in overrides.parse(typed).values if key not in shown] == []


@pytest.mark.parametrize("word", ["actor_rollout_ref.model.exclude_modules=[lm_head]", "nobodys.key=1"])
def test_a_refused_key_is_in_its_list(word: str) -> None:
    refused = translated("DAPO", word).describe().partition("Refused:\n")[2]
    assert refused.startswith(f"  {word.partition('=')[0]}")


def test_what_is_only_near_is_an_error_without_fit() -> None:
    problems = translated("verl-agent, a shop", fit=False).problems
    assert any("a shop of its own" in text and "--fit accepts that" in text for text in problems)


def test_show_needs_no_files_and_names_those_that_are_missing(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["data.train_files=gone.parquet", "actor_rollout_ref.model.path=./gone-model"]
    assert main([*words, "--show", "--fit"]) == 0
    shown = capsys.readouterr().out
    assert "gone.parquet" in shown.partition("Files that are not here:")[2]
    assert main([*words, "--fit"]) == 2


def test_a_tools_file_that_is_here_is_read_by_show(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tools.yaml"
    file.write_text("tools:\n  - class_name: somebodys.Tool\n")
    multi = "actor_rollout_ref.rollout.multi_turn"
    words = ["data.train_files=x.parquet", "actor_rollout_ref.model.path=m", f"{multi}.enable=True"]
    assert main([*words, f"{multi}.tool_config_path={file}", "--show", "--fit"]) == 2
    assert "somebodys.Tool" in capsys.readouterr().err


def test_a_module_is_known_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    line = LINES["SPPO"]
    assert main_module([line["module"], *line["words"].split(), "--show", "--fit"]) == 0
    assert "algorithm.loss=sppo" in capsys.readouterr().out
    assert main_module(["recipe.spin.main_spin", "--show"]) == 2
    assert "SPIN is DPO on pairs of its own samples" in capsys.readouterr().err
    assert main_module(["verl.trainer.main_pppo"]) == 2
    assert "did you mean" in capsys.readouterr().err


def test_an_unknown_module_runs_nearly_with_fit(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["data.train_files=x.parquet", "actor_rollout_ref.model.path=m", "--show"]
    assert main_module(["somebodys.recipe.main_own", *words, "--fit"]) == 0
    assert "unknown module" in capsys.readouterr().out
    assert main_module(["somebodys.recipe.main_own", *words]) == 2


@pytest.mark.parametrize("module", ["recipe.flowrl.main_flowrl", "gvpo.gvpo_main_ppo", "recipe.vla.main_ppo"])
def test_a_recipe_with_a_loss_of_its_own_is_refused(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["data.train_files=x.parquet", "actor_rollout_ref.model.path=m", "--show", "--fit"]
    assert main_module([module, *words]) == 2
    assert module in capsys.readouterr().err


def test_a_file_of_loops_may_name_those_of_verl(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "agents.yaml"
    file.write_text("- name: mine\n  _target_: verl.experimental.agent_loop.tool_agent_loop.ToolAgentLoop\n")
    agent = "actor_rollout_ref.rollout.agent"
    words = ["data.train_files=x.parquet", "actor_rollout_ref.model.path=m", "--show", "--fit"]
    words += [f"{agent}.agent_loop_config_path={file}", f"{agent}.default_agent_loop=mine"]
    assert main([*words]) == 0
    assert "rollout.agent=tool_use" in capsys.readouterr().out
    file.write_text("- name: mine\n  _target_: own.loops.ReactLoop\n")
    assert main([*words]) == 2
    assert "rollout.agent=path.py:name" in capsys.readouterr().err
