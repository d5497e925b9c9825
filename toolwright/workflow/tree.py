"""The search tree: every candidate, its parent, its runs, and the edits not tried yet."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from toolwright.failures import UserError
from toolwright.workflow.pool import Payment
from toolwright.workflow.program import Workflow

Run = tuple[str, int]  # a task's id, and which repeat


def identity(workflow: Workflow) -> str:
    """The fingerprint of a workflow; for one that has none, such as a cycle, a hash of its JSON."""
    try:
        return workflow.fingerprint
    except UserError:
        text = json.dumps(workflow.to_json(), sort_keys=True)
        return f"none-{hashlib.blake2b(text.encode(), digest_size=12).hexdigest()}"


@dataclass(frozen=True)
class Proposal:
    """An edit that could be tried, and the workflow it leads to."""

    edit: str
    workflow: Workflow
    failure: str = ""  # why it cannot run: it costs nothing, and is kept

    @cached_property
    def fingerprint(self) -> str:
        return identity(self.workflow)


@dataclass
class Candidate:
    """A node of the tree: a workflow with its runs."""

    number: int
    workflow: Workflow
    parent: int | None = None
    edit: str = ""
    failure: str = ""
    fingerprint: str = ""
    runs: dict[Run, Payment] = field(default_factory=dict)
    children: list[int] = field(default_factory=list)
    options: list[Proposal] = field(default_factory=list)  # not tried yet
    offered: set[str] = field(default_factory=set)  # fingerprints that were ever among them
    exhausted: bool = False  # the proposer has no further edits

    @property
    def mean(self) -> float:
        """Of the scores as they are; a run that failed has scored what its data set gives for that."""
        return sum(run.score for run in self.runs.values()) / len(self.runs) if self.runs else 0.0

    @property
    def cost(self) -> float:
        """Money for one task, on average."""
        return sum(run.cost for run in self.runs.values()) / len(self.runs) if self.runs else 0.0

    @property
    def failures(self) -> dict[str, int]:
        """What went wrong in its runs, and how often."""
        found: dict[str, int] = {}
        for run in self.runs.values():
            if run.failure:
                found[run.failure] = found.get(run.failure, 0) + 1
        return found


class Tree:
    """Candidates by number, the start first. Each fingerprint occurs once."""

    def __init__(self, start: Workflow) -> None:
        self.candidates = [Candidate(0, start, fingerprint=start.fingerprint)]
        self.by_fingerprint = {start.fingerprint: 0}

    def __len__(self) -> int:
        return len(self.candidates)

    def __iter__(self) -> Iterator[Candidate]:
        return iter(self.candidates)

    def __getitem__(self, number: int) -> Candidate:
        return self.candidates[number]

    @property
    def start(self) -> Candidate:
        return self.candidates[0]

    def offer(self, candidate: Candidate, proposals: Iterable[Proposal]) -> None:
        """Add options to a candidate, except those whose fingerprint the tree has already."""
        known, before = self.by_fingerprint.keys(), len(candidate.offered)
        for proposal in proposals:
            if proposal.fingerprint not in known and proposal.fingerprint not in candidate.offered:
                candidate.offered.add(proposal.fingerprint)
                candidate.options.append(proposal)
        candidate.exhausted = len(candidate.offered) == before

    def fresh(self, candidate: Candidate) -> list[Proposal]:
        """The untried options, without those that the tree has reached another way."""
        candidate.options = [o for o in candidate.options if o.fingerprint not in self.by_fingerprint]
        return candidate.options

    def take_up(self, parent: Candidate, proposal: Proposal) -> Candidate:
        made = (proposal.workflow, parent.number, proposal.edit, proposal.failure, proposal.fingerprint)
        child = Candidate(len(self.candidates), *made)
        self.candidates.append(child)
        self.by_fingerprint[proposal.fingerprint] = child.number
        parent.options = [o for o in parent.options if o is not proposal]
        parent.children.append(child.number)
        return child

    @property
    def runs(self) -> int:
        """Runs of all candidates."""
        return sum(len(candidate.runs) for candidate in self.candidates)

    @property
    def cost(self) -> float:
        """Money for all runs."""
        return sum(run.cost for candidate in self.candidates for run in candidate.runs.values())


@dataclass(frozen=True)
class Job:
    """The next runs of a candidate."""

    candidate: int
    runs: tuple[Run, ...]


def schedule(tasks: Sequence[str], repeats: int) -> list[Run]:
    """The order in which every candidate makes its runs, so that any two are compared on the same tasks."""
    return [(task, repeat) for repeat in range(repeats) for task in tasks]


def runs_of(candidate: Candidate) -> list[tuple[str, float]]:
    return [(task, payment.score) for (task, _), payment in sorted(candidate.runs.items())]
