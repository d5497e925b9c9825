"""AFlow's folder of a search, read to continue it and written so that AFlow can: `results.json`,
`processed_experience.json` and `round_N/{graph.py, prompt.py, log.json, experience.json}`."""

from __future__ import annotations

import datetime
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolwright.failures import UserError
from toolwright.trajectory import Task
from toolwright.workflow.aflow.read import NotExpressible, read_file
from toolwright.workflow.aflow.write import write
from toolwright.workflow.interpreter import problem_of
from toolwright.workflow.program import Workflow
from toolwright.workflow.search_loop import WRONG, WorkflowSearch
from toolwright.workflow.tree import Candidate, Proposal

# As AFlow calls the data sets, in its folders and imports.
NAMES = {
    "gsm8k": "GSM8K",
    "math": "MATH",
    "humaneval": "HumanEval",
    "mbpp": "MBPP",
    "hotpotqa": "HotpotQA",
    "drop": "DROP",
}


def named(data_set: str) -> str:
    """A data set as AFlow calls it; any other by a name that Python can import."""
    return NAMES.get(data_set) or re.sub(r"\W", "_", Path(data_set).stem)


@dataclass(frozen=True)
class RoundExperience:
    """The change that made a round, and its result."""

    father: int
    modification: str
    before: float
    after: float | None = None

    @property
    def succeeded(self) -> bool:
        return self.after is not None and self.after > self.before


@dataclass(frozen=True)
class FolderRound:
    """One round. Where its Python cannot be expressed, `refusal` says why and there is no workflow."""

    number: int
    workflow: Workflow | None
    scores: tuple[float, ...] = ()  # one for each time it was evaluated
    average_cost: float | None = None  # US dollars for a task
    experience: RoundExperience | None = None
    log: list[Any] = field(default_factory=list)  # answers that were wrong, with what was expected
    refusal: str = ""
    total_cost: float | None = None  # US dollars for all that was run of it

    @property
    def score(self) -> float | None:
        return sum(self.scores) / len(self.scores) if self.scores else None


class Folder:
    """`path` is the folder `workflows`, or the one it lies in."""

    def __init__(self, path: str | Path, *, data_set: str = "") -> None:
        path = Path(path)
        inside = path / "workflows"
        self.path = inside if inside.is_dir() and path.name != "workflows" else path
        self.data_set = data_set or (self.path.parent.name if self.path.name == "workflows" else path.name)

    def rounds(self) -> list[FolderRound]:
        """Every round that has a graph, by number; several evaluations of one are its scores."""
        if not self.path.is_dir():
            raise UserError(f"no such folder: {self.path}; expected AFlow's `workflows`, with round_1 in it")
        results = self._results()
        return [self._round(number, results) for number in self._numbers()]

    def write(self, *rounds: FolderRound) -> None:
        """Write rounds and the files that follow from them. An existing round is replaced, except for a log
        or an
        experience that is not given here."""
        for round in rounds:
            self._write(round)
        written = {round.number for round in rounds}
        others = [entry for entry in self._results() if entry.get("round") not in written]
        now = datetime.datetime.now().isoformat(sep=" ")
        entries = []
        for round in rounds:
            # What is not known is left out rather than called 0.
            costs = {"avg_cost": round.average_cost, "total_cost": round.total_cost}
            known = {name: cost for name, cost in costs.items() if cost is not None}
            entries += [
                {"round": round.number, "score": score, **known, "time": now} for score in round.scores
            ]
        results = sorted([*others, *entries], key=lambda entry: int(entry.get("round") or 0))
        _put_json(self.path / "results.json", results)
        _put_json(self.path / "processed_experience.json", self._processed())

    def _write(self, round: FolderRound) -> None:
        if round.workflow is None:
            raise UserError(f"round {round.number} has no workflow to write")
        folder = self.path / f"round_{round.number}"
        folder.mkdir(parents=True, exist_ok=True)
        graph, prompts = write(round.workflow, data_set=self.data_set, round=round.number)
        _put(folder / "graph.py", graph)
        _put(folder / "prompt.py", prompts)
        _put(folder / "__init__.py", "")
        if round.log:
            _put_json(folder / "log.json", round.log)
        if round.experience is not None:
            _put_json(folder / "experience.json", _told(round.experience))

    def _numbers(self) -> list[int]:
        found = (re.fullmatch(r"round_(\d+)", entry.name) for entry in self.path.iterdir() if entry.is_dir())
        numbers = sorted(int(match[1]) for match in found if match)
        return [number for number in numbers if (self.path / f"round_{number}" / "graph.py").is_file()]

    def _results(self) -> list[dict[str, Any]]:
        found = _get_json(self.path / "results.json", [])
        if not isinstance(found, list):
            raise UserError(f"{self.path / 'results.json'} is not a list of rounds")
        return found

    def _round(self, number: int, results: Sequence[Mapping[str, Any]]) -> FolderRound:
        folder = self.path / f"round_{number}"
        workflow, refusal = None, ""
        try:
            workflow = read_file(folder / "graph.py")
        except NotExpressible as error:
            refusal = str(error)
        own = [entry for entry in results if entry.get("round") == number]
        costs, totals = (
            [float(entry[name]) for entry in own if entry.get(name) is not None]
            for name in ("avg_cost", "total_cost")
        )
        log = _get_json(folder / "log.json", [])
        return FolderRound(
            number,
            workflow,
            tuple(float(entry["score"]) for entry in own),
            sum(costs) / len(costs) if costs else None,
            self._experience(number),
            log if isinstance(log, list) else [log],
            refusal,
            sum(totals) if totals else None,
        )

    def _experience(self, number: int) -> RoundExperience | None:
        told = _get_json(self.path / f"round_{number}" / "experience.json", None)
        if not isinstance(told, dict) or "father node" not in told:
            return None
        after = told.get("after")
        return RoundExperience(
            int(told["father node"]),
            str(told.get("modification", "")),
            float(told.get("before") or 0.0),
            None if after is None else float(after),
        )

    def _processed(self) -> dict[str, Any]:
        """By father: its score, and what its children changed, sorted by whether that was better."""
        processed: dict[str, Any] = {}
        for number in self._numbers():
            experience = self._experience(number)
            if experience is None:
                continue
            of_father = processed.setdefault(
                str(experience.father), {"score": experience.before, "success": {}, "failure": {}}
            )
            kind = "success" if experience.succeeded else "failure"
            told = {"modification": experience.modification, "score": experience.after}
            of_father[kind][str(number)] = told
        return processed


