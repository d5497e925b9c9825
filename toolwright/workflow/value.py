"""The value of a workflow: what is believed of its score before and after it ran.

    gain(w) = β · (φ(w) − φ(start)) + δ_w,   β ~ N(m, S),   δ_w ~ N(0, τ²)

A Bayesian linear model over features φ of the graph, with a term of its own for each workflow. Within a
search, a run of one workflow informs all that resemble it; m and S come from earlier searches.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from toolwright.workflow.graph import refs_of
from toolwright.workflow.operators import TASK
from toolwright.workflow.pool import ExperiencePool
from toolwright.workflow.program import Workflow

FEATURES = 256  # columns; further names share them


def features(workflow: Workflow) -> dict[str, float]:
    """The features of a workflow: its operators, edges, prompts, width and depth."""
    found: dict[str, float] = {}
    for node in workflow.live:
        name = node.operator
        found[f"has {name}"] = 1.0
        found[f"more {name}"] = min(2.0, found.get(f"more {name}", -1.0) + 1.0)
        if node.repeat > 1:
            found[f"repeat {name}"] = float(np.log2(node.repeat))
        if node.prompt:
            found[f"prompt {name} {workflow.prompts.get(node.prompt, '')[:40]}"] = 1.0
        for ref in node.refs:
            source = ref.node if ref.node == TASK else workflow.by_name[ref.node].operator
            found[f"edge {source}>{name}"] = 1.0
    for ref in refs_of(workflow.output):
        if ref.node != TASK:
            found[f"last {workflow.by_name[ref.node].operator}"] = 1.0
    found["depth"] = workflow.depth / 4
    found["calls"] = float(np.log2(1 + workflow.calls)) / 4
    return found


@dataclass
class Columns:
    """The column of each feature, assigned at its first use."""

    index: dict[str, int] = field(default_factory=dict)

    def row(self, found: Mapping[str, float]) -> np.ndarray:
        row = np.zeros(FEATURES)
        for name, value in found.items():
            row[self.index.setdefault(name, len(self.index)) % FEATURES] += value
        return row


RUN_SD = 0.45  # of one run's score around the workflow's own, until there is data
TASK_WEIGHT = 0.5  # runs that the prior of a task's difficulty counts for


@dataclass(frozen=True)
class Measurement:
    """Measured gains over the first workflow, their variances, and the first workflow's score."""

    gains: np.ndarray
    noise: np.ndarray
    start: float
    start_sd: float


def measure(runs: Sequence[Iterable[tuple[str, float]]]) -> Measurement:
    """Estimate gains from scores by task, one row a workflow; the first row is the start. Tasks differ in
    difficulty, so each workflow is compared with the others on the tasks that it ran on.

    score = task + gain"""
    row, task, score = [], [], []
    tasks: dict[str, int] = {}
    for number, mine in enumerate(runs):
        for name, value in mine:
            row.append(number)
            task.append(tasks.setdefault(name, len(tasks)))
            score.append(value)
    of, on, got = np.array(row), np.array(task), np.array(score)
    count = np.bincount(of, minlength=len(runs)).astype(float)
    a_task = np.bincount(on, minlength=len(tasks))
    gains = np.zeros(len(runs))
    for _ in range(12):
        above = got - gains[of]
        difficulty = (np.bincount(on, above) + TASK_WEIGHT * above.mean()) / (a_task + TASK_WEIGHT)
        gains = np.bincount(of, got - difficulty[on], minlength=len(runs)) / np.maximum(count, 1)
        gains = np.where(count > 0, gains - gains[0], 0.0)
    residual = got - difficulty[on] - gains[of]
    # A prior of 8 runs with the usual spread: a handful of equal scores is no certainty.
    spread = (residual @ residual + 8 * RUN_SD**2) / (max(1, len(got) - len(runs)) + 8)
    noise = spread / np.maximum(count, 1e-3) + 0.5 * spread / count[0]
    noise[0] = 1e-6  # the start's gain over itself is 0
    return Measurement(gains, noise, float(difficulty.mean()), float(np.sqrt(spread / count[0])))


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
        """Fit a ridge regression to earlier searches. The difference between data sets is part of the noise
        and of the variance of known features."""
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
    """For each workflow that was tried: the start, the workflow, its gain and its runs."""
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
    """The posterior of gains over the start, for workflows that ran and for any other."""

    def __init__(
        self, columns: Columns, start: np.ndarray, *, prior: Prior | None = None, shared: bool = True
    ) -> None:
        """With `shared=False` every workflow is estimated by itself: no value is learned."""
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
        """Fit to `seen` [workflows, features], the measured gains, and the variances of the measurements."""
        self._mean, self._variance = self._weights_prior()
        self._own = OWN_SD**2
        if not self.shared:
            self._mean, self._variance = np.zeros(FEATURES), np.zeros(FEATURES)
            self._own = (3 * OWN_SD) ** 2
        used = max(1, min(len(self.columns.index), FEATURES))
        self._used = used
        self._x = (seen - self.start)[:, :used]
        scaled = self._x * self._variance[:used]
        self._own_rows = (np.abs(self._x).sum(1) > 0) * self._own  # the start's gain is known
        kernel = scaled @ self._x.T + np.diag(self._own_rows)
        self._inverse = np.linalg.inv(kernel + np.diag(noise) + 1e-9 * np.eye(len(noise)))
        self._alpha = self._inverse @ (gains - self._x @ self._mean[:used])
        self._scaled, self._kernel = scaled, kernel

    def weights(self) -> np.ndarray:
        """The posterior mean of β, [features]."""
        assert self._alpha is not None
        found = np.zeros(FEATURES)
        found[: self._used] = self._mean[: self._used] + self._scaled.T @ self._alpha
        return found

    def tried(self) -> tuple[np.ndarray, np.ndarray]:
        """Posterior mean and standard deviation of the fitted workflows' gains."""
        assert self._alpha is not None
        mean = self._x @ self._mean[: self._used] + self._kernel @ self._alpha
        left = np.einsum("ij,jk,ik->i", self._kernel, self._inverse, self._kernel)
        return mean, np.sqrt(np.maximum(np.diag(self._kernel) - left, 1e-12))

    def untried(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The same for workflows that never ran, [workflows, features]."""
        assert self._alpha is not None
        x = (rows - self.start)[:, : self._used]
        cross = (x * self._variance[: self._used]) @ self._x.T
        mean = x @ self._mean[: self._used] + cross @ self._alpha
        alone = (x**2) @ self._variance[: self._used] + self._own
        left = np.einsum("ij,jk,ik->i", cross, self._inverse, cross)
        return mean, np.sqrt(np.maximum(alone - left, 1e-12))
