"""The value of a workflow: what is believed of its score before and after it ran.

    score(w, t) = μ + β · (φ(w) − φ(start)) + δ_w + d_t + ε,   β ~ N(m, S),   δ_w ~ N(0, τ²),   d_t ~ N(0, σ²)

A Bayesian linear model over features φ of the graph, with a term of its own for each workflow and one for
each task: a run of one workflow informs all that resemble it, and a hard task is held against none. m and S
come from other data sets (prior.py). How far features and workflows differ at all is estimated from the
search itself, so that a lucky few runs are believed as little as they deserve.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from toolwright.workflow.features import Columns, Features, kind_of
from toolwright.workflow.prior import LEVEL_SD, RUN_SD, Prior

UNKNOWN_SD = 0.08  # of a feature's weight, where no other data set was searched
TASK_SD = 0.25  # of a task's difficulty, until there is data
ENOUGH_RUNS = 40  # runs that RUN_SD and TASK_SD count for
AGAIN = 0.5  # the part of a run's noise that another run of the same task shares
FEATURE_SCALES, OWN_SDS = (0.35, 0.7, 1.4), (0.015, 0.04, 0.08)  # that are weighed against each other
ALONE_SDS = (0.02, 0.05, 0.1, 0.15)


@dataclass(frozen=True)
class Evidence:
    """What runs say of workflows when the difficulty of tasks is integrated out: Λ and b of a normal
    likelihood exp(−½ fᵀΛf + bᵀf) over scores f, relative to `level`."""

    precision: np.ndarray
    vector: np.ndarray
    level: float

    @classmethod
    def of(cls, runs: Sequence[Iterable[tuple[str, float]]], means: np.ndarray | None = None) -> Evidence:
        """`runs`: scores by task, one row a workflow. `means`: what is believed of the workflows so far, from
        which the noise is estimated."""
        tasks: dict[str, int] = {}
        cells: dict[tuple[int, int], list[float]] = {}
        for row, mine in enumerate(runs):
            for name, score in mine:
                cells.setdefault((tasks.setdefault(name, len(tasks)), row), []).append(score)
        weight, mean = np.zeros((2, len(tasks), len(runs)))
        for place, found in cells.items():
            weight[place] = 1 / (AGAIN + (1 - AGAIN) / len(found))
            mean[place] = sum(found) / len(found)
        level = float((weight * mean).sum() / weight.sum())
        noise, task = _variances(weight, mean - (np.array(level) if means is None else means))
        above = weight * (mean - level)
        whole = weight.sum(1) + noise / task
        precision = (np.diag(weight.sum(0)) - weight.T @ (weight / whole[:, None])) / noise
        return cls(precision, (above.sum(0) - weight.T @ (above.sum(1) / whole)) / noise, level)


def _variances(weight: np.ndarray, residual: np.ndarray) -> tuple[float, float]:
    """The variances of a run and of a task's difficulty: two residuals of one task share the difficulty."""
    ran = weight > 0
    rest = np.where(ran, residual, 0.0)
    count = ran.sum()
    pairs = (ran.sum(1) ** 2 - ran.sum(1)).sum()
    shared = ((rest.sum(1) ** 2) - (rest**2).sum(1)).sum()
    usual = ENOUGH_RUNS
    task = max(0.005, (shared + usual * TASK_SD**2) / (pairs + usual))
    whole = ((rest**2).sum() + usual * (RUN_SD**2)) / (count + usual)
    return max(0.02, float(whole - task)), float(task)


class Belief:
    """The posterior of scores, for workflows that ran and for any other."""

    def __init__(
        self,
        columns: Columns,
        start: Features,
        *,
        prior: Prior | None = None,
        shared: bool = True,
    ) -> None:
        """With `shared=False` every workflow is estimated by itself: no value is learned."""
        self.columns, self.start, self.shared = columns, start, shared
        self._prior = prior or Prior()
        self.mean, self.cov = np.zeros(0), np.zeros((0, 0))

    def fit(self, seen: Sequence[Features], runs: Sequence[Sequence[tuple[str, float]]]) -> None:
        """Fit to features and scores by task, a row each for every workflow that ran."""
        self._rows = self.columns.rows([*seen, self.start])
        self._x = self._rows[:-1] - self._rows[-1]
        self._offset = self._x @ self._weights()[0]
        means = None
        for _ in range(2):
            evidence = Evidence.of(runs, means)
            self._fitted(evidence)
            means = self.mean

    def _weights(self) -> tuple[np.ndarray, np.ndarray]:
        """m and the diagonal of S, for the columns that there are."""
        width = len(self.columns.index)
        mean, variance = np.zeros((2, width))
        if self.shared:
            for name, column in self.columns.index.items():
                mean[column] = self._prior.mean.get(name, 0.0)
                unmet = self._prior.unmet.get(kind_of(name), UNKNOWN_SD**2)
                variance[column] = self._prior.variance.get(name, unmet)
        return mean, variance

    def _fitted(self, evidence: Evidence) -> None:
        """Take the scales of the likelihood's maximum: log p = −½ log |I + KΛ| + ½ bᵀ(K⁻¹ + Λ)⁻¹b."""
        count = len(self._x)
        vector = evidence.vector - evidence.precision @ self._offset
        linear = (self._x * self._weights()[1]) @ self._x.T
        best = -np.inf
        grid = (
            [(f, o) for f in FEATURE_SCALES for o in OWN_SDS]
            if self.shared
            else [(0.0, o) for o in ALONE_SDS]
        )
        for scale, own in grid:
            prior = scale**2 * linear + own**2 * np.eye(count) + LEVEL_SD**2
            inside = np.eye(count) + prior @ evidence.precision
            cov = np.linalg.solve(inside, prior)
            likelihood = float(-0.5 * np.linalg.slogdet(inside)[1] + 0.5 * vector @ cov @ vector)
            if likelihood > best + 1e-9:
                best, self._scale, self._own = likelihood, scale, own
                self.cov = (cov + cov.T) / 2
                self._alpha = np.linalg.solve(inside.T, vector)
                self.mean = evidence.level + self._offset + prior @ self._alpha
                self._inner = np.linalg.solve(inside.T, evidence.precision)
        self._level = evidence.level

    @property
    def sd(self) -> np.ndarray:
        return np.sqrt(np.maximum(np.diag(self.cov), 1e-12))

    def untried(self, found: Sequence[Features]) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of workflows that never ran, by their features."""
        rows = self.columns.rows([*found, self.start])
        x = rows[:-1] - rows[-1]
        mean, variance = self._weights()
        scaled = self._scale**2 * variance
        cross = (x * scaled)[:, : self._x.shape[1]] @ self._x.T + LEVEL_SD**2
        alone = (x**2) @ scaled + self._own**2 + LEVEL_SD**2
        left = np.einsum("ij,jk,ik->i", cross, self._inner, cross)
        expected = self._level + x @ mean + cross @ self._alpha
        return expected, np.sqrt(np.maximum(alone - left, 1e-12))

    def draws(self, count: int, seed: int) -> np.ndarray:
        """Scores that all workflows that ran may have together, [draws, workflows]."""
        root = np.linalg.cholesky(self.cov + 1e-8 * np.eye(len(self.cov)))
        noise = np.random.default_rng(seed).standard_normal((count, len(self.mean)))
        return self.mean + noise @ root.T