def _told(experience: RoundExperience) -> dict[str, Any]:
    return {
        "father node": experience.father,
        "modification": experience.modification,
        "before": experience.before,
        "after": experience.after,
        "succeed": experience.succeeded,
    }


def _get_json(path: Path, otherwise: Any) -> Any:
    if not path.is_file() or path.stat().st_size == 0:
        return otherwise
    try:
        return json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not JSON: {error}") from None


def _put_json(path: Path, value: Any) -> None:
    _put(path, json.dumps(value, indent=4, ensure_ascii=False, default=str))


def _put(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text)
    os.replace(partial, path)


MOST_LOGGED = 50


@dataclass(frozen=True)
class SearchStart:
    """What a search starts from: a workflow, and those of an earlier search that are tried first."""

    start: Workflow
    carried: Sequence[Proposal] = ()
    rounds: Sequence[int] = (1,)  # of the start and of the carried, as AFlow counts
    last: int = 1  # the highest round there is
    folder: Path | None = None  # AFlow's own, where that is gone on with

    @classmethod
    def of(cls, folder: Folder, *, most: int) -> SearchStart:
        """The first round that can be expressed, and the `most` that scored best among the others."""
        rounds = folder.rounds()
        found = [(round, round.workflow) for round in rounds if round.workflow is not None]
        if not found:
            why = rounds[0].refusal if rounds else "it has no round_N/graph.py"
            raise UserError(f"{folder.path} holds no round to continue from: {why}")
        (first, start), *others = found
        known, carried = {start.fingerprint}, list[tuple[int, Proposal]]()
        for round, workflow in sorted(others, key=lambda one: (-(one[0].score or 0.0), one[0].number)):
            if workflow.fingerprint not in known and len(carried) < most:
                known.add(workflow.fingerprint)
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

    def __init__(self, path: Path, beginning: SearchStart, *, data_set: str, tasks: Sequence[Task]) -> None:
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
        """Write the candidates as they are known now. A refused one is not a round: AFlow could not run it
        either."""
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
        """Tasks that it got wrong, for the proposer of the next change."""
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
