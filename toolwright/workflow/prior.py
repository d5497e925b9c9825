"""What other data sets teach about the value of a workflow: mean and covariance of the features' weights.

    score(d, w) = μ_d + β_d · (φ(w) − φ(start)) + δ_dw + ε,   β_d = κ_k + γ_d,
    κ_k ~ N(0, r v),   γ_d ~ N(0, (1 − r) v),   δ_dw ~ N(0, o²)

A mixed-effects model over data sets d, each of a kind k: mathematics, code or questions. Data sets of another
kind teach nothing here: they tell which workflows are bad, which a search soon sees, but not which is best. r
is how much of a weight a kind shares, the likeliest value for the data sets that are known, of all kinds
together.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from toolwright.workflow.features import Columns, Features, features
from toolwright.workflow.pool import ExperiencePool
from toolwright.workflow.program import Workflow

RUN_SD = 0.45  # of one run's score around the workflow's own
LEVEL_SD = 0.3  # of a data set's level, μ
WEIGHT_SD, OWN_SD = 0.056, 0.03  # √v and o
SHARED = tuple(n / 10 for n in range(10))  # values of r that are compared
MOST = 1500  # workflows that teach; of more, those that ran most often


@dataclass(frozen=True)
class ScoredWorkflows:
    """What is known of one data set: the kind of its tasks, the start, and workflows with score and runs."""

    kind: str
    start: Features
    tried: list[tuple[Features, float, int]]


@dataclass(frozen=True)
class Prior:
    """Mean and covariance of the weights of the features that other data sets had."""

    names: Sequence[str] = ()
    mean: Sequence[float] = ()
    cov: Sequence[Sequence[float]] = field(default=(), repr=False)

    def weights(self, columns: Columns) -> tuple[np.ndarray, np.ndarray]:
        """Mean [columns] and covariance [columns, columns] of the weights of all features that there are."""
        mean, cov = np.zeros(len(columns.index)), np.eye(len(columns.index)) * WEIGHT_SD**2
        known = [place for place, name in enumerate(self.names) if name in columns.index]
        if known:
            here = [columns.index[self.names[place]] for place in known]
            mean[here] = np.asarray(self.mean)[known]
            cov[np.ix_(here, here)] = np.asarray(self.cov)[np.ix_(known, known)]
        return mean, cov

    @classmethod
    def from_pool(cls, pool: ExperiencePool, kind: str, *, without: Collection[str] = ()) -> Prior:
        """Fit to the searches of a pool, apart from those of some settings."""
        names = [name for name in pool.settings() if name not in without]
        return cls.fit([one for name in names for one in _of(pool, name)], kind)

    @classmethod
    def fit(cls, known: Sequence[ScoredWorkflows], kind: str) -> Prior:
        """Fit to the data sets that are known, for a search of another one of this kind."""
        if all(one.kind != kind for one in known):
            return cls()
        columns, x, score, noise, place = _rows(known)
        product = WEIGHT_SD**2 * (x @ x.T)
        kinds = np.array([one.kind for one in known])[place]
        same_set, same_kind = (which[:, None] == which for which in (place, kinds))
        rest = np.diag(OWN_SD**2 + noise) + LEVEL_SD**2 * same_set

        def inverse(shared: float) -> np.ndarray:
            return np.linalg.inv(product * (shared * same_kind + (1 - shared) * same_set) + rest)

        def likelihood(shared: float) -> float:
            precision = inverse(shared)
            return float(np.linalg.slogdet(precision)[1] - score @ precision @ score)

        shared = max(SHARED, key=likelihood)
        precision, taught = inverse(shared), shared * WEIGHT_SD**2 * x.T * (kinds == kind)
        cov = WEIGHT_SD**2 * np.eye(x.shape[1]) - taught @ precision @ taught.T
        return cls(list(columns.index), (taught @ (precision @ score)).tolist(), cov.tolist())


def _rows(
    known: Sequence[ScoredWorkflows],
) -> tuple[Columns, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Of all workflows: columns, features less the start's, scores less their mean, the variance of the
    scores, and the place of the data set."""
    columns = Columns()
    rows = [(place, *tried) for place, one in enumerate(known) for tried in one.tried]
    rows = sorted(rows, key=lambda row: -row[3])[:MOST]
    columns.rows([one.start for one in known])
    x = columns.rows([found for _, found, _, _ in rows])
    place = np.array([place for place, *_ in rows])
    x -= columns.rows([one.start for one in known])[place]
    score = np.array([score for *_, score, _ in rows])
    level = np.bincount(place, score) / np.bincount(place)
    noise = np.array([RUN_SD**2 / runs for *_, runs in rows])
    return columns, x, score - level[place], noise, place


def _of(pool: ExperiencePool, setting: str) -> list[ScoredWorkflows]:
    """What the pool has of each search of a data set; the first row of a search is its start."""
    found: dict[str, ScoredWorkflows] = {}
    for one in pool.of_setting(setting):
        program = pool.workflow(one.child)
        if program is None or not one.tasks:
            continue
        row = features(Workflow.from_json(program))
        kind = one.kind.partition(" ")[0]  # pools of 0.1 say more here
        searched = found.setdefault(one.search, ScoredWorkflows(kind, row, []))
        searched.tried.append((row, one.after, one.tasks))
    return list(found.values())
