"""Presets: each names registered functions, sets arguments they take, and is a valid configuration."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import toolwright.config
from toolwright.algorithms import advantages, aggregate, kl, losses, preferences
from toolwright.config.schema import Config

FOLDER = Path(inspect.getfile(toolwright.config)).parent / "presets" / "algorithm"
PRESETS = {file.stem: file for file in sorted(FOLDER.glob("*.yaml"))}
DOCS = Path(__file__).parents[2] / "docs" / "algorithms.md"
NAMED = """ppo grpo dr_grpo rloo remax reinforce_plus_plus reinforce_plus_plus_baseline dapo gspo gmpo cispo
    sapo opo gpg gigpo grpo_roc sppo kl_cov clip_cov luspo vespo adaptive_entropy top_entropy vapo gdpo
    dpo kto orpo distill hgpo dppo prime unbiased_kl geo_rs curriculum replay"""


def read(name: str) -> dict[str, Any]:
    return yaml.safe_load(PRESETS[name].read_text())


def method_files() -> list[Path]:
    rooms = [Path(inspect.getfile(room)).parent for room in (advantages, losses, preferences)]
    return [file for room in rooms for file in sorted(room.glob("*.py")) if file.name != "__init__.py"]


@pytest.mark.parametrize("file", method_files(), ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_a_method_is_one_file_of_at_most_fifty_lines_with_its_paper(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 50
    assert "arXiv" in text.split('"""')[1]


def test_every_algorithm_has_its_preset() -> None:
    assert set(NAMED.split()) <= set(PRESETS)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_speaks_to_the_whole_configuration_and_says_where_it_is_from(name: str) -> None:
    lines = PRESETS[name].read_text().splitlines()
    assert lines[0] == "# @package _global_"
    assert "arXiv" in lines[1]


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_a_valid_configuration_of_that_name(name: str) -> None:
    config = Config.model_validate(read(name))
    assert config.algorithm.name == name


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_names_what_is_registered_and_arguments_it_takes(name: str) -> None:
    algorithm = Config.model_validate(read(name)).algorithm
    assert algorithm.aggregate in aggregate.names()
    assert algorithm.kl.estimator in kl.names()
    taken = {
        algorithm.adv_estimator: advantages.registry.get(algorithm.adv_estimator).parameters,
    }
    found = losses.registry if algorithm.preference is None else preferences.registry
    taken[algorithm.loss] = found.get(algorithm.loss).parameters
    if algorithm.preference is None and losses.prepares(algorithm.loss):
        taken[algorithm.loss] = {*taken[algorithm.loss], *losses.preparations.get(algorithm.loss).parameters}
    for function, params in algorithm.params.items():
        assert set(params) <= set(taken[function])


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_sets_neither_sizes_nor_learning_rates(name: str) -> None:
    stated = read(name)
    assert set(stated) <= {"algorithm", "reward", "update", "task"}
    assert set(stated.get("update", {})) <= {"epochs", "minibatches"}
    assert set(stated.get("task", {})) <= {"order"}


def test_the_estimator_that_the_docs_add_works(tmp_path: Path) -> None:
    code = DOCS.read_text().split("## Adding an algorithm")[1].split("```python\n")[1].split("```")[0]
    file = tmp_path / "median.py"
    file.write_text(code)
    try:
        rewards, mask = torch.tensor([[0.0], [1.0], [3.0]]), torch.ones(3, 1)
        name = f"{file}:median"
        ours, _ = advantages.compute(name, rewards=rewards, mask=mask, group=["a"] * 3, scale=0.5)
        assert ours.flatten().tolist() == [-0.5, 0.0, 1.0]
        assert "median" in advantages.names()
    finally:
        advantages.registry._entries.pop("median", None)


def test_the_docs_tell_of_every_name_and_every_preset() -> None:
    text = DOCS.read_text()
    for name in (*advantages.names(), *losses.names(), *aggregate.names(), *preferences.names(), *PRESETS):
        assert f"`{name}`" in text, name
