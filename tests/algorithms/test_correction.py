"""Importance weights for the gap between sampling and training."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from toolwright.algorithms import correction
from toolwright.failures import UserError

# Ratios of training to sampling probabilities: 4, ½ and 1 in the first sequence, ¼ in the second.
RATIO = torch.tensor([[4.0, 0.5, 1.0], [0.25, 9.0, 9.0]], dtype=torch.float64)
MASK = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]], dtype=torch.float64)
SAMPLED = torch.full((2, 3), -1.0, dtype=torch.float64)


def weights(**settings: Any) -> tuple[Tensor, dict[str, Tensor]]:
    return correction.compute(
        old_log_prob=SAMPLED + RATIO.log(), sampled_log_prob=SAMPLED, mask=MASK, **settings
    )


def test_truncation_caps_each_tokens_ratio() -> None:
    result, metrics = weights(mode="truncate", level="token", high=2.0)
    torch.testing.assert_close(result[0], torch.tensor([2.0, 0.5, 1.0], dtype=torch.float64))
    torch.testing.assert_close(result[1], torch.tensor([0.25, 0.0, 0.0], dtype=torch.float64))
    assert metrics["truncate_fraction"] == 0.25


def test_masking_drops_tokens_outside_the_bounds() -> None:
    result, metrics = weights(mode="mask", level="token", low=0.4, high=2.0)
    torch.testing.assert_close(result[0], torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64))
    assert not result[1].any()
    assert metrics["mask_fraction"] == 0.5


def test_a_sequences_weight_is_the_product_of_its_tokens_and_belongs_to_each_of_them() -> None:
    result, _ = weights(mode="truncate", level="sequence", high=10.0)
    torch.testing.assert_close(result[0], torch.full((3,), 2.0, dtype=torch.float64))
    torch.testing.assert_close(result[1], torch.tensor([0.25, 0.0, 0.0], dtype=torch.float64))


def test_masking_drops_whole_sequences() -> None:
    result, metrics = weights(mode="mask", level="sequence", low=0.5, high=3.0)
    assert (result[0] > 0).all()
    assert not result[1].any()
    assert metrics["mask_fraction"] == 0.25


def test_a_geometric_weight_does_not_grow_with_the_length() -> None:
    result, _ = weights(mode="truncate", level="geometric", high=10.0)
    torch.testing.assert_close(result[0], torch.full((3,), 2.0 ** (1 / 3), dtype=torch.float64))
    torch.testing.assert_close(result[1], torch.tensor([0.25, 0.0, 0.0], dtype=torch.float64))
    longer, _ = correction.compute(
        old_log_prob=(SAMPLED + RATIO.log()).repeat(1, 5),
        sampled_log_prob=SAMPLED.repeat(1, 5),
        mask=MASK.repeat(1, 5),
        level="geometric",
        high=10.0,
    )
    torch.testing.assert_close(longer[:, :3], result)


@pytest.mark.parametrize(
    ("level", "low", "high", "kept"),
    [
        ("token", 0.2, 5.0, [True, True]),
        ("token", 0.2, 3.0, [False, True]),  # one token of ratio 4
        ("token", 0.3, 5.0, [True, False]),
        ("sequence", 0.2, 1.9, [False, True]),  # their product, 2
        ("geometric", 0.3, 1.3, [True, False]),  # their geometric mean, 1.26
    ],
)
def test_rejection_drops_whole_sequences_and_weighs_the_others_alike(
    level: str, low: float, high: float, kept: list[bool]
) -> None:
    result, metrics = weights(mode="reject", level=level, low=low, high=high)
    assert torch.equal(result, MASK * torch.tensor(kept, dtype=torch.float64)[:, None])
    assert metrics["reject_fraction"] == sum(3 - 2 * row for row, keep in enumerate(kept) if not keep) / 4


def test_what_a_mask_hides_rejects_nothing() -> None:
    # The hidden ratios of the second sequence are 9.
    assert torch.equal(weights(mode="reject", level="token", low=0.2, high=5.0)[0], MASK)


def test_none_weighs_all_alike_and_still_measures() -> None:
    result, metrics = weights(mode="none")
    assert torch.equal(result, MASK)
    assert "kl_k1" in metrics
    assert "none_fraction" not in metrics


def test_the_gap_is_measured_under_the_mask() -> None:
    _, metrics = weights(mode="none")
    logs = RATIO.log()[MASK == 1]
    assert float(metrics["kl_k1"]) == pytest.approx(float(-logs.mean()))
    assert float(metrics["kl_k3"]) == pytest.approx(float((RATIO[MASK == 1] - 1 - logs).mean()))


def test_equal_probabilities_have_no_gap_and_every_sample_counts() -> None:
    for level in ("token", "sequence"):
        result, metrics = correction.compute(
            old_log_prob=SAMPLED, sampled_log_prob=SAMPLED, mask=MASK, level=level
        )
        assert torch.equal(result, MASK)
        assert metrics["effective_sample_size"] == 1
        assert metrics["kl_k1"] == metrics["kl_k3"] == 0


def test_one_ruling_weight_leaves_one_effective_sample() -> None:
    gap = torch.zeros(1, 4)
    gap[0, 0] = 15.0
    _, metrics = correction.compute(
        old_log_prob=gap, sampled_log_prob=torch.zeros(1, 4), mask=torch.ones(1, 4)
    )
    assert float(metrics["effective_sample_size"]) == pytest.approx(0.25, abs=1e-4)


def test_weights_carry_no_gradient_and_masked_tokens_may_hold_anything() -> None:
    old = torch.tensor([[0.0, torch.nan]], requires_grad=True)
    result, metrics = correction.compute(
        old_log_prob=old, sampled_log_prob=torch.zeros(1, 2), mask=torch.tensor([[1.0, 0.0]])
    )
    assert not result.requires_grad
    assert torch.equal(result, torch.tensor([[1.0, 0.0]]))
    assert all(value.isfinite() for value in metrics.values())


def test_an_unknown_mode_or_level_is_reported() -> None:
    with pytest.raises(UserError, match=r"unknown mode 'truncated'; did you mean 'truncate'\?"):
        weights(mode="truncated")
    with pytest.raises(UserError, match="unknown level 'batch'; known: geometric, sequence, token"):
        weights(level="batch")
