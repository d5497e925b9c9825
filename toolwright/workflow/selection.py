"""What to run next, by strategy: the portfolio alone, random, greedy or guided edits, or AFlow's."""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Mapping, Sequence
from statistics import fmean

import numpy as np

from toolwright.failures import UserError
from toolwright.workflow.config import Aflow, Guided, SearchConfig
from toolwright.workflow.features import Columns, Features, features
from toolwright.workflow.prior import Prior
from toolwright.workflow.tree import Candidate, Job, Proposal, Run, Tree, runs_of, schedule
from toolwright.workflow.value import EDITED, Belief, knowledge_gradient

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


class Selection:
    """Decides each round from what is committed alone: no clock, no number of workers."""

    width: int

    def look(self, tree: Tree) -> None:
        """Update the estimates after a commit."""

    def parent(self, tree: Tree, rng: random.Random) -> Candidate | None:
        """Select the candidate to expand; None: no candidate has an untried edit."""
        raise NotImplementedError

    def choose(self, tree: Tree, parent: Candidate, rng: random.Random) -> Proposal:
        """Select one of its options."""
        return rng.choice(tree.fresh(parent))

    def unlisted(self, tree: Tree, rng: random.Random) -> Candidate | None:
        """A candidate whose edits have to be known before the round is decided."""
        return None

    def races(self, tree: Tree, rng: random.Random) -> tuple[list[Job], bool]:
        """Further runs of existing candidates, and whether new ones may be taken up in this round."""
        raise NotImplementedError

    def first_runs(self, candidate: Candidate) -> tuple[Run, ...]:
        raise NotImplementedError

    def best(self, tree: Tree) -> Candidate:
        raise NotImplementedError

    def converged(self, tree: Tree) -> bool:
        """Whether no better workflow is expected."""
        return False

    def score(self, candidate: Candidate) -> tuple[float, float]:
        """The estimated score: mean and standard deviation."""
        raise NotImplementedError

    def expected(self, best: Candidate) -> float:
        """What the chosen one is expected to score on other tasks."""
        return self.score(best)[0]


class AflowSelection(Selection):
    """AFlow's selection: one candidate a round, on every task, `repeats` times; the highest mean wins."""

    width = 1

    def __init__(self, settings: Aflow, order: Sequence[Run]) -> None:
        self.settings, self.order = settings, order

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

    def races(self, tree: Tree, rng: random.Random) -> tuple[list[Job], bool]:
        return [], True

    def first_runs(self, candidate: Candidate) -> tuple[Run, ...]:
        return tuple(run for run in self.order if run not in candidate.runs)

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


EXPLORE = 0.5  # the part of a round that goes to new candidates, where no value weighs them
LOOKAHEAD = (1, 2, 4, 8)  # chunks of runs: few change no choice, so their worth is the best average of these


