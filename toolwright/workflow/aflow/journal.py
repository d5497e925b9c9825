"""A search in AFlow's folder: one of AFlow's to go on from, and ours written there as it goes."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from toolwright.failures import UserError
from toolwright.trajectory import Task
from toolwright.workflow.aflow.folder import Folder, FolderRound, RoundExperience
from toolwright.workflow.program import Workflow
from toolwright.workflow.run import problem_of
from toolwright.workflow.search_loop import WorkflowSearch
from toolwright.workflow.tree import Candidate, Proposal

WRONG = 0.5  # a score below it is an answer for the log
MOST_LOGGED = 50


@dataclass(frozen=True)
class Beginning:
    """What a search starts from: a workflow, and those of an earlier search that are tried first."""

    start: Workflow
    carried: Sequence[Proposal] = ()
    rounds: Sequence[int] = (1,)  # of the start and of the carried, as AFlow counts
    last: int = 1  # the highest round there is
    folder: Path | None = None  # AFlow's own, where that is gone on with

    @classmethod
    def of(cls, folder: Folder, *, most: int) -> Beginning:
        """The first round that can be expressed, and the `most` that scored best among the others."""
        rounds = folder.rounds()
        found = [(round, round.workflow) for round in rounds if round.workflow is not None]
        if not found:
            why = rounds[0].refusal if rounds else "it has no round_N/graph.py"
            raise UserError(f"{folder.path} holds no round to go on from: {why}")
        (first, start), *others = found
        known, carried = {start.meaning}, list[tuple[int, Proposal]]()
        for round, workflow in sorted(others, key=lambda one: (-(one[0].score or 0.0), one[0].number)):
            if workflow.meaning not in known and len(carried) < most:
                known.add(workflow.meaning)
                told = round.experience.modification if round.experience is not None else "as it was"
                carried.append((round.number, Proposal(f"round {round.number}: {told}", workflow)))
        return cls(
            start,
            [proposal for _, proposal in carried],
            [first.number, *(number for number, _ in carried)],
            max(round.number for round in rounds),
            folder.path,
        )


class Journal:
    """`path` is the folder `workflows`. A candidate is a round: those that a search began with keep their
    numbers, the others follow. What AFlow had written stays beside them."""

    def __init__(self, path: Path, beginning: Beginning, *, data_set: str, tasks: Sequence[Task]) -> None:
        self.folder, self.beginning = Folder(path, data_set=data_set), beginning
        self.tasks = {task.id: task for task in tasks}
        if beginning.folder is not None and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=path.parent, prefix="workflows.") as partial:
                copied = shutil.copytree(beginning.folder, Path(partial) / "workflows")
                os.replace(copied, path)

    def number(self, candidate: int) -> int:
        known = self.beginning.rounds
        return (
            known[candidate] if candidate < len(known) else self.beginning.last + 1 + candidate - len(known)
        )

    def write(self, search: WorkflowSearch, candidates: Iterable[int]) -> None:
        """As they are known now. What was refused is no round: it could not be run there either."""
        ran = [search.tree[number] for number in dict.fromkeys(candidates)]
        self.folder.write(*(self._round(search, one) for one in ran if one.runs and not one.failure))

    def _round(self, search: WorkflowSearch, candidate: Candidate) -> FolderRound:
        score = search.selection.score(candidate)[0]
        experience = None
        if candidate.parent is not None and candidate.number >= len(self.beginning.rounds):
            before = search.selection.score(search.tree[candidate.parent])[0]
            experience = RoundExperience(self.number(candidate.parent), candidate.edit, before, score)
        return FolderRound(
            self.number(candidate.number),
            candidate.workflow,
            (score,),
            candidate.cost,
            experience,
            self._log(candidate),
            total_cost=sum(run.cost for run in candidate.runs.values()),
        )

    def _log(self, candidate: Candidate) -> list[object]:
        """Tasks that it got wrong, for whoever proposes the next change."""
        wrong = [(task, run) for (task, _), run in sorted(candidate.runs.items()) if run.score < WRONG]
        return [
            {
                "question": problem_of(self.tasks[task]),
                "right_answer": self.tasks[task].ground_truth,
                "score": run.score,
                "failure": run.failure,
            }
            for task, run in wrong[:MOST_LOGGED]
        ]
