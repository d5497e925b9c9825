"""What is learned from: groups with a signal, answers within the limit, the cleanest right attempts."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolwright.algorithms.selection import faults, has_signal, overlong_penalty, resample_on_correct
from toolwright.failures import UserError

from .batches import quick


@pytest.mark.parametrize("rewards", [[], [1.0], [0.0, 0.0, 0.0], [0.1] * 8, [1.0, 1.0 + 1e-12]])
def test_a_group_of_equal_rewards_has_no_signal(rewards: list[float]) -> None:
    assert not has_signal(rewards)


def test_a_group_with_any_difference_has() -> None:
    assert has_signal([0.0, 0.0, 1.0])


@pytest.mark.parametrize(
    ("length", "expected"), [(0, 0.0), (80, 0.0), (85, -0.25), (90, -0.5), (100, -1.0), (120, -1.0)]
)
def test_the_penalty_grows_over_the_buffer_and_is_whole_at_the_limit(length: int, expected: float) -> None:
    assert overlong_penalty(length, max_length=100, buffer=20) == pytest.approx(expected)


def test_the_penalty_scales() -> None:
    assert overlong_penalty(90, max_length=100, buffer=20, penalty=4.0) == pytest.approx(-2.0)


def test_without_a_buffer_only_what_is_beyond_the_limit_costs() -> None:
    assert overlong_penalty(100, max_length=100, buffer=0) == 0
    assert overlong_penalty(101, max_length=100, buffer=0) == -1


def test_a_buffer_longer_than_the_limit_is_an_error() -> None:
    with pytest.raises(UserError, match="overlong buffer of 200 tokens must lie within the limit of 100"):
        overlong_penalty(10, max_length=100, buffer=200)


def test_faults_are_the_failed_part_of_the_calls_and_the_faults_of_format() -> None:
    assert faults(tool_calls=4, tool_errors=1) == 0.25
    assert faults(tool_calls=4, tool_errors=1, format_faults=0.5) == 0.75
    assert faults(tool_calls=0, tool_errors=0) == 0.5


attempts = st.lists(st.tuples(st.booleans(), st.floats(0, 2)), min_size=1, max_size=32)


@quick
@given(attempts=attempts, keep=st.integers(1, 16), seed=st.integers(0, 100))
def test_exactly_as_many_as_asked_are_kept_and_the_seed_decides_which(
    attempts: list[tuple[bool, float]], keep: int, seed: int
) -> None:
    correct, unclean = [good for good, _ in attempts], [fault for _, fault in attempts]
    kept = resample_on_correct(correct, unclean, keep, random.Random(seed))
    assert len(kept) == min(keep, len(attempts))
    assert kept == sorted(set(kept))
    assert kept == resample_on_correct(correct, unclean, keep, random.Random(seed))


@quick
@given(right=st.integers(0, 16), seed=st.integers(0, 100))
def test_of_twice_the_attempts_half_of_the_wrong_ones_stay(right: int, seed: int) -> None:
    correct = [True] * right + [False] * (16 - right)
    kept = resample_on_correct(correct, [0.0] * 16, 8, random.Random(seed))
    wrong_kept = sum(not correct[i] for i in kept)
    assert abs(wrong_kept - (16 - right) / 2) <= 0.5
    if 0 < right < 16:
        assert 0 < wrong_kept < 8


def test_of_the_right_ones_the_clean_stay() -> None:
    correct, unclean = [True] * 8 + [False] * 8, [0.0, 0.5] * 4 + [0.0, 0.5] * 4
    for seed in range(50):
        kept = resample_on_correct(correct, unclean, 8, random.Random(seed))
        assert [i for i in kept if i < 8] == [0, 2, 4, 6]


def test_fewer_faults_are_likelier_to_stay_and_many_are_not_ruled_out() -> None:
    correct, unclean = [True] * 4, [0.2, 0.4, 0.8, 1.6]
    seen = Counter(
        i for seed in range(2000) for i in resample_on_correct(correct, unclean, 1, random.Random(seed))
    )
    assert seen[0] > seen[1] > seen[2] > seen[3] > 0
    assert seen[0] / seen[1] == pytest.approx(2.0, rel=0.2)


def test_wrong_ones_are_thinned_out_whatever_their_faults() -> None:
    correct, unclean = [True] * 4 + [False] * 4, [0.0] * 4 + [0.0, 0.0, 5.0, 5.0]
    seen = Counter(
        i for seed in range(2000) for i in resample_on_correct(correct, unclean, 4, random.Random(seed))
    )
    assert max(seen[i] for i in range(4, 8)) / min(seen[i] for i in range(4, 8)) < 1.2


def test_each_attempt_needs_its_fault_count() -> None:
    with pytest.raises(UserError, match="2 attempts but 1 fault counts"):
        resample_on_correct([True, False], [0.0], 1, random.Random(0))
