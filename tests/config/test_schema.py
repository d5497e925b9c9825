"""The schema: how large it may grow, and what it refuses however it is filled."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pydantic import ValidationError

from toolwright.config.keys import every_key, find, leaves
from toolwright.config.schema import Config, RewardModelConfig, RolloutConfig, RunConfig, SupervisedConfig
from toolwright.workflow.config import WorkflowConfig


@pytest.mark.parametrize("schema", [Config, SupervisedConfig, RewardModelConfig, WorkflowConfig])
def test_fewer_than_150_leaves(schema: type) -> None:
    assert len(leaves(schema)) < 150


def test_configuration_imports_without_torch() -> None:
    script = (
        "import sys, toolwright.config, toolwright.config.launch, toolwright.cli, pkgutil\n"
        "from toolwright.config.compose import Source, resolve\n"
        "resolve(Source('train')); resolve(Source('sft')); resolve(Source('workflow'))\n"
        "import toolwright.cli.train, toolwright.cli.sft, toolwright.cli.eval, toolwright.cli.config\n"
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0


def test_every_key_can_say_what_it_takes() -> None:
    for key in every_key(Config):
        assert key.expected
        assert find(Config, key.path) == key


@pytest.mark.parametrize("value", [True, "many", 0, 1.5, None, float("inf"), [4]])
def test_a_number_of_samples_is_a_positive_integer(value: object) -> None:
    with pytest.raises(ValidationError):
        RolloutConfig(samples=value)  # type: ignore[arg-type]


def test_a_number_is_good_text() -> None:
    assert RunConfig(name=2024).name == "2024"  # type: ignore[arg-type]


def test_a_configuration_cannot_be_changed_once_made() -> None:
    with pytest.raises(ValidationError):
        Config().rollout.samples = 3  # type: ignore[misc]