class ArmSelection(Selection):
    """Shares runs by best-arm identification: they go to those whose runs are expected to raise the final
    choice most, by the knowledge gradient over the belief in all candidates together.

    Strategies differ in which candidate they edit and how."""

    def __init__(
        self,
        settings: Guided,
        tasks: Sequence[str],
        *,
        prior: Prior | None = None,
        runs: float = math.inf,
        opening: int | None = None,
        carried: int = 0,
    ) -> None:
        """`prior`: what other data sets teach the guided search. `runs`: the budget. `opening`: runs that the
        start and the `carried` candidates, the portfolio, get first."""
        self.settings, self.tasks, self.width = settings, tasks, settings.width
        self.prior, self.runs, self.carried = prior, runs, carried
        self.chunk = settings.first or LEAST_CHUNK  # runs that a candidate gets at a time
        self.opening = opening or self.chunk
        self.belief: Belief | None = None
        self.rank: dict[int, int] = {}  # a candidate's place in the belief
        self._looked = 0  # runs behind the belief
        self.columns = Columns()
        self._known: dict[str, dict[str, float]] = {}  # features by fingerprint

    def look(self, tree: Tree) -> None:
        ran = [c for c in tree if c.runs and not c.failure]
        if not ran or sum(len(c.runs) for c in ran) == self._looked:
            return
        self._looked = sum(len(c.runs) for c in ran)
        self.rank = {c.number: place for place, c in enumerate(ran)}
        self.belief = self._believed(tree.start, ran)

    def _believed(self, start: Candidate, ran: Sequence[Candidate]) -> Belief:
        """Each candidate by its own runs."""
        belief = Belief(self.columns, {}, shared=False)
        belief.fit([{}] * len(ran), [runs_of(c) for c in ran])
        return belief

    def _open(self, tree: Tree) -> list[Candidate]:
        """The candidates that can be edited, or the start before it ran."""
        return [c for c in tree if c.number in self.rank and (tree.fresh(c) or not c.exhausted)]

    def first_runs(self, candidate: Candidate) -> tuple[Run, ...]:
        first = self.opening if len(self.rank) <= 1 else self.chunk
        return self._next(candidate, first)

    def _next(self, candidate: Candidate, most: int) -> tuple[Run, ...]:
        """The next runs of a candidate that it has not made yet."""
        first = self._first_task(candidate) % len(self.tasks)
        order = schedule([*self.tasks[first:], *self.tasks[:first]], self.settings.repeats)
        return tuple([run for run in order if run not in candidate.runs][:most])

    def _first_task(self, candidate: Candidate) -> int:
        """The start and the portfolio run on the same tasks, on which they are compared best. Each edit
        begins at another task: workflows that resemble each other are right and wrong on the same ones, so a
        part of the data set that suits one kind would be taken for its worth."""
        return 0 if candidate.number <= self.carried else candidate.number * self.chunk

    def races(self, tree: Tree, rng: random.Random) -> tuple[list[Job], bool]:
        if self.belief is None:
            return [], True
        slots = self.width - round(EXPLORE * self.width)
        return self._jobs(tree, np.argsort(-self._worth(tree), kind="stable"), slots), True

    def _worth(self, tree: Tree, options: Sequence[Proposal] = ()) -> np.ndarray:
        """What a run of each candidate and, after them, of each option is expected to add to the score of the
        one that is chosen in the end."""
        assert self.belief is not None
        believed = self.belief.together([self._features(option) for option in options])
        left = max(1, self.runs - tree.runs)
        worth = []
        for chunks in LOOKAHEAD:
            runs = int(min(chunks * self.chunk, left))
            gain = knowledge_gradient(*believed, noise=self.belief.noise, runs=runs)
            worth.append(gain / runs)
        best: np.ndarray = np.max(worth, axis=0)
        return best

    def _jobs(self, tree: Tree, places: Sequence[int] | np.ndarray, most: int) -> list[Job]:
        """The next runs of candidates by their place, without those that have made all."""
        numbers = list(self.rank)
        jobs = (Job(numbers[place], self._next(tree[numbers[place]], self.chunk)) for place in places)
        return [job for job in jobs if job.runs][:most]

    def _features(self, made: Candidate | Proposal) -> Features:
        """What candidates share; nothing."""
        return {}

    def best(self, tree: Tree) -> Candidate:
        """The highest mean of those that finished their first runs; of equals the one that costs less, then
        the older."""
        return max(well_run(tree, self.opening), key=lambda c: (self.score(c)[0], -c.cost, -c.number))

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
    """Edits of the best compete with the candidates for every run: one belief in workflows that ran and in
    those that did not, by what they share. An edit runs only if it may be so much better that finding out is
    worth more than knowing the others better."""

    _untried: dict[str, float]  # what the options of this round are worth, by fingerprint

    def _believed(self, start: Candidate, ran: Sequence[Candidate]) -> Belief:
        belief = Belief(self.columns, self._features(start), prior=self.prior)
        belief.fit([self._features(c) for c in ran], [runs_of(c) for c in ran])
        return belief

    def unlisted(self, tree: Tree, rng: random.Random) -> Candidate | None:
        parent = self.parent(tree, rng)
        return None if parent is None or tree.fresh(parent) else parent

    def races(self, tree: Tree, rng: random.Random) -> tuple[list[Job], bool]:
        parent = self.parent(tree, rng)
        full = len(tree) > self.runs  # the search takes up no more, and the runs left go to those that ran
        options = [] if parent is None or full else tree.fresh(parent)
        ran, untried = np.split(self._worth(tree, options), [len(self.rank)])
        self._untried = {option.fingerprint: worth for option, worth in zip(options, untried, strict=True)}
        ahead = [place for place in np.argsort(-ran, kind="stable") if ran[place] >= untried.max(initial=-1)]
        return self._jobs(tree, ahead, self.width), bool(options)

    def choose(self, tree: Tree, parent: Candidate, rng: random.Random) -> Proposal:
        options = tree.fresh(parent)
        if any(option.fingerprint not in self._untried for option in options):
            found = self._worth(tree, options)[len(self.rank) :]
            self._untried |= {option.fingerprint: worth for option, worth in zip(options, found, strict=True)}
        most = max(self._untried[option.fingerprint] for option in options)
        return rng.choice([o for o in options if self._untried[o.fingerprint] >= most - 1e-12])

    def expected(self, best: Candidate) -> float:
        """The mean, less the standard deviation of its lead over the average candidate: the best was chosen
        for its lead, and those that resemble it were made because of it."""
        mean, _ = self.score(best)
        if self.belief is None or best.number not in self.rank:
            return mean
        lead = np.full(len(self.rank), -1 / len(self.rank))
        lead[self.rank[best.number]] += 1
        return mean - math.sqrt(max(0.0, lead @ self.belief.cov @ lead))

    def _features(self, made: Candidate | Proposal) -> Features:
        """The features of a workflow, none if it cannot run; and whether it is beyond the portfolio."""
        if made.fingerprint not in self._known:
            self._known[made.fingerprint] = {}
            if not made.failure:
                with contextlib.suppress(UserError):
                    self._known[made.fingerprint] = features(made.workflow)
            if self.carried and (isinstance(made, Proposal) or made.number > self.carried):
                self._known[made.fingerprint][EDITED] = 1.0
        return self._known[made.fingerprint]


class PortfolioSelection(ArmSelection):
    """The portfolio alone: each of its workflows gets the same share of the budget, and none is edited."""

    def parent(self, tree: Tree, rng: random.Random) -> Candidate | None:
        return None

    def races(self, tree: Tree, rng: random.Random) -> tuple[list[Job], bool]:
        jobs = [Job(n, self._next(tree[n], self.chunk)) for n in self.rank]
        return [job for job in jobs if job.runs], False


STRATEGIES: Mapping[str, type[ArmSelection]] = {
    "guided": GuidedSelection,
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
    arms = STRATEGIES[search.select]
    return arms(settings, tasks, prior=prior, runs=search.runs, opening=opening, carried=carried)
