"""The same numbers on a GPU as on the CPU, from inputs that live where the learner lives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from toolwright.algorithms import advantages, correction, losses

from .oracle import load

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
BATCH = load()[0]
ESTIMATED = {case["estimator"]: case for case in BATCH["advantages"]} | {
    "gigpo": {**BATCH["gigpo"][0], "estimator": "gigpo"}
}
LOSS = {key: value for key, value in BATCH["losses"][0]["inputs"].items() if value is not None}


def on(device: str, inputs: dict[str, Any]) -> dict[str, Any]:
    return {key: value.to(device) if isinstance(value, Tensor) else value for key, value in inputs.items()}


@pytest.mark.parametrize("name", ESTIMATED)
def test_advantages(name: str) -> None:
    case = ESTIMATED[name]
    inputs = {("group" if key == "index" else key): value for key, value in case["inputs"].items()}
    expected = advantages.compute(name, **inputs, **case["params"])
    ours = advantages.compute(name, **on("cuda", inputs), **case["params"])
    for there, here in zip(ours, expected, strict=True):
        assert there.is_cuda
        torch.testing.assert_close(there.cpu(), here)


@pytest.mark.parametrize("name", losses.names())
def test_losses_and_their_preparation(name: str) -> None:
    expected, _ = losses.compute(name, **LOSS)
    inputs = on("cuda", LOSS)
    prepared: dict[str, Any] = losses.prepare(name, **inputs)
    ours, metrics = losses.compute(name, **inputs, **prepared)
    torch.testing.assert_close(ours.cpu(), expected)
    assert all(value.is_cuda for value in (*metrics.values(), *prepared.values()))


def test_correction() -> None:
    inputs = {
        "old_log_prob": LOSS["old_log_prob"],
        "sampled_log_prob": LOSS["log_prob"],
        "mask": LOSS["mask"],
    }
    expected, _ = correction.compute(**inputs, level="sequence")
    ours, _ = correction.compute(**on("cuda", inputs), level="sequence")
    torch.testing.assert_close(ours.cpu(), expected)
