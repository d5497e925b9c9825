"""Learning rates by size: tiny models learn fast, large ones are easily ruined."""

from __future__ import annotations

from itertools import pairwise

import pytest

from toolwright.config import rates


@pytest.mark.parametrize(
    ("learned", "parameters", "adapted", "rate"),
    [
        ("policy", 300_000, False, 1e-4),
        ("critic", 300_000, False, 3e-3),
        ("sft", 300_000, False, 3e-3),
        ("policy", 135_000_000, False, 5e-6),
        ("policy", 7_600_000_000, False, 1e-6),
        ("policy", 7_600_000_000, True, 2e-5),
        ("critic", 7_600_000_000, False, 1e-5),
        ("critic", 7_600_000_000, True, 1e-5),
        ("sft", 7_600_000_000, True, 1e-4),
    ],
)
def test_auto_learning_rates(learned: str, parameters: int, adapted: bool, rate: float) -> None:
    assert rates.usual(learned, parameters, adapted=adapted) == rate


def test_a_rate_never_grows_with_the_model() -> None:
    by_size = [rates.USUAL[size] for size in sorted(rates.USUAL)]
    for smaller, larger in pairwise(by_size):
        assert all(one >= other for one, other in zip(smaller, larger, strict=True))


def test_a_rate_that_ruins_a_trained_model_is_warned_of() -> None:
    said = rates.warning("update.critic.lr", 3e-3, 1e-5, 7_600_000_000)
    assert said == (
        "update.critic.lr=0.003 is far above what suits a trained model of 7,600M parameters; "
        "1e-05 is usual, and what update.critic.lr=auto takes"
    )
    assert rates.warning("update.critic.lr", 1e-4, 1e-5, 7_600_000_000) is None
    assert rates.warning("update.policy.lr", 1.0, 1e-4, 300_000) is None, "a small one survives much"
