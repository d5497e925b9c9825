"""pass@k, maj@k, intervals and paired tests against what can be counted by hand."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolwright.observe.estimates import estimate, majority_at_k, paired, pass_at_k, wilson


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.integers(1, 8))
def test_pass_at_k_is_the_share_of_subsets_with_a_right_attempt(right: list[bool], k: int) -> None:
    if k <= len(right):
        subsets = list(itertools.combinations(right, k))
        assert pass_at_k(sum(right), len(right), k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


def test_the_majority_decides_and_ties_count_in_equal_shares() -> None:
    assert majority_at_k(["a", "a", "b"], [1, 1, 0], 3, seed=0) == 1
    assert majority_at_k(["b", "a", "b"], [0, 1, 0], 3, seed=0) == 0
    assert majority_at_k(["a", "b"], [1, 0], 2, seed=0) == 0.5
    assert majority_at_k([None, None, "a"], [0, 0, 1], 3, seed=0) == 1, "no answer is no vote"
    assert majority_at_k([None, None], [1, 1], 2, seed=0) == 0
    assert majority_at_k(["a", "a", "b"], [1, 1, 0], 2, seed=0) == pytest.approx((1 + 0.5 + 0.5) / 3)


def test_a_majority_of_many_attempts_is_drawn_the_same_way_each_time() -> None:
    answers, right = ["a"] * 18 + ["b"] * 14, [1] * 18 + [0] * 14
    found = majority_at_k(answers, right, 8, seed="task")
    assert found == majority_at_k(answers, right, 8, seed="task")
    assert 0.55 < found < 0.9


def test_wilsons_interval_is_the_published_one() -> None:
    low, high = wilson(0.1, 10)  # Wilson 1927, as tables have it
    assert (round(low, 3), round(high, 3)) == (0.018, 0.404)
    assert estimate([1.0] * 20).low < 0.9, "twenty of twenty are no certainty"
    assert estimate([1.0] * 20).high == 1.0


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    rng, hits = random.Random(0), 0
    for _ in range(60):
        tasks = [sum(rng.random() < share for _ in range(4)) / 4 for share in [0.2, 0.9] * 30]
        found = estimate(tasks)
        hits += found.low <= 0.55 <= found.high
    assert hits >= 52


def test_pairs_find_what_two_intervals_do_not() -> None:
    rng = random.Random(1)
    first = [float(rng.random() < 0.5) for _ in range(200)]
    second = [1.0 if number % 14 == 0 else value for number, value in enumerate(first)]
    found = paired(first, second)
    assert found.test == "McNemar"
    assert found.worse == 0
    assert found.better == sum(second) - sum(first)
    assert found.p == pytest.approx(2 * 0.5**found.better)
    assert 0 < found.low < found.difference < found.high
    assert estimate(first).high > estimate(second).low, "by themselves they overlap"


def test_mcnemar_is_the_exact_binomial() -> None:
    first = [1.0] * 3 + [0.0] * 9 + [1.0] * 20
    second = [0.0] * 3 + [1.0] * 9 + [1.0] * 20
    assert paired(first, second).p == pytest.approx(0.14599609375)
    assert paired(first, first).p == 1.0


def test_shares_are_compared_by_permutation() -> None:
    rng = random.Random(2)
    first = [rng.choice([0.0, 0.25, 0.5]) for _ in range(60)]
    better = paired(first, [value + 0.25 for value in first])
    assert better.test == "permutation"
    assert better.p < 0.001
    shuffled = paired(first, [first[(place + 1) % 60] for place in range(60)])
    assert shuffled.difference == pytest.approx(0)
    assert shuffled.p > 0.5
