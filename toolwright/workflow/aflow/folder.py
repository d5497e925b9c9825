"""AFlow's folder of a search: `round_N/{graph.py, prompt.py, log.json, experience.json}`, `results.json` and
`processed_experience.json`, read to go on from or to look at, and written so that AFlow can.
"""

from __future__ import annotations

import datetime
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolwright.failures import UserError
from toolwright.workflow.aflow.read import NotExpressible, prompts_of, read
from toolwright.workflow.aflow.write import write
from toolwright.workflow.program import Workflow

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
    """How a round came to be, and what came of it."""

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
        """Rounds and what follows from them; one that is there already is written anew, but for what is not
        told of it here: a log, an experience."""
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
            raise UserError(f"{self.path / 'results.json'} is no list of rounds")
        return found

    def _round(self, number: int, results: Sequence[Mapping[str, Any]]) -> FolderRound:
        folder = self.path / f"round_{number}"
        workflow, refusal = None, ""
        try:
            source = folder / "prompt.py"
            prompts = source.read_text() if source.is_file() else ""
            prompts_of(prompts, where=str(source))
            workflow = read((folder / "graph.py").read_text(), prompts, where=str(folder / "graph.py"))
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
        raise UserError(f"{path} is no JSON: {error}") from None


def _put_json(path: Path, value: Any) -> None:
    _put(path, json.dumps(value, indent=4, ensure_ascii=False, default=str))


def _put(path: Path, text: str) -> None:
    """Whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text)
    os.replace(partial, path)
