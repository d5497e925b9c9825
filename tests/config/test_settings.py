"""What tests use in place of Hydra gives what Hydra gives."""

from __future__ import annotations

import pytest

from tests.settings import configure
from toolwright.config.compose import Source, resolve
from toolwright.failures import UserError


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["algorithm=dapo", "task=sums", "train.steps=3", "rollout.retry_pause_s=0.01"],
        ["algorithm=gigpo", "algorithm.params.gigpo.step_weight=0.5", "model.layers=1"],
        ["reward.parts={task: 1.0, length: 0.5}", "tools.python.timeout_s=3", "model.path=null"],
    ],
)
def test_a_tests_configuration_is_the_one_that_hydra_composes(words: list[str]) -> None:
    assert configure(words) == resolve(Source(), words).config


def test_a_tests_configuration_refuses_an_unknown_key() -> None:
    with pytest.raises(UserError, match=r"rollout\.sampels"):
        configure(["rollout.sampels=4"])
