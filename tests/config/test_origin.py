"""Every value knows who stated it, and the shown configuration says so."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from toolwright.config.compose import Source, resolve
from toolwright.config.origin import ResolvedConfig
from toolwright.config.show import show

Write = Callable[[str, str], Path]


def resolved(*words: str, **source: Any) -> ResolvedConfig:
    return resolve(Source(**source), words)


def test_the_four_origins(write: Write) -> None:
    write("conf/mine.yaml", "defaults: [train, _self_]\nrollout: {prompts: 4}\n")
    made = resolved("model=small", "run.seed=3", config_dir="conf", config_name="mine")
    assert made.origin("checkpoint.keep") == "default"
    assert made.origin("model.layers") == "preset model/small"
    assert made.origin("rollout.prompts") == "file conf/mine.yaml"
    assert made.origin("run.seed") == "command line"


def test_the_last_to_state_a_value_is_its_origin(write: Write) -> None:
    write("conf/mine.yaml", "defaults: [train, override model: small, _self_]\nmodel: {layers: 1}\n")
    made = resolved("model.width=64", config_dir="conf", config_name="mine")
    origins = [made.origin(f"model.{key}") for key in ("ffn", "layers", "width")]
    assert origins == ["preset model/small", "file conf/mine.yaml", "command line"]


def test_keys_of_an_open_dictionary_have_origins_of_their_own(write: Write) -> None:
    write("conf/task/mine.yaml", "params: {terms: 2, low: 0}\n")
    made = resolved("task=mine", "task.params.terms=3", config_dir="conf")
    assert made.origin("task.params.low") == "file conf/task/mine.yaml"
    assert made.origin("task.params.terms") == "command line"


def test_a_block_given_whole_is_from_the_command_line_where_it_speaks() -> None:
    made = resolved("checkpoint={keep: 3}")
    assert (made.origin("checkpoint.keep"), made.origin("checkpoint.every")) == ("command line", "default")


def test_a_removed_value_is_a_default_again() -> None:
    assert resolved("model=small", "~model.layers").origin("model.layers") == "default"


def test_plain_output_is_yaml_that_reads_back(capsys: pytest.CaptureFixture[str]) -> None:
    made = resolved("rollout.stop=['a: b', '#', '</a>']", "run.name=yes", "task.params.deep.er=[1,x]")
    show(made, explain=True)
    printed = capsys.readouterr().out
    assert yaml.safe_load(printed) == made.config.model_dump(mode="json")
    assert "\x1b[" not in printed
    assert "# 16 prompts × 8 samples = 128 trajectories a step" in printed


def test_each_line_shows_the_origin_and_explaining_adds_what_the_key_is_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show(resolved("rollout.samples=4"), explain=True)
    lines = capsys.readouterr().out.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("  samples: 4"))
    assert lines[at].endswith("# command line")
    assert lines[at + 1].strip() == "# attempts at each task (a positive integer)"


def test_json_has_value_and_origin_of_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    show(resolved("run.seed=3"), as_json=True)
    assert json.loads(capsys.readouterr().out)["run.seed"] == {"value": 3, "origin": "command line"}
