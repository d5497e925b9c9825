"""How token values become one number."""

from __future__ import annotations

import pytest
import torch

from toolwright.algorithms import aggregate
from toolwright.algorithms.aggregate import Totals
from toolwright.failures import UserError

VALUES = torch.tensor([[1.0, 2.0, 3.0], [4.0, torch.nan, torch.nan], [torch.nan, torch.nan, torch.nan]])
MASK = torch.tensor([[1, 1, 1], [1, 0, 0], [0, 0, 0]])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("token-mean", 10 / 4),
        ("seq-mean-token-sum", (6 + 4) / 2),
        ("seq-mean-token-mean", (2 + 4) / 2),
        ("seq-mean-token-sum-norm", (6 + 4) / 2 / 3),
    ],
)
def test_each_aggregation_by_hand(name: str, expected: float) -> None:
    # The third sequence has no token under the mask: it is not counted, and its NaNs are not seen.
    assert float(aggregate.compute(name, VALUES, MASK)) == pytest.approx(expected)


@pytest.mark.parametrize("name", aggregate.names())
def test_the_totals_of_the_whole_batch_are_what_is_divided_by(name: str) -> None:
    alone = aggregate.compute(name, VALUES, MASK, norm_tokens=3)
    among_more = aggregate.compute(name, VALUES, MASK, totals=Totals(tokens=8, sequences=4), norm_tokens=3)
    torch.testing.assert_close(among_more, alone / 2)


@pytest.mark.parametrize("name", aggregate.names())
def test_nothing_under_the_mask_is_zero_with_a_gradient_of_zero(name: str) -> None:
    values = torch.ones(2, 3, requires_grad=True)
    result = aggregate.compute(name, values, torch.zeros(2, 3))
    assert result == 0
    assert not torch.autograd.grad(result, values)[0].any()


def test_half_precision_is_summed_in_single() -> None:
    # 4,096 times 1 cannot be counted in bfloat16, whose whole numbers end at 256.
    values = torch.ones(1, 4096, dtype=torch.bfloat16)
    result = aggregate.compute("token-mean", values, torch.ones(1, 4096, dtype=torch.bfloat16))
    assert result == 1
    assert result.dtype == torch.bfloat16


def test_totals_count_tokens_and_the_sequences_that_have_any() -> None:
    assert Totals.of(MASK) == Totals(tokens=4, sequences=2)
    assert Totals(4, 2) + Totals(1, 1) == Totals(5, 3)


def test_an_unknown_aggregation_or_a_wrong_shape_is_reported() -> None:
    with pytest.raises(UserError, match=r"unknown aggregation 'mean'; known: seq-mean-token-mean"):
        aggregate.compute("mean", VALUES, MASK)
    with pytest.raises(UserError, match=r"aggregate: mask has shape \[2, 3\], expected \[3, 3\]"):
        aggregate.compute("token-mean", VALUES, MASK[:2])
