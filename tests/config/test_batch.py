"""The one line that says what a batch is."""

from __future__ import annotations

from typing import Any

import pytest

from toolwright.config import Config, batch_line
from toolwright.config.batch import ranks_line


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
                "algorithm": {"selection": {"oversample": 2}},
            },
            "8 samples (kept of 16) = ",
        ),
    ],
)
def test_the_batch_line_has_singulars_uneven_splits_and_dropped_attempts(
    blocks: dict[str, Any], part: str
) -> None:
    assert part in line(**blocks)


@pytest.mark.parametrize(
    ("ranks", "wanted"),
    [
        (1, ""),
        (3, "the policy over 3 ranks, which divide sequences among 3"),
        (
            {"sequence": 2, "tensor": 4},
            "the policy over 8 ranks, which divide the tokens of a pass among 2, matrices among 4",
        ),
    ],
)
def test_the_line_of_ranks_says_what_they_divide(ranks: object, wanted: str) -> None:
    block = {"name": "ray", "placement": {"policy": {"ranks": ranks}}}
    assert ranks_line(Config.model_validate({"runtime": block}).runtime) == wanted
