"""The one line that says what a batch is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from toolwright.config import Config, batch_line
from toolwright.config.batch import rate_line
from toolwright.config.schema import SupervisedConfig


def line(**blocks: Any) -> str:
    return batch_line(Config.model_validate(blocks))


def test_the_arithmetic_of_a_step() -> None:
    step = (
        "16 prompts × 8 samples = 128 trajectories a step → 2 epochs × 4 minibatches of 32 → 8 updates a step"
    )
    rollout, update = {"prompts": 16, "samples": 8}, {"epochs": 2, "minibatches": 4}
    assert line(rollout=rollout, update=update) == step
    asked = {**update, "micro_tokens": 16_384}
    assert line(rollout=rollout, update=asked) == f"{step}; micro-batches of ≤ 16,384 tokens"


@pytest.mark.parametrize(
    ("blocks", "part"),
    [
        ({"rollout": {"prompts": 1, "samples": 1}}, "1 prompt × 1 sample = 1 trajectory a step → 1 epoch × "),
        ({"rollout": {"prompts": 5, "samples": 2}, "update": {"minibatches": 4}}, "4 minibatches of ≤ 3 → "),
        (
            {
                "rollout": {"samples": 8},
                "algorithm": {"selection": {"resample_on_correct": True, "oversample": 2}},
            },
            "8 samples (kept of 16) = ",
        ),
    ],
)
def test_the_batch_line_has_singulars_uneven_splits_and_dropped_attempts(
    blocks: dict[str, Any], part: str
) -> None:
    assert part in line(**blocks)


def test_a_learning_rate_that_ruins_a_trained_model_is_warned_of(tmp_path: Path) -> None:
    def told(parameters: int, **blocks: Any) -> str | None:
        return rate_line(Config.model_validate(blocks), parameters)

    trained = {"path": "models/smollm2-135m"}
    said = told(135_000_000, model=trained)
    assert said is not None
    assert said.startswith("update.policy.lr=0.0001 is far above what a trained model of 135M")
    assert told(135_000_000, model=trained, update={"policy": {"lr": 2e-5}}) is None
    assert told(135_000_000, model={**trained, "lora": {"rank": 16}}) is None
    (tmp_path / "adapter_config.json").touch()
    assert told(135_000_000, model={"path": str(tmp_path)}) is None, "an adapter that knows its base"
    assert told(300_000, model=trained) is None, "a small one learns fast"
    assert told(135_000_000) is None, "from random weights"


def test_a_warm_start_warns_of_a_high_learning_rate_too() -> None:
    warm = SupervisedConfig.model_validate({"model": {"path": "models/smollm2-135m"}})
    said = rate_line(warm, 135_000_000)
    assert said is not None
    assert said.startswith(
        "optimizer.lr=0.003 is far above what a trained model of 135M parameters survives; "
    )
    gentle = warm.model_copy(update={"optimizer": warm.optimizer.model_copy(update={"lr": 2e-5})})
    assert rate_line(gentle, 135_000_000) is None
