"""What to run next: AFlow's selection, and the guided one, a tree search with a prior and a value."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Protocol

import numpy as np

from toolwright.failures import UserError
from toolwright.workflow.config import Aflow, Guided
from toolwright.workflow.tree import Candidate, Job, Proposal, Run, Tree, next_runs, runs_of
from toolwright.workflow.value import Belief, Columns, Measurement, Prior, features, measure

AFLOW_TOP, AFLOW_STEADY = 3, 5  # of AFlow's test for convergence: the best, and rounds


def well_run(tree: Tree, least: int) -> list[Candidate]:
    """The candidates that ran so often or, if none has, as often as any: a lucky few runs are no best."""
    ran = [c for c in tree if c.runs and not c.failure]
    least = min(least, max(len(c.runs) for c in ran))
    return [c for c in ran if len(c.runs) >= least]


def mixed(scores: Sequence[float], *, alpha: float, mix: float) -> np.ndarray:
    """P(i) = λ/n + (1 − λ) exp(α (s_i − s_max)) / Σ_j exp(α (s_j − s_max)), scores in percent."""
    given = np.asarray(scores, dtype=np.float64)
    weights = np.exp(alpha * (given - given.max()))
    return mix / len(given) + (1 - mix) * weights / weights.sum()


class Selection(Protocol):
    """Decides each round from what is committed alone: no clock, no number of workers."""

    width: int

    def look(self, tree: Tree) -> None:
        """Update the estimates after a commit."""
        ...

    def parent(self, tree: Tree, rng: random.Random) -> Candidate | None:
        """Select the candidate to expand; None: no candidate has an untried edit."""
        ...

    def choose(self, tree: Tree, parent: Candidate, rng: random.Random) -> Proposal:
        """Select one of its options."""
        ...

    def races(self, tree: Tree, left: int, total: int) -> tuple[list[Job], bool]:
        """Further runs of existing candidates, and whether new ones may be taken up in this round."""
        ...

    def first_runs(self, candidate: Candidate) -> tuple[Run, ...]: ...

    def best(self, tree: Tree) -> Candidate: ...

    def converged(self, tree: Tree) -> bool: ...

    def score(self, candidate: Candidate) -> tuple[float, float]:
        """The estimated score: mean and standard deviation."""
        ...


class AflowSelection:
    """AFlow's selection: one candidate a round, on every task, `repeats` times; the highest mean wins."""

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
        enough = well_run(tree, len({task for task, _ in self.order}))
        return max(enough, key=lambda c: (c.mean, -c.number))

    def converged(self, tree: Tree) -> bool:
        """AFlow's own test, as its code runs it (z = 0): the mean of the three best has not changed in five
        rounds."""
        means = [c.mean for c in tree if c.runs and not c.failure]
        if len(means) <= AFLOW_STEADY:
            return False
        tops = [fmean(sorted(means[:end])[-AFLOW_TOP:]) for end in range(1, len(means) + 1)]
        return len(set(tops[-AFLOW_STEADY - 1 :])) == 1

    def score(self, candidate: Candidate) -> tuple[float, float]:
        count = max(1, len(candidate.runs))
        return candidate.mean, math.sqrt(max(candidate.mean * (1 - candidate.mean), 0.01) / count)


CONFIDENT = 1.645  # standard deviations that 95 % of a normal distribution stay below


@dataclass
class _Seen:
    """What the selection knows of a candidate."""

    row: np.ndarray
    mean: float = 0.0  # estimated gain over the start
    sd: float = 0.0
    reach: float = 0.0  # the highest such gain in its subtree
    rows: dict[str, np.ndarray] = field(default_factory=dict)  # features of its options, by fingerprint


