"""What to run next: what any selection answers, and AFlow's own."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from toolwright.workflow.config import Aflow
from toolwright.workflow.tree import Candidate, Job, Proposal, Run, Tree, next_runs


def mixed(scores: Sequence[float], *, alpha: float, mix: float) -> np.ndarray:
    """P(i) = λ/n + (1 − λ) exp(α (s_i − s_max)) / Σ_j exp(α (s_j − s_max)), scores in percent."""
    given = np.asarray(scores, dtype=np.float64)
    weights = np.exp(alpha * (given - given.max()))
    return mix / len(given) + (1 - mix) * weights / weights.sum()


class Selection(Protocol):
    """Decides rounds from what is committed, and from nothing else: no clock, no number of workers."""

    width: int

    def look(self, tree: Tree) -> None:
        """What is committed has changed."""
        ...

    def parent(self, tree: Tree, rng: random.Random) -> Candidate | None:
        """Whom to take a new candidate from; None: nobody has anything left to try."""
        ...

    def choose(self, tree: Tree, parent: Candidate, rng: random.Random) -> Proposal:
        """Which of its options."""
        ...

    def races(self, tree: Tree, left: int, total: int) -> tuple[list[Job], bool]:
        """Further runs of candidates that are there, and whether new ones may be taken up beside them."""
        ...

    def first_runs(self, candidate: Candidate) -> tuple[Run, ...]: ...

    def best(self, tree: Tree) -> Candidate: ...

    def converged(self, tree: Tree) -> bool: ...

    def score(self, candidate: Candidate) -> tuple[float, float]:
        """What is believed of its score: mean and standard deviation."""
        ...


class AflowSelection:
    """One candidate a round, on every task, `repeats` times; the best is who scored highest."""

    width = 1

    def __init__(self, settings: Aflow, order: Sequence[Run]) -> None:
        self.settings, self.order = settings, order

    def look(self, tree: Tree) -> None:
        pass

    def parent(self, tree: Tree, rng: random.Random) -> Candidate | None:
        ranked = sorted(
            (c for c in tree if c.number and c.runs and not c.failure), key=lambda c: (-c.mean, c.number)
        )
        top = [tree.start, *ranked[: self.settings.top - 1]]
        top = sorted(top, key=lambda c: (-c.mean, c.number))
        chances = mixed([100 * c.mean for c in top], alpha=self.settings.alpha, mix=self.settings.mix)
        alive = [(c, p) for c, p in zip(top, chances, strict=True) if tree.fresh(c) or not c.exhausted]
        if not alive:
            alive = [(c, 1.0) for c in tree if tree.fresh(c) or not c.exhausted]
        if not alive:
            return None
        return rng.choices([c for c, _ in alive], [p for _, p in alive])[0]

    def choose(self, tree: Tree, parent: Candidate, rng: random.Random) -> Proposal:
        options = tree.fresh(parent)
        return rng.choices(options, [o.prior for o in options])[0]

    def races(self, tree: Tree, left: int, total: int) -> tuple[list[Job], bool]:
        return [], True

    def first_runs(self, candidate: Candidate) -> tuple[Run, ...]:
        return next_runs(candidate, self.order, len(self.order))

    def best(self, tree: Tree) -> Candidate:
        ran = [c for c in tree if c.runs and not c.failure]
        return max(ran, key=lambda c: (c.mean, -c.number))

    def converged(self, tree: Tree) -> bool:
        return False

    def score(self, candidate: Candidate) -> tuple[float, float]:
        count = max(1, len(candidate.runs))
        return candidate.mean, math.sqrt(max(candidate.mean * (1 - candidate.mean), 0.01) / count)
