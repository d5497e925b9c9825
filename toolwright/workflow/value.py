"""The value of a workflow, learned from experience: what is believed of its score before and after it ran.

    gain(w) = β · (φ(w) − φ(start)) + δ_w,   β ~ N(m, S),   δ_w ~ N(0, τ²)

A Bayesian linear model over features of the graph, with a term of its own for each workflow. Within a search
it shares what one workflow taught with all that resemble it; m and S come from earlier searches, so that one
begins where the others ended.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from toolwright.workflow.features import FEATURES, Columns, features
from toolwright.workflow.measure import RUN_SD
from toolwright.workflow.pool import ExperiencePool
from toolwright.workflow.program import Workflow

OWN_SD = 0.05  # τ: what the features cannot say, in points of score
UNKNOWN_SD = 0.08  # of a feature's weight that no earlier search has met


@dataclass(frozen=True)
class Prior:
    """m and S (its diagonal) by feature, from earlier searches."""

    mean: Mapping[str, float] = field(default_factory=dict)
    variance: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def from_pool(cls, pool: ExperiencePool, *, without: Collection[str] = ()) -> Prior:
        """Each earlier setting fitted by itself; how much their weights differ is how little m says."""
        fits: list[dict[str, float]] = []
        for setting in pool.settings():
            if setting not in without:
                fits += _fitted(pool, setting)
        names = {name for fit in fits for name in fit}
        mean, variance = {}, {}
        for name in names:
            weights = np.array([fit[name] for fit in fits if name in fit])
            count = len(weights)
            mean[name] = float(weights.sum() / (count + 1))
            spread = float(((weights - mean[name]) ** 2).sum() + UNKNOWN_SD**2) / (count + 1)
            variance[name] = max(spread, 0.01**2)
        return cls(mean, variance)


def _fitted(pool: ExperiencePool, setting: str) -> list[dict[str, float]]:
    """The weights that one setting's searches point to, search by search."""
    searches: dict[str, list[tuple[str, float, int]]] = {}
    for one in pool.of_setting(setting):
        searches.setdefault(one.search, []).append((one.child, one.after, one.tasks))
    fits = []
    for tried in searches.values():
        known = [(pool.workflow(child), after, tasks) for child, after, tasks in tried if tasks]
        rows = [(features(Workflow.from_json(w)), a, n) for w, a, n in known if w is not None]
        if len(rows) < 3:
            continue
        columns = Columns()
        seen = [columns.row(found) for found, _, _ in rows]
        belief = Belief(columns, start=seen[0])
        gains = np.array([after - rows[0][1] for _, after, _ in rows])
        noise = np.array([2 * RUN_SD**2 / tasks for _, _, tasks in rows])
        noise[0] = 1e-4
        belief.fit(np.array(seen), gains, noise)
        weights = belief.weights()
        fits.append({name: float(weights[column % FEATURES]) for name, column in columns.index.items()})
    return fits


class Belief:
    """Gains over the start's score: of workflows that ran, and of any other."""

    def __init__(
        self, columns: Columns, start: np.ndarray, *, prior: Prior | None = None, shared: bool = True
    ) -> None:
        """`shared=False` leaves every workflow to itself: no value is learned."""
        self.columns, self.start, self.shared = columns, start, shared
        self._prior = prior or Prior()
        self._alpha: np.ndarray | None = None

    def _weights_prior(self) -> tuple[np.ndarray, np.ndarray]:
        mean, variance = np.zeros(FEATURES), np.full(FEATURES, UNKNOWN_SD**2)
        for name, column in self.columns.index.items():
            if name in self._prior.mean:
                mean[column % FEATURES] = self._prior.mean[name]
                variance[column % FEATURES] = self._prior.variance[name]
        return mean, variance

    def fit(self, seen: np.ndarray, gains: np.ndarray, noise: np.ndarray) -> None:
        """`seen` [workflows, features], what each gained as measured, and that measurement's variance."""
        self._mean, self._variance = self._weights_prior()
        self._own = OWN_SD**2
        if not self.shared:
            self._mean, self._variance = np.zeros(FEATURES), np.zeros(FEATURES)
            self._own = (3 * OWN_SD) ** 2
        used = max(1, min(len(self.columns.index), FEATURES))
        self._used = used
        self._x = (seen - self.start)[:, :used]
        scaled = self._x * self._variance[:used]
        self._own_rows = (np.abs(self._x).sum(1) > 0) * self._own  # of the start's gain there is no doubt
        kernel = scaled @ self._x.T + np.diag(self._own_rows)
        self._inverse = np.linalg.inv(kernel + np.diag(noise) + 1e-9 * np.eye(len(noise)))
        self._alpha = self._inverse @ (gains - self._x @ self._mean[:used])
        self._scaled, self._kernel = scaled, kernel

    def weights(self) -> np.ndarray:
        """β as it is believed now, [features]."""
        assert self._alpha is not None
        found = np.zeros(FEATURES)
        found[: self._used] = self._mean[: self._used] + self._scaled.T @ self._alpha
        return found

    def tried(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of the fitted workflows' gains, their own runs counted."""
        assert self._alpha is not None
        mean = self._x @ self._mean[: self._used] + self._kernel @ self._alpha
        left = np.einsum("ij,jk,ik->i", self._kernel, self._inverse, self._kernel)
        return mean, np.sqrt(np.maximum(np.diag(self._kernel) - left, 1e-12))

    def untried(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The same of workflows that never ran, [workflows, features]."""
        assert self._alpha is not None
        x = (rows - self.start)[:, : self._used]
        cross = (x * self._variance[: self._used]) @ self._x.T
        mean = x @ self._mean[: self._used] + cross @ self._alpha
        alone = (x**2) @ self._variance[: self._used] + self._own
        left = np.einsum("ij,jk,ik->i", cross, self._inverse, cross)
        return mean, np.sqrt(np.maximum(alone - left, 1e-12))
