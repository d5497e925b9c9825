"""Estimates over tasks and how sure they are: pass@k, maj@k, intervals, and two evaluations task by task.

Attempts at one task are alike, so an interval resamples tasks, never attempts.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

Z = 1.959964  # of the normal distribution, for 95 %
RESAMPLES = 4000
FLIPS = 20_000  # random signs of the permutation test
MOST_SUBSETS = 256  # of a task's attempts, over which maj@k is averaged
AT_ONCE = 1 << 22  # numbers drawn together

Floats = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Estimate:
    """A mean over tasks, and the interval that holds the true one in 95 of 100 cases."""

    value: float
    low: float
    high: float
    tasks: int


@dataclass(frozen=True)
class PairedDifference:
    """Two evaluations over the tasks that both attempted: the second's mean less the first's."""

    tasks: int
    first: float
    second: float
    difference: float
    low: float
    high: float
    p: float  # how often chance alone gives as large a difference
    test: str  # McNemar or permutation
    worse: int  # tasks at which the second scored less
    better: int


def pass_at_k(right: int, tried: int, k: int) -> float:
    """The chance that one of k attempts is right, unbiased: 1 − C(n − c, k) / C(n, k). arXiv 2107.03374."""
    return 1.0 - math.comb(tried - right, k) / math.comb(tried, k)


def majority_at_k(
    answers: Sequence[Hashable | None], right: Sequence[float], k: int, *, seed: object
) -> float:
    """Estimate the chance that a majority vote of k attempts is right. `None` casts no vote, and tied answers
    share the result. If there are too many subsets of k attempts, a sample of them is used."""
    places = range(len(answers))
    if math.comb(len(answers), k) <= MOST_SUBSETS:
        subsets: Iterable[Sequence[int]] = combinations(places, k)
    else:
        rng = random.Random(f"majority {seed}")
        subsets = [rng.sample(places, k) for _ in range(MOST_SUBSETS)]
    return float(np.mean([_vote(subset, answers, right) for subset in subsets]))


def _vote(subset: Sequence[int], answers: Sequence[Hashable | None], right: Sequence[float]) -> float:
    votes = Counter(answers[place] for place in subset if answers[place] is not None)
    most = max(votes.values(), default=0)
    elected = [place for place in subset if votes.get(answers[place]) == most]
    return float(np.mean([right[place] for place in elected])) if elected else 0.0


def estimate(values: Sequence[float]) -> Estimate:
    """The mean of one value a task. The interval is Wilson's if each is 0 or 1, else from the bootstrap."""
    own = np.asarray(values, dtype=np.float64)
    mean = float(own.mean())
    if np.isin(own, (0.0, 1.0)).all():
        return Estimate(mean, *wilson(mean, len(own)), len(own))
    return Estimate(mean, *_bootstrap(own), len(own))


def wilson(share: float, count: float) -> tuple[float, float]:
    """Wilson's score interval: it holds for few attempts, and for shares near 0 and 1."""
    spread = Z * math.sqrt(share * (1 - share) / count + Z * Z / (4 * count * count))
    middle, scale = share + Z * Z / (2 * count), 1 + Z * Z / count
    return max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale)


def paired(first: Sequence[float], second: Sequence[float]) -> PairedDifference:
    """Compare values of the same tasks in the same order.

    p is McNemar's, exactly, where each value is 0 or 1; else of the permutation test, which exchanges the two
    evaluations of each task at random.
    """
    one, other = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    change = other - one
    better, worse = int((change > 0).sum()), int((change < 0).sum())
    binary = bool(np.isin(one, (0.0, 1.0)).all() and np.isin(other, (0.0, 1.0)).all())
    low, high = _bootstrap(change)
    return PairedDifference(
        tasks=len(change),
        first=float(one.mean()),
        second=float(other.mean()),
        difference=float(change.mean()),
        low=low,
        high=high,
        p=_sign_test(better, worse) if binary else _permutation_test(change),
        test="McNemar" if binary else "permutation",
        worse=worse,
        better=better,
    )


def _sign_test(one: int, other: int) -> float:
    """The exact sign test: both tails of the binomial distribution with p = ½, over the tasks that differ."""
    count, few = one + other, min(one, other)
    tail = sum(math.comb(count, number) for number in range(few + 1))
    return min(1.0, 2 * tail / 2**count)


def _permutation_test(change: Floats) -> float:
    """(1 + flips at least as far from 0) / (1 + flips)."""
    found, differing = abs(change.sum()), change[change != 0]
    rng, extreme, left = np.random.default_rng(0), 0, FLIPS
    while left:
        rows = min(left, max(1, AT_ONCE // max(1, len(differing))))
        signs = rng.integers(0, 2, (rows, len(differing)), dtype=np.int8) * 2.0 - 1.0
        extreme += int((np.abs(signs @ differing) >= found - 1e-9).sum())
        left -= rows
    return (1 + extreme) / (1 + FLIPS)


def _bootstrap(values: Floats) -> tuple[float, float]:
    """The middle 95 % of the means of resampled tasks, always with the same seed."""
    rng, means, left = np.random.default_rng(0), [], RESAMPLES
    while left:
        rows = min(left, max(1, AT_ONCE // len(values)))
        means.append(values[rng.integers(0, len(values), (rows, len(values)))].mean(axis=1))
        left -= rows
    low, high = np.quantile(np.concatenate(means), (0.025, 0.975))
    return float(low), float(high)
