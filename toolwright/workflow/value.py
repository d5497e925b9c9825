"""The value of a workflow: what is believed of its score before and after it ran.

    score(w, t) = μ + β · (φ(w) − φ(start)) + δ_w + d_t + ε,   β ~ N(m, S),   δ_w ~ N(0, τ²),   d_t ~ N(0, σ²)

A Bayesian linear model over features φ of the graph, with a term of its own for each workflow and one for
each task: a run of one workflow informs all that resemble it, and a hard task is held against none. m and S
come from other data sets (prior.py). How far features and workflows differ at all is estimated from the
search itself, so that a lucky few runs are believed as little as they deserve.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from toolwright.workflow.features import Columns, Features
from toolwright.workflow.prior import LEVEL_SD, RUN_SD, Prior

EDITED, EDITED_MEAN = "edited", -0.12  # an edit of a workflow that many found good is usually worse
TASK_SD = 0.25  # of a task's difficulty, until there is data
ENOUGH_RUNS = 40  # runs that RUN_SD and TASK_SD count for
AGAIN = 0.5  # the part of a run's noise that another run of the same task shares
FEATURE_SCALES, OWN_SDS = (0.5, 1.0, 2.0), (0.015, 0.04, 0.08)  # that are weighed against each other
ALONE_SDS = (0.02, 0.05, 0.1, 0.15)


@dataclass(frozen=True)
class Evidence:
    """What runs say of workflows when the difficulty of tasks is integrated out: Λ and b of a normal
    likelihood exp(−½ fᵀΛf + bᵀf) over scores f, relative to `level`."""

    precision: np.ndarray
    vector: np.ndarray
    level: float
    noise: float  # variance of a run around workflow and task

    @classmethod
    def of(cls, weight: np.ndarray, mean: np.ndarray, believed: np.ndarray | None = None) -> Evidence:
        """`weight` and `mean` [tasks, workflows]: see `observed`. `believed`: what is believed of the
        workflows so far, from which the noise is estimated."""
        level = float((weight * mean).sum() / weight.sum())
        noise, task = _variances(weight, mean - (np.array(level) if believed is None else believed))
        above = weight * (mean - level)
        whole = weight.sum(1) + noise / task
        precision = (np.diag(weight.sum(0)) - weight.T @ (weight / whole[:, None])) / noise
        return cls(precision, (above.sum(0) - weight.T @ (above.sum(1) / whole)) / noise, level, noise)


def observed(runs: Sequence[Sequence[tuple[str, float]]]) -> tuple[np.ndarray, np.ndarray]:
    """Of scores by task, one row a workflow: how many independent runs they count for, and their
    mean [tasks, workflows]."""
    tasks: dict[str, int] = {}
    rows = [tasks.setdefault(name, len(tasks)) for mine in runs for name, _ in mine]
    place = np.array(rows) * len(runs) + np.repeat(np.arange(len(runs)), [len(mine) for mine in runs])
    cells = len(tasks) * len(runs)
    count = np.bincount(place, minlength=cells)
    total = np.bincount(place, [score for mine in runs for _, score in mine], cells)
    found = np.maximum(count, 1)
    weight = np.where(count, 1 / (AGAIN + (1 - AGAIN) / found), 0.0).reshape(len(tasks), len(runs))
    mean = (total / found).reshape(len(tasks), len(runs))
    return weight, mean


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
        self.mean, self.sd, self.cov = np.zeros(0), np.zeros(0), np.zeros((0, 0))

    def fit(self, seen: Sequence[Features], runs: Sequence[Sequence[tuple[str, float]]]) -> None:
        """Fit to features and scores by task, a row each for every workflow that ran."""
        rows = self.columns.rows([*seen, self.start])
        self._x = rows[:-1] - rows[-1]
        mean, cov = self._weights()
        self._offset = self._x @ mean
        weight, score = observed(runs)
        scales, priors = self._priors(cov)
        believed = None
        for _ in range(2):  # the noise is estimated around what is believed
            self._fit_scales(Evidence.of(weight, score, believed), scales, priors)
            believed = self.mean
        self.sd = np.sqrt(np.maximum(np.diag(self.cov), 1e-12))

    def _weights(self) -> tuple[np.ndarray, np.ndarray]:
        """m and S, for the columns that there are."""
        mean, cov = (self._prior if self.shared else Prior()).weights(self.columns)
        if EDITED in self.columns.index:
            mean[self.columns.index[EDITED]] = EDITED_MEAN
        return mean, cov

    def _priors(self, cov: np.ndarray) -> tuple[list[tuple[float, float]], np.ndarray]:
        """The scales of features and workflows that are compared, and K for each [scales, ran, ran]."""
        linear, own = self._x @ cov @ self._x.T, np.eye(len(self._x))
        scales = [(f, o) for f in FEATURE_SCALES for o in OWN_SDS]
        if not self.shared:
            scales = [(0.0, o) for o in ALONE_SDS]
        return scales, np.stack([f**2 * linear + o**2 * own + LEVEL_SD**2 for f, o in scales])

    def _fit_scales(
        self, evidence: Evidence, scales: Sequence[tuple[float, float]], priors: np.ndarray
    ) -> None:
        """Take the scales of the likelihood's maximum: log p = −½ log |I + KΛ| + ½ bᵀ(K⁻¹ + Λ)⁻¹b."""
        vector = evidence.vector - evidence.precision @ self._offset
        insides = np.eye(len(self._x)) + priors @ evidence.precision
        covs = np.linalg.solve(insides, priors)
        fits = 0.5 * np.einsum("i,gij,j->g", vector, covs, vector) - 0.5 * np.linalg.slogdet(insides)[1]
        best = int(fits.argmax())
        self._scale, self._own = scales[best]
        self.cov = (covs[best] + covs[best].T) / 2
        self._alpha = np.linalg.solve(insides[best].T, vector)
        self._inner = np.linalg.solve(insides[best].T, evidence.precision)
        self._level, self.noise = evidence.level, evidence.noise
        self.mean = self._level + self._offset + priors[best] @ self._alpha

    def together(self, found: Sequence[Features]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of those that ran and, after them, of others by their features: the mean [all], the covariance with
        those that ran [ran, all], and the variance [all]."""
        if not found:
            return self.mean, self.cov, np.diag(self.cov)
        rows = self.columns.rows([*found, self.start])
        ran = len(self._x)
        x = np.zeros((ran + len(found), rows.shape[1]))
        x[:ran, : self._x.shape[1]] = self._x
        x[ran:] = rows[:-1] - rows[-1]
        mean, cov = self._weights()
        scaled = self._scale**2 * (x @ cov)
        cross = scaled @ x[:ran].T + LEVEL_SD**2
        cross[:ran] += self._own**2 * np.eye(ran)
        known = cross @ self._inner
        before = (scaled * x).sum(1) + self._own**2 + LEVEL_SD**2
        after = before - (known * cross).sum(1)
        return self._level + x @ mean + cross @ self._alpha, (cross - known @ cross[:ran].T).T, after


NORMAL = np.linspace(-3.0, 3.0, 25)  # points of the standard normal distribution, with these weights
WEIGHTS = np.exp(-(NORMAL**2) / 2) / np.exp(-(NORMAL**2) / 2).sum()


def knowledge_gradient(
    mean: np.ndarray, cov: np.ndarray, variance: np.ndarray, *, noise: float, runs: int
) -> np.ndarray:
    """By how much `runs` more runs of each workflow are expected to raise the mean of the one that is chosen
    afterwards, among those that ran and itself (https://doi.org/10.1287/ijoc.1080.0314). Of all workflows,
    those that ran first: `mean` [all], `cov` [ran, all], `variance` [all]."""
    ran = len(cov)
    shown = np.sqrt(np.maximum(variance, 1e-12) + noise / runs)  # what the runs of a workflow will show, sd
    slopes = cov / shown
    means, others = np.empty_like(slopes), np.empty((len(mean), len(NORMAL)))
    for place, point in enumerate(NORMAL):  # one array [ran, all, points] would not fit the processor's cache
        np.multiply(slopes, point, out=means)
        means += mean[:ran, None]
        means.max(0, out=others[:, place])
    itself = mean[:, None] + (variance / shown)[:, None] * NORMAL
    gain: np.ndarray = np.maximum(others, itself) @ WEIGHTS - mean[:ran].max()
    return gain
