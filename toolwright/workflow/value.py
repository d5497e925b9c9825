"""The value of a workflow, learned from experience: what is believed of its score before and after it ran.

    gain(w) = β · (φ(w) − φ(start)) + δ_w,   β ~ N(m, S),   δ_w ~ N(0, τ²)

A Bayesian linear model over features of the graph, with a term of its own for each workflow. Within a search
it shares what one workflow taught with all that resemble it; m and S come from earlier searches, so that one
begins where the others ended.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from toolwright.workflow.features import FEATURES, Columns, features
from toolwright.workflow.measure import RUN_SD
from toolwright.workflow.pool import ExperiencePool
from toolwright.workflow.program import Workflow

OWN_SD = 0.05  # τ: what the features cannot say, in points of score
UNKNOWN_SD = 0.08  # of a feature's weight that few earlier searches have met, or none
KNOWN_SD = 0.05  # of one that many have: data sets differ
BETWEEN_SD = 0.1  # by how much one workflow's gain differs between data sets
ENOUGH = 3  # settings that know a feature


@dataclass(frozen=True)
class Prior:
    """m and S (its diagonal) by feature, from earlier searches."""

    mean: Mapping[str, float] = field(default_factory=dict)
    variance: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def from_pool(cls, pool: ExperiencePool, *, without: Collection[str] = ()) -> Prior:
        """One ridge regression over all that earlier settings saw. How far data sets differ is part of its
        noise, and of what is left open about features that it knows."""
        columns, seen, gains, noise = Columns(), [], [], []
        met: dict[str, set[str]] = {}
        for setting in pool.settings():
            for start, child, gain, tasks in _tried(pool, setting) if setting not in without else ():
                found = features(child)
                seen.append(columns.row(found) - columns.row(features(start)))
                gains.append(gain)
                noise.append(BETWEEN_SD**2 + RUN_SD**2 / tasks)
                for name in found:
                    met.setdefault(name, set()).add(setting)
        if not seen:
            return cls()
        x, weight = np.array(seen), 1 / np.array(noise)
        precision = (x.T * weight) @ x + np.eye(FEATURES) / UNKNOWN_SD**2
        weights = np.linalg.solve(precision, x.T @ (weight * np.array(gains)))
        mean = {name: float(weights[column % FEATURES]) for name, column in columns.index.items()}
        known = {name: KNOWN_SD if len(met.get(name, ())) >= ENOUGH else UNKNOWN_SD for name in mean}
        return cls(mean, {name: sd**2 for name, sd in known.items()})


def _tried(pool: ExperiencePool, setting: str) -> Iterator[tuple[Workflow, Workflow, float, int]]:
    """The start of each search of a setting, a workflow it tried, that one's gain, and the runs behind it."""
    starts: dict[str, tuple[Workflow, float]] = {}
    for one in pool.of_setting(setting):
        program = pool.workflow(one.child)
        if program is None or not one.tasks:
            continue
        workflow = Workflow.from_json(program)
        start, score = starts.setdefault(one.search, (workflow, one.after))
        if workflow is not start:
            yield start, workflow, one.after - score, one.tasks


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
