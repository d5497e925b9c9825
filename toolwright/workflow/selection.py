"""What to run next, by strategy: the portfolio alone, random, greedy or guided edits, or AFlow's."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Protocol

import numpy as np

from toolwright.failures import UserError
from toolwright.workflow.config import Aflow, Guided, SearchConfig
from toolwright.workflow.tree import Candidate, Job, Proposal, Run, Tree, next_runs, runs_of, schedule
from toolwright.workflow.value import Belief, Columns, Prior, features

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

    def races(self, tree: Tree, left: int, total: int, rng: random.Random) -> tuple[list[Job], bool]:
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

    def races(self, tree: Tree, left: int, total: int, rng: random.Random) -> tuple[list[Job], bool]:
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
DRAWS = 64  # of the scores that candidates may have together


FEW = 8  # tasks, of which none are held back


@dataclass(frozen=True)
class RunOrder:
    """The order in which candidates make their runs. While searching, each candidate begins at another task:
    workflows that resemble each other are right and wrong on the same ones, so a part of the data set that
    suits one kind would be taken for the worth of that kind. In the finals all run on the same tasks, which
    no candidate was chosen by."""

    tasks: Sequence[str]
    held_back: Sequence[str]
    repeats: int

    @classmethod
    def of(cls, tasks: Sequence[str], repeats: int, *, finals: float) -> RunOrder:
        kept = len(tasks) - (round(finals * len(tasks)) if len(tasks) >= FEW else 0)
        return cls(tasks[:kept], tasks[kept:], repeats)

    def searching(self, place: int) -> list[Run]:
        start = place % len(self.tasks)
        return schedule([*self.tasks[start:], *self.tasks[:start]], self.repeats)

    @cached_property
    def finals(self) -> list[Run]:
        held, others = schedule(self.held_back, self.repeats), schedule(self.tasks, self.repeats)
        count = len(self.held_back)
        return [*held[:count], *others[: len(self.tasks)], *held[count:], *others[len(self.tasks) :]]


class ArmSelection:
    """Shares runs by best-arm identification: in each round some go to new candidates, the others to those
    that may be the best, by top-two Thompson sampling (https://arxiv.org/abs/1602.08448) over the belief in
    all of them together. The last part of the budget goes to the finals, on tasks of their own.

    Strategies differ in which candidate they edit and how."""

    def __init__(self, settings: Guided, order: RunOrder, *, opening: int | None = None) -> None:
        """`opening`: runs that the start and the portfolio get first."""
        self.settings, self.order, self.width = settings, order, settings.width
        self.chunk = settings.first or LEAST_CHUNK  # runs that a candidate gets at a time
        self.opening = opening or self.chunk
        self.belief: Belief | None = None
        self.rank: dict[int, int] = {}  # a candidate's place in the belief

    def look(self, tree: Tree) -> None:
        ran = [c for c in tree if c.runs and not c.failure]
        if not ran or sum(len(c.runs) for c in ran) == self._looked:
            return
        self._looked = sum(len(c.runs) for c in ran)
        self.rank = {c.number: place for place, c in enumerate(ran)}
        self.belief = Belief(Columns(), {}, shared=False)
        self.belief.fit([{}] * len(ran), [runs_of(c) for c in ran])

    _looked = 0  # runs behind the belief

    def parent(self, tree: Tree, rng: random.Random) -> Candidate | None:
        raise NotImplementedError

    def choose(self, tree: Tree, parent: Candidate, rng: random.Random) -> Proposal:
        options = tree.fresh(parent)
        return rng.choices(options, [o.prior for o in options])[0]

    def _open(self, tree: Tree) -> list[Candidate]:
        """The candidates that can be edited, or the start before it ran."""
        return [c for c in tree if c.number in self.rank and (tree.fresh(c) or not c.exhausted)]

    def first_runs(self, candidate: Candidate) -> tuple[Run, ...]:
        first = self.opening if len(self.rank) <= 1 else self.chunk
        return self._next(candidate, first)

    def _next(self, candidate: Candidate, most: int, *, finals: bool = False) -> tuple[Run, ...]:
        """The next runs of a candidate that it has not made yet."""
        order = self.order.finals if finals else self.order.searching(candidate.number * self.chunk)
        return tuple([run for run in order if run not in candidate.runs][:most])

    def races(self, tree: Tree, left: int, total: int, rng: random.Random) -> tuple[list[Job], bool]:
        if self.belief is None:
            return [], True
        finals = left <= self.settings.finals * total
        slots = self.width if finals else self.width - round(self.settings.explore * self.width)
        jobs = [
            Job(number, runs)
            for number in self._contenders(rng)
            if (runs := self._next(tree[number], self.chunk, finals=finals))
        ][:slots]
        return jobs, not finals or not jobs

    def _contenders(self, rng: random.Random) -> list[int]:
        """Candidates that may be the best, the likeliest first: in turn the best of a draw and the second."""
        assert self.belief is not None
        numbers = list(self.rank)
        found = []
        for place, draw in enumerate(self.belief.draws(DRAWS, rng.getrandbits(32))):
            ranked = np.argsort(-draw, kind="stable")
            found.append(numbers[ranked[min(place % 2, len(ranked) - 1)]])
        return list(dict.fromkeys(found))

    def best(self, tree: Tree) -> Candidate:
        """The highest mean of those that finished their first runs; of equals the one that costs less, then
        the older."""
        return max(well_run(tree, self.opening), key=lambda c: (self.score(c)[0], -c.cost, -c.number))

    def converged(self, tree: Tree) -> bool:
        """No candidate of the last `patience` is the best, nor can any of them be better by more than the
        tolerance, with 95 % confidence."""
        if self.belief is None or len(tree) <= self.settings.patience:
            return False
        leader = self.best(tree)
        late = [c for c in tree.candidates[-self.settings.patience :] if c.number in self.rank]
        if leader in late:
            return False
        mean, cov, first = self.belief.mean, self.belief.cov, self.rank[leader.number]
        for one in (self.rank[c.number] for c in late):
            spread = math.sqrt(max(0.0, cov[one, one] + cov[first, first] - 2 * cov[one, first]))
            if mean[one] + CONFIDENT * spread > mean[first] + self.settings.tolerance:
                return False
        return True

    def score(self, candidate: Candidate) -> tuple[float, float]:
        if self.belief is None or candidate.number not in self.rank:
            return candidate.mean, 0.0
        place = self.rank[candidate.number]
        return float(self.belief.mean[place]), float(self.belief.sd[place])


class RandomSelection(ArmSelection):
    """Any edit of any candidate."""

    def parent(self, tree: Tree, rng: random.Random) -> Candidate | None:
        found = self._open(tree)
        return rng.choice(found) if found else None


class GreedySelection(ArmSelection):
    """Any edit of the best."""

    def parent(self, tree: Tree, rng: random.Random) -> Candidate | None:
        return max(self._open(tree), key=lambda c: (self.score(c)[0], -c.number), default=None)


class GuidedSelection(GreedySelection):
    """The most promising edit of the best: by the value of the workflow that it leads to, optimistic by some
    standard deviations, and the proposer's prior. The value is for edits alone: what is believed of a
    candidate rests on its own runs."""

    def __init__(
        self, settings: Guided, order: RunOrder, *, prior: Prior | None = None, opening: int | None = None
    ) -> None:
        super().__init__(settings, order, opening=opening)
        self.prior, self.columns = prior, Columns()
        self.value: Belief | None = None
        self._known: dict[str, dict[str, float]] = {}  # features by fingerprint

    def look(self, tree: Tree) -> None:
        before = self._looked
        super().look(tree)
        if not self.settings.value or self._looked == before:
            return
        ran = [tree[number] for number in self.rank]
        self.value = Belief(self.columns, self._features(tree.start), prior=self.prior)
        self.value.fit([self._features(c) for c in ran], [runs_of(c) for c in ran])

    def choose(self, tree: Tree, parent: Candidate, rng: random.Random) -> Proposal:
        options = tree.fresh(parent)
        if self.value is None:
            return super().choose(tree, parent, rng)
        mean, sd = self.value.untried([self._features(o) for o in options])
        log_priors = np.log([max(o.prior, 1e-3) for o in options])
        promise = mean + self.settings.optimism * sd + self.settings.prior * log_priors
        best = np.flatnonzero(promise >= promise.max() - 1e-12)
        return options[int(rng.choice(list(best)))]

    def _features(self, made: Candidate | Proposal) -> Mapping[str, float]:
        if made.fingerprint not in self._known:
            self._known[made.fingerprint] = _features(made)
        return self._known[made.fingerprint]


class PortfolioSelection(ArmSelection):
    """The portfolio alone: each of its workflows gets the same share of the budget, and none is edited."""

    def parent(self, tree: Tree, rng: random.Random) -> Candidate | None:
        return None

    def races(self, tree: Tree, left: int, total: int, rng: random.Random) -> tuple[list[Job], bool]:
        jobs = [Job(n, self._next(tree[n], self.chunk, finals=True)) for n in self.rank]
        return [job for job in jobs if job.runs], False


PLAIN: Mapping[str, type[ArmSelection]] = {
    "greedy": GreedySelection,
    "random": RandomSelection,
    "portfolio": PortfolioSelection,
}
LEAST_CHUNK, CHUNKS = 8, 60  # runs of a candidate at a time: so many, or this part of the budget
OPENING, FEWEST = 4, 2  # the opening's part of the budget, and the fewest runs of a workflow in it


def build_selection(
    search: SearchConfig, tasks: Sequence[str], *, carried: int, prior: Prior | None
) -> Selection:
    """The strategy `search.select` over tasks in this order. The opening, in which the start and what is
    carried in run first, takes a quarter of the budget."""
    if search.select == "aflow":
        return AflowSelection(search.aflow, schedule(tasks, search.aflow.repeats))
    settings = search.guided
    chunk = settings.first or max(LEAST_CHUNK, search.runs // CHUNKS)
    settings = settings.model_copy(update={"first": chunk})
    opening = max(FEWEST, min(chunk, search.runs // (OPENING * (carried + 1))))
    order = RunOrder.of(tasks, settings.repeats, finals=settings.finals)
    if search.select == "guided":
        return GuidedSelection(settings, order, prior=prior, opening=opening)
    return PLAIN[search.select](settings, order, opening=opening)


def _features(made: Candidate | Proposal) -> dict[str, float]:
    """The features of a workflow; none if it cannot run."""
    try:
        return {} if made.failure else features(made.workflow)
    except UserError:
        return {}