class GuidedSelection:
    """PUCT over a tree that widens as it is visited:

    Q(s, a) + c · P(a | s)^p · √N(s) / (1 + N(s, a))

    Q is the highest estimated gain in a child's subtree; for an untried edit, the value's estimate from its
    workflow's features. P is the proposer's prior, relative to a uniform one."""

    def __init__(self, settings: Guided, order: Sequence[Run], tasks: int, prior: Prior | None) -> None:
        self.settings, self.order, self.tasks, self.learned = settings, order, tasks, prior
        self.width = settings.width
        self.columns = Columns()
        self.seen: list[_Seen] = []
        self.measured: Measurement | None = None
        self.belief: Belief | None = None

    def look(self, tree: Tree) -> None:
        for candidate in tree.candidates[len(self.seen) :]:
            self.seen.append(_Seen(self.columns.row(_features(candidate))))
        ran = [c for c in tree if c.runs]
        if not ran or ran[0] is not tree.start:
            return
        self.measured = measure([runs_of(c) for c in ran])
        value = self.settings.value
        self.belief = Belief(
            self.columns, self.seen[0].row, prior=self.learned if value else None, shared=value
        )
        rows = np.array([self.seen[c.number].row for c in ran])
        self.belief.fit(rows, self.measured.gains, self.measured.noise)
        for candidate, mean, sd in zip(ran, *self.belief.tried(), strict=True):
            self.seen[candidate.number].mean, self.seen[candidate.number].sd = float(mean), float(sd)
        for candidate in reversed(tree.candidates):
            mine = self.seen[candidate.number]
            below = [self.seen[number].reach for number in candidate.children if tree[number].runs]
            own = mine.mean if candidate.runs and not candidate.failure else -math.inf
            mine.reach = max([own, *below])

    def parent(self, tree: Tree, rng: random.Random) -> Candidate | None:
        """Descend from the start to the candidate that gets another child."""
        blocked: set[int] = set()
        while tree.start.number not in blocked:
            node = tree.start
            while True:
                may_widen = self._may_widen(tree, node)
                best_child = self._best_child(tree, node, blocked)
                if may_widen and (best_child is None or self._edge(tree, node) >= best_child[0]):
                    return node
                if best_child is None:
                    if tree.fresh(node) or not node.exhausted:
                        return node  # the subtree is exhausted: widen early
                    blocked.add(node.number)
                    break
                node = tree[best_child[1]]
        return None

    def _may_widen(self, tree: Tree, node: Candidate) -> bool:
        if node.failure or not (tree.fresh(node) or not node.exhausted):
            return False
        allowed = math.ceil(self.settings.widening * node.visits**self.settings.widening_power)
        return len(node.children) < allowed

    def _best_child(self, tree: Tree, node: Candidate, blocked: set[int]) -> tuple[float, int] | None:
        scale = self._scale(node)
        found = []
        for number in node.children:
            child = tree[number]
            if child.failure or number in blocked:
                continue
            value = self.seen[number].reach if number < len(self.seen) and child.runs else 0.0
            prior = child.prior**self.settings.prior
            found.append((value + scale * prior / (1 + child.visits), -number))
        return (max(found)[0], -max(found)[1]) if found else None

    def _edge(self, tree: Tree, node: Candidate) -> float:
        """The score of the best untried edit; infinite if the proposer was not called yet."""
        options = tree.fresh(node)
        return float(self._promise(node, options).max()) if options else math.inf

    def _scale(self, node: Candidate) -> float:
        return self.settings.exploration * math.sqrt(node.visits)

    def _promise(self, node: Candidate, options: Sequence[Proposal]) -> np.ndarray:
        rows = self._rows(node, options)
        if self.belief is None:
            mean = sd = np.zeros(len(options))
        else:
            mean, sd = self.belief.untried(rows)
        if not self.settings.value:
            # Without a value, an edit is as good as the candidate it starts from.
            mean = np.full(len(options), self.seen[node.number].mean)
        priors = np.array([o.prior for o in options]) ** self.settings.prior
        return mean + self.settings.optimism * sd + self._scale(node) * priors

    def _rows(self, node: Candidate, options: Sequence[Proposal]) -> np.ndarray:
        cache = self.seen[node.number].rows
        for option in options:
            if option.fingerprint not in cache:
                cache[option.fingerprint] = self.columns.row(_features(option))
        return np.array([cache[option.fingerprint] for option in options])

    def choose(self, tree: Tree, parent: Candidate, rng: random.Random) -> Proposal:
        options = tree.fresh(parent)
        promise = self._promise(parent, options)
        best = np.flatnonzero(promise >= promise.max() - 1e-12)
        return options[int(rng.choice(list(best)))]

    def first_runs(self, candidate: Candidate) -> tuple[Run, ...]:
        if not self.settings.racing:
            return next_runs(candidate, self.order, len(self.order))
        first = self.tasks if candidate.number == 0 else self.settings.first
        return next_runs(candidate, self.order, first)

    def races(self, tree: Tree, left: int, total: int) -> tuple[list[Job], bool]:
        """Candidates that may still be the best run on, in half of a round; in the finals, in all of it."""
        if not self.settings.racing or self.belief is None:
            return [], True
        finals = left <= self.settings.finals * total
        leader = self.best(tree)
        bar = self.seen[leader.number].mean
        alive = [c for c in tree if c.runs and not c.failure and len(c.runs) < len(self.order)]
        reach = {c.number: self._reach(c) for c in alive}
        alive = [c for c in alive if c is leader or reach[c.number] > bar + self.settings.tolerance]
        if finals:
            alive.sort(key=lambda c: (c is not leader, -reach[c.number], c.number))
            jobs = [Job(c.number, self._more(c)) for c in alive[: self.width]]
            # If only the leader is left and has seen every task, the rest goes into new candidates.
            sure = all(c is leader and len(c.runs) >= self.tasks for c in alive)
            return ([], True) if sure else (jobs, False)
        alive.sort(key=lambda c: (-reach[c.number], c.number))
        return [Job(c.number, self._more(c)) for c in alive[: self.width // 2] if c.number], True

    def _reach(self, candidate: Candidate) -> float:
        mine = self.seen[candidate.number]
        return mine.mean + self.settings.z * mine.sd

    def _more(self, candidate: Candidate) -> tuple[Run, ...]:
        target = max(self.settings.first, math.ceil(len(candidate.runs) * self.settings.growth))
        return next_runs(candidate, self.order, target)

    def best(self, tree: Tree) -> Candidate:
        """The highest mean of those that finished their first runs; of equals the one that costs less, then
        the older."""
        enough = well_run(tree, self.settings.first)
        return max(enough, key=lambda c: (self.seen[c.number].mean, -c.cost, -c.number))

    def converged(self, tree: Tree) -> bool:
        """No candidate of the last `patience` is the best, nor can any of them be better by more than the
        tolerance, with 95 % confidence."""
        if self.belief is None or len(tree) <= self.settings.patience:
            return False
        leader = self.best(tree)
        late = tree.candidates[-self.settings.patience :]
        if leader in late:
            return False
        bar = self.seen[leader.number].mean + self.settings.tolerance
        seen = [self.seen[c.number] for c in late if c.runs]
        return all(one.mean + CONFIDENT * one.sd <= bar for one in seen)

    def score(self, candidate: Candidate) -> tuple[float, float]:
        if self.measured is None:
            return candidate.mean, 0.0
        mine = self.seen[candidate.number]
        return self.measured.start + mine.mean, math.hypot(mine.sd, self.measured.start_sd)


def _features(made: Candidate | Proposal) -> dict[str, float]:
    """The features of a workflow; none if it cannot run."""
    try:
        return {} if made.failure else features(made.workflow)
    except UserError:
        return {}
