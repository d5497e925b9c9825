"""What other data sets teach about the value of a workflow: a mean and a variance for each feature's weight.

    score(d, w) = μ_d + (β + γ_d) · (φ(w) − φ(start)) + δ_dw + ε,
    β_f ~ N(0, a_k),   γ_df ~ N(0, b_k),   δ_dw ~ N(0, o),   k the kind of feature f

A mixed-effects model over data sets d. β is what a feature is worth everywhere, and b_k how much that
differs between data sets: a search on another one begins with β and with the variance b_k + Var(β). The
variances are estimated by expectation maximisation, one for each kind of feature, because few data sets
say little about a single one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from toolwright.workflow.features import Columns, Features, features, kind_of
from toolwright.workflow.pool import ExperiencePool
from toolwright.workflow.program import Workflow, single_call
from toolwright.workflow.table import RecordedTable

RUN_SD = 0.45  # of one run's score around the workflow's own
LEVEL_SD = 0.3  # of a data set's level, μ
FIRST_SD, OWN_SD = 0.05, 0.03  # where the estimates of √a and √b begin, and that of √o
USUAL_SD, USUAL = 0.03, 2.0  # of a kind that few features are of: as if so many had this standard deviation
ROUNDS = 25  # of expectation maximisation


@dataclass(frozen=True)
class ScoredWorkflows:
    """What is known of one data set: the start, and workflows with their score and runs."""

    start: Features
    tried: list[tuple[Features, float, int]]


@dataclass(frozen=True)
class Prior:
    """Mean and variance of each feature's weight, and by kind the variance of one that no data set had."""

    mean: Mapping[str, float] = field(default_factory=dict)
    variance: Mapping[str, float] = field(default_factory=dict)
    unmet: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def from_pool(cls, pool: ExperiencePool, *, without: Collection[str] = ()) -> Prior:
        """Fit to the searches of a pool, apart from those of some settings."""
        return cls.fit([told for name in pool.settings() if name not in without for told in _of(pool, name)])

    @classmethod
    def from_tables(cls, tables: Iterable[RecordedTable]) -> Prior:
        """Fit to recorded tables, a data set each."""
        start = features(single_call())
        known = []
        for table in tables:
            means = [sum(map(sum, rows)) / (table.repeats * len(table.columns)) for rows in table.scores]
            found = [features(workflow) for workflow in table.programs.values()]
            runs = [len(table.columns)] * len(means)
            known.append(ScoredWorkflows(start, list(zip(found, means, runs, strict=True))))
        return cls.fit(known)

    @classmethod
    def fit(cls, known: Sequence[ScoredWorkflows]) -> Prior:
        """Fit to the data sets that are known."""
        if not known:
            return cls()
        columns = Columns()
        for one in known:
            columns.rows([one.start, *(found for found, _, _ in one.tried)])
        names = list(columns.index)
        kinds = sorted({kind_of(name) for name in names})
        model = _Mixed(np.array([kinds.index(kind_of(name)) for name in names]), len(kinds))
        for one in known:
            rows = columns.rows([one.start, *(found for found, _, _ in one.tried)])
            score = np.array([score for _, score, _ in one.tried])
            noise = np.array([RUN_SD**2 / runs for _, _, runs in one.tried])
            model.add(rows[1:] - rows[0], score - score.mean(), noise)
        for _ in range(ROUNDS):
            model.improve()
        return cls(
            dict(zip(names, model.mean.tolist(), strict=True)),
            dict(zip(names, model.variance.tolist(), strict=True)),
            dict(zip(kinds, (model.everywhere + model.between).tolist(), strict=True)),
        )


class _Mixed:
    """The mixed-effects model and its estimates."""

    def __init__(self, kind: np.ndarray, kinds: int) -> None:
        """`kind` [features]: the place of each feature's kind."""
        self.kind = kind
        self.everywhere, self.between = np.full((2, kinds), FIRST_SD**2)  # a and b
        self.own = OWN_SD**2
        self.mean, self.variance = np.zeros((2, len(kind)))
        self.data: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []  # x, scores, noise of each data set

    def add(self, x: np.ndarray, score: np.ndarray, noise: np.ndarray) -> None:
        self.data.append((x, score, noise))

    def improve(self) -> None:
        """One round: the posterior of β and γ under the variances, then the variances under the posterior."""
        everywhere, between = self.everywhere[self.kind], self.between[self.kind]
        precision, vector = np.diag(1 / everywhere), np.zeros(len(self.kind))
        inverses = []
        for x, score, noise in self.data:
            inverse = np.linalg.inv((x * between) @ x.T + np.diag(self.own + noise) + LEVEL_SD**2)
            precision += x.T @ inverse @ x
            vector += x.T @ (inverse @ score)
            inverses.append(inverse)
        cov = np.linalg.inv(precision)
        self.mean = cov @ vector
        squares, met = np.zeros((2, len(self.kind)))
        own, count = 0.0, 0
        for (x, score, _), inverse in zip(self.data, inverses, strict=True):
            rest = inverse @ (score - x @ self.mean)
            gathered = np.einsum("wf,wv,vf->f", x, inverse, x)
            there = np.abs(x).sum(0) > 0
            squares += there * ((between * (x.T @ rest)) ** 2 + between - between**2 * gathered)
            met += there
            own += float(((self.own * rest) ** 2 + self.own - self.own**2 * np.diag(inverse)).sum())
            count += len(score)
        self.own = own / count
        self.between = self._by_kind(squares, met)
        self.everywhere = self._by_kind(self.mean**2 + np.diag(cov), np.ones(len(self.kind)))
        self.variance = self.between[self.kind] + np.diag(cov)

    def _by_kind(self, squares: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Mean squares of each kind's features."""
        total, count = (np.bincount(self.kind, one, len(self.between)) for one in (squares, counts))
        return (total + USUAL * USUAL_SD**2) / (count + USUAL)


def _of(pool: ExperiencePool, setting: str) -> list[ScoredWorkflows]:
    """What the pool has of each search of a data set; the first row of a search is its start."""
    found: dict[str, ScoredWorkflows] = {}
    for one in pool.of_setting(setting):
        program = pool.workflow(one.child)
        if program is None or not one.tasks:
            continue
        row = features(Workflow.from_json(program))
        searched = found.setdefault(one.search, ScoredWorkflows(row, []))
        searched.tried.append((row, one.after, one.tasks))
    return list(found.values())
