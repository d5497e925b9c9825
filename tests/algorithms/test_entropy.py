"""The entropy bonus that holds a target, and the tokens of highest entropy."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given

from toolwright.algorithms import entropy
from toolwright.algorithms.entropy import EntropyBonus

from .batches import Example, examples, quick


def after(observed: list[float], coef: float = 0.0) -> EntropyBonus:
    bonus = EntropyBonus(coef)
    for value in observed:
        bonus = bonus.adapted(observed=value, target=0.5, delta=0.1)
    return bonus


def test_without_a_target_the_coefficient_is_what_it_is() -> None:
    assert EntropyBonus(0.3).applied(None) == 0.3


def test_the_bonus_acts_only_after_an_entropy_at_its_target_or_below() -> None:
    assert EntropyBonus(0.3).applied(0.5) == 0, "nothing was measured yet"
    assert after([0.5]).applied(0.5) == pytest.approx(0.1)
    assert after([0.2, 0.2]).applied(0.5) == pytest.approx(0.2)
    assert after([0.2, 0.2, 0.6]).applied(0.5) == 0


def test_the_coefficient_remembers_what_it_took() -> None:
    assert after([0.2, 0.2, 0.6]).coef == pytest.approx(0.1)
    assert after([0.2, 0.2, 0.6, 0.4]).applied(0.5) == pytest.approx(0.2)


def test_the_coefficient_stays_within_its_bounds() -> None:
    assert after([0.6] * 5).coef == 0
    assert after([0.1] * 50).coef == entropy.HIGHEST


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_update_that_was_skipped_changes_nothing(value: float) -> None:
    assert after([0.2, value]) == after([0.2])


def test_the_top_tokens_are_those_of_highest_entropy() -> None:
    values = torch.tensor([[0.1, 0.9, 0.5], [0.8, 7.0, 0.2]])
    mask = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 1.0]])
    chosen = entropy.top(values, mask, 0.4)  # of five tokens, two; the highest of all is masked
    assert chosen.tolist() == [[False, True, False], [True, False, False]]


@quick
@given(batch=examples())
def test_exactly_the_fraction_is_chosen_and_never_under_the_mask(batch: Example) -> None:
    tokens = int(batch.mask.sum())
    hidden = torch.where(batch.mask == 0, torch.nan, batch.values)
    for fraction in (0.01, 0.2, 0.5, 1.0):
        chosen = entropy.top(hidden, batch.mask, fraction)
        assert chosen.sum() == min(max(int(tokens * fraction), 1), tokens)
        assert not chosen[batch.mask == 0].any()
        if 0 < chosen.sum() < tokens:
            assert batch.values[chosen].min() >= batch.values[(batch.mask == 1) & ~chosen].max()
