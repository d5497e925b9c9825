"""The search loop: select candidates, run them concurrently, commit them in order, repeat.

A round's decisions depend on what was committed, never on who finished first: the same seed and budget find
the same workflow with any number of workers. A search that is started again over the same pool is the same
search: paid runs are read, not made, until it stands where it was killed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from toolwright.failures import UserError
from toolwright.providers.budget import BudgetSpent
from toolwright.workflow.graph import WorkflowLimits
from toolwright.workflow.pool import Experience, ExperiencePool, Payment
from toolwright.workflow.program import Workflow
from toolwright.workflow.proposers import TriedEdit, WorkflowState
from toolwright.workflow.selection import Selection
from toolwright.workflow.tree import Candidate, Job, Proposal, Run, Tree

WRONG = 0.5  # a score below it is a wrong answer


class Proposer(Protocol):
    """Proposes edits of a state."""

    async def propose(self, state: WorkflowState, again: int) -> Sequence[Proposal]:
        """Edits of the state. `again` counts earlier calls for it."""
        ...


class Runner(Protocol):
    """Makes the runs of candidates and pays for each once. Runs that are missing in its result were not made:
    the cost limit left no money for them."""

    async def run(self, workflow: Workflow, runs: Sequence[Run]) -> dict[Run, Payment]: ...


@dataclass(frozen=True)
class CurvePoint:
    """The state of the search after a round."""

    runs: int
    cost: float
    best: int
    score: float  # that the best is expected to have on other tasks


class WorkflowSearch:
    """A search and, when `go` returns, its result."""

    def __init__(
        self,
        *,
        name: str,
        setting: str,
        kind: str,
        start: Workflow,
        selection: Selection,
        proposer: Proposer,
        runner: Runner,
        pool: ExperiencePool | None,
        runs: int,
        seed: int,
        limits: WorkflowLimits | None = None,
        converge: bool = True,
        carried: Sequence[Proposal] = (),
        watch: Callable[[WorkflowSearch, Sequence[Job]], None] | None = None,
    ) -> None:
        """`runs` is the budget; the runner keeps the cost limit."""
        self.name, self.setting, self.kind, self.seed = name, setting, kind, seed
        self.selection, self.proposer, self.runner, self.pool = selection, proposer, runner, pool
        self.runs, self.limits, self.converge, self.watch = runs, limits, converge, watch
        self.tree, self._carried = Tree(start), list(carried)
        self.rounds: list[CurvePoint] = []
        self.why = ""  # it ended: budget, converged or exhausted
        self._asked: dict[int, int] = {}
        self._out_of_money = False  # a call was refused for its cost
        self._keep_workflow(self.tree.start)

    @property
    def best(self) -> Candidate:
        return self.selection.best(self.tree)

    @property
    def expected(self) -> float:
        """What the best is expected to score on other tasks."""
        return self.selection.expected(self.best)

    @property
    def scores(self) -> dict[int, tuple[float, float]]:
        """The estimated score of every candidate that ran: mean and standard deviation."""
        return {c.number: self.selection.score(c) for c in self.tree if c.runs}

    async def go(self) -> Self:
        jobs = [Job(0, self.selection.first_runs(self.tree.start))]
        while not self.why:
            await self._round(jobs)
            if self._left() <= 0 or self._out_of_money:
                self.why = "budget"
            elif self.converge and self.selection.converged(self.tree):
                self.why = "converged"
            else:
                jobs = await self._decide(random.Random(f"{self.seed}/{self.name}/{len(self.rounds)}"))
                self.why = "" if jobs else "budget" if self._out_of_money else "exhausted"
        return self

    async def _decide(self, rng: random.Random) -> list[Job]:
        if self._carried and (jobs := self._carried_jobs()):
            return jobs
        while (wanting := self.selection.unlisted(self.tree, rng)) is not None:
            if not await self._offer(wanting):
                return []
        left = self._left()
        jobs, more = self.selection.races(self.tree, rng)
        while more and len(jobs) < self.selection.width and sum(len(job.runs) for job in jobs) < left:
            candidate = await self._expand(rng)
            if candidate is None:
                break
            jobs.append(self._first(candidate))
            self.selection.look(self.tree)
        return jobs

    def _carried_jobs(self) -> list[Job]:
        """Measure the portfolio and candidates of an earlier search beside the start, before anything new."""
        carried, self._carried = self._carried, []
        taken = [
            self._admitted(self.tree.take_up(self.tree.start, proposal))
            for proposal in carried
            if proposal.fingerprint not in self.tree.by_fingerprint
        ]
        self.selection.look(self.tree)
        return [self._first(one) for one in taken]

    def _first(self, candidate: Candidate) -> Job:
        """The first runs of a candidate; none for a refused one."""
        return Job(candidate.number, () if candidate.failure else self.selection.first_runs(candidate))

    def _admitted(self, candidate: Candidate) -> Candidate:
        problems = [] if candidate.failure else candidate.workflow.problems(self.limits)
        candidate.failure = candidate.failure or (problems[0] if problems else "")
        self._keep_workflow(candidate)
        return candidate

    async def _expand(self, rng: random.Random) -> Candidate | None:
        """Take up a new candidate. The proposer is called only for the state that the selection expands."""
        if len(self.tree) > self.runs:
            return None  # refused candidates cost nothing: a proposer of nothing else must come to an end
        while (parent := self.selection.parent(self.tree, rng)) is not None:
            if self.tree.fresh(parent):
                proposal = self.selection.choose(self.tree, parent, rng)
                return self._admitted(self.tree.take_up(parent, proposal))
            if not await self._offer(parent):
                break
        return None

    async def _offer(self, parent: Candidate) -> bool:
        """Ask the proposer for edits of a candidate; false: the money is spent."""
        again = self._asked.get(parent.number, 0)
        self._asked[parent.number] = again + 1
        try:
            self.tree.offer(parent, await self.proposer.propose(self.state(parent), again))
        except BudgetSpent:
            self._out_of_money = True
        return not self._out_of_money

    async def _round(self, jobs: Sequence[Job]) -> None:
        jobs = self._affordable(jobs)
        running = [job for job in jobs if job.runs]
        made = await asyncio.gather(
            *(self.runner.run(self.tree[j.candidate].workflow, j.runs) for j in running)
        )
        for job, done in zip(running, made, strict=True):
            self.tree[job.candidate].runs.update(done)
            self._out_of_money |= len(done) < len(job.runs)
        if not self.tree.start.runs:
            raise UserError(
                "search.cost does not pay for one run of the start; raise it, or lower executor.max_tokens, "
                "which bounds the cost of a call"
            )
        if not self.rounds:
            self._check_start()
        self.selection.look(self.tree)
        if self.pool is not None:
            self.pool.learn(self._experience(self.tree[job.candidate]) for job in jobs)
        best = self.best
        expected = self.selection.expected(best)
        self.rounds.append(CurvePoint(self.tree.runs, self.tree.cost, best.number, expected))
        if self.watch is not None:
            self.watch(self, jobs)

    def _check_start(self) -> None:
        """Refuse to go on if no run of the start came to an answer: the model or the start is at fault."""
        failures = self.tree.start.failures
        if sum(failures.values()) == len(self.tree.start.runs):
            often = max(failures, key=lambda failure: failures[failure])
            raise UserError(f"all {len(self.tree.start.runs)} runs of the start failed: {often}")

    def _affordable(self, jobs: Sequence[Job]) -> list[Job]:
        """The jobs that fit the budget, the last one cut to what is left. Refused candidates cost nothing."""
        left, kept = self._left(), []
        for job in jobs:
            if left > 0 or not job.runs:
                kept.append(Job(job.candidate, job.runs[: max(0, left)]))
            left -= len(job.runs)
        return kept

    def _left(self) -> int:
        """Runs left in the budget."""
        return self.runs - self.tree.runs

    def state(self, candidate: Candidate) -> WorkflowState:
        score = self.selection.score(candidate)[0] if candidate.runs else None
        tried = [
            TriedEdit(c.edit, self.selection.score(c)[0] - (score or 0.0) if c.runs else 0.0, c.failure)
            for c in (self.tree[number] for number in candidate.children)
        ]
        start = self.selection.score(self.tree.start)[0] if self.tree.start.runs else None
        left = 1 - self.tree.runs / self.runs
        wrong = {task: run.failure for (task, _), run in sorted(candidate.runs.items()) if run.score < WRONG}
        about = (self.setting, self.kind, candidate.workflow, score, start)
        return WorkflowState(*about, tried, max(0.0, left), tuple(wrong.items()))

    def _experience(self, candidate: Candidate) -> Experience:
        parent = self.tree[candidate.parent] if candidate.parent is not None else candidate
        before = self.selection.score(parent)[0] if parent.runs else 0.0
        after = self.selection.score(candidate)[0] if candidate.runs else before
        failures = candidate.failures
        return Experience(
            search=self.name,
            number=candidate.number,
            setting=self.setting,
            anchor=self.state(parent).anchor,
            kind=self.kind,
            edit=candidate.edit,
            parent=parent.fingerprint,
            child=candidate.fingerprint,
            before=before,
            after=after,
            tasks=len(candidate.runs),
            failure=candidate.failure or max(failures, key=lambda f: failures[f], default=""),
        )

    def _keep_workflow(self, candidate: Candidate) -> None:
        if self.pool is not None:
            self.pool.keep_workflow(candidate.fingerprint, candidate.workflow.to_json())
