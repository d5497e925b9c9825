"""The strategies of `toolwright workflow search` at the same cost, in worlds of another make.

    python benchmarks/workflow.py [--seeds 40] [--budgets 250 1000] [--unit runs|calls|money] [--rows …]
    python benchmarks/workflow.py --tables tables.json.gz [--seeds 20]     # of benchmarks/workflow_record.py

Each world (benchmarks/worlds.py) is a simulated executor and a data set, drawn from a seed, of one of three
families: operator synergies, deceptive optima, prompts of hidden worth. They share no code and no features
with the search. A search sees 120 tasks. What it returns is judged on 1,500 test tasks that it never saw.
Compared is the gain over a single call, in points of score, and what a search believes of its best with what
that scores on test tasks.

All strategies have their defaults. AFlow's selection is as published, from a single call and with uniform
proposals, but with each task run once, on 40 tasks: 5 runs of every task would leave it 5 candidates.
`taught` is the guided search whose value begins with the experience of 24 other worlds. On recorded tables it
is taught by four data sets and searches the two others, all 15 pairs in turn: a row of it is the mean of five
searches of a data set, each without another one of the rest. Settings were chosen on worlds 1000 to 1015 and
1100 to 1104 and on deals 4000 to 4011 of the tables, what is taught on deals 20000 to 20041; the benchmark's
are 0 to `--seeds` - 1 of each family.

On recorded tables five more rows need no search: a single call, the single call whose prompt scores highest
on all tasks to search by, self-consistency (votes or a model's choice among 3, 5 or 9) of about the cost of
what the guided search found, the recorded workflow that scores highest on all tasks to search by (`all
known`: what an unlimited budget would choose), and the one that scores highest on the test tasks
(`hindsight`).

With `--unit calls` a budget of 1,000 is as many model calls as 1,000 runs of the portfolio's workflows take
on average, with `--unit money` as many dollars.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import math
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.worlds import FAMILIES, OPERATORS, World, WorldRunner
from toolwright.workflow.config import SearchConfig
from toolwright.workflow.features import features
from toolwright.workflow.pool import ExperiencePool
from toolwright.workflow.portfolio import Portfolio
from toolwright.workflow.prior import Prior, ScoredWorkflows
from toolwright.workflow.program import Workflow, single_call
from toolwright.workflow.proposers import Editor, UniformProposer, WorkflowState
from toolwright.workflow.search_loop import WorkflowSearch
from toolwright.workflow.selection import GuidedSelection, build_selection
from toolwright.workflow.simulate import PROMPTS
from toolwright.workflow.table import RecordedTable, load_tables
from toolwright.workflow.tree import Job, Proposal, Tree

TASKS, AFLOW_TASKS = 120, 40
RECORDED = Path(__file__).with_name("recorded_workflows.yaml")
SELF_CONSISTENCY = ("portfolio: vote of", "portfolio: self-consistency of")
TAUGHT_BY = range(5000, 5008)  # of each family: the worlds whose searches are the experience


@dataclass(frozen=True)
class Row:
    """A strategy with its settings."""

    select: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    portfolio: bool = True
    edits: bool = True
    taught: bool = False
    races: bool = True


ROWS = {
    "portfolio": Row("portfolio"),
    "random": Row("random"),
    "greedy": Row("greedy"),
    "aflow ×1": Row("aflow", {"aflow": {"repeats": 1}}, portfolio=False),
    "guided": Row("guided"),
    "taught": Row("guided", taught=True),
    # Without one part each. Without its value, the guided search is the greedy one.
    "− racing": Row("guided", {"guided": {"first": 40}}, races=False),
    "− shared runs": Row("guided", {"guided": {"first": 40}}),
    "− portfolio": Row("guided", portfolio=False),
    "− edits": Row("guided", edits=False),
}


@dataclass(frozen=True)
class CachedEditor(Editor):
    """Lists the edits of a workflow once in all searches: that takes longer than a search."""

    listed: dict[str, dict[str, Workflow]] = field(default_factory=dict)

    def edits(self, workflow: Workflow) -> dict[str, Workflow]:
        if workflow.fingerprint not in self.listed:
            self.listed[workflow.fingerprint] = super().edits(workflow)
        return self.listed[workflow.fingerprint]


EDITOR = CachedEditor(OPERATORS, PROMPTS)


class OneShare(GuidedSelection):
    """No best-arm identification: a candidate gets its first runs and no others."""

    def races(self, tree: Tree, rng: random.Random) -> tuple[list[Job], bool]:
        super().races(tree, rng)  # it weighs the edits of this round, among which `choose` picks
        return [], True


class NoEdits:
    """A proposer of nothing: the search shares its runs among the portfolio."""

    async def propose(self, state: WorkflowState, again: int) -> Sequence[Proposal]:
        return []


class RecordedWorld:
    """A recorded table whose tasks are dealt by a seed: half to search by, half to be judged by. The model
    was trained on neither."""

    def __init__(self, table: RecordedTable, editor: Editor, seed: int) -> None:
        self.table, self.editor, self.seed = table, editor, seed
        self.setting, self.kind = f"{table.name}-{seed}", table.kind
        self.columns = random.Random(self.setting).sample(list(table.columns), len(table.columns))

    @property
    def family(self) -> str:
        return self.table.name

    @property
    def tasks(self) -> list[str]:
        return [str(place) for place in range(len(self.columns) // 2)]

    def outcome(self, workflow: Workflow, task: int, repeat: int) -> tuple[float, int, float]:
        found = self.table.outcome(workflow, self.columns[task], repeat)
        return found.score, found.calls, found.cost

    def truth(self, workflow: Workflow) -> float:
        return self._mean(workflow, range(len(self.columns) // 2, len(self.columns)))

    def seen(self, workflow: Workflow) -> float:
        """The score on all tasks to search by."""
        return self._mean(workflow, range(len(self.columns) // 2))

    def _mean(self, workflow: Workflow, places: range, field: int = 0) -> float:
        repeats = range(self.table.repeats)
        return statistics.fmean(self.outcome(workflow, place, n)[field] for place in places for n in repeats)

    def without_search(self, found: Workflow) -> dict[str, Workflow]:
        """The rows that need no search, beside what a search has found."""
        listed = Portfolio.load(RECORDED).usable(self.editor)
        whole = range(len(self.columns))
        cost = self._mean(found, whole, 2)
        votes = [p.workflow for p in listed if p.edit.startswith(SELF_CONSISTENCY)]
        return {
            "one call": single_call(),
            "best prompt": max((p.workflow for p in listed if p.workflow.calls == 1), key=self.seen),
            "self-consistency": min(votes, key=lambda vote: abs(self._mean(vote, whole, 2) - cost)),
            "all known": max(self.table.programs.values(), key=self.seen),
            "hindsight": max(self.table.programs.values(), key=self.truth),
        }


class DrawnWorld(World):
    """A simulated world with what a search of it may do."""

    kind, editor = "math", EDITOR
    tasks: ClassVar[list[str]] = [str(number) for number in range(TASKS)]


def worlds(asked: argparse.Namespace, seed: int) -> list[DrawnWorld | RecordedWorld]:
    """The worlds of a seed: one of each family, or of each table."""
    if asked.tables is None:
        return [DrawnWorld(family, seed) for family in FAMILIES]
    return [RecordedWorld(table, editor, seed) for table, editor in tables(asked.tables)]


@cache
def tables(path: Path) -> list[tuple[RecordedTable, Editor]]:
    return [
        (table, CachedEditor(table.operators, table.prompts, known=table.programs.keys()))
        for table in load_tables(path).values()
    ]


def searched(
    world: DrawnWorld | RecordedWorld, row: Row, *, budget: int, unit: str, prior: Prior | None
) -> WorkflowSearch:
    search = SearchConfig.model_validate({**row.settings, "select": row.select, "runs": budget})
    if isinstance(world, RecordedWorld):
        most_repeats = {"repeats": min(search.guided.repeats, world.table.repeats)}
        search = search.model_copy(update={"guided": search.guided.model_copy(update=most_repeats)})
    tasks = world.tasks[: AFLOW_TASKS if row.select == "aflow" else TASKS]
    random.Random(world.setting).shuffle(tasks)
    carried = Portfolio.load().usable(world.editor) if row.portfolio else []
    most = budget * average_cost(world, unit) if unit != "runs" else None
    selection = build_selection(search, tasks, carried=len(carried), prior=prior)
    if not row.races:
        assert isinstance(selection, GuidedSelection)
        own = selection
        selection = OneShare(
            own.settings, tasks, prior=prior, runs=own.runs, opening=own.opening, carried=own.carried
        )

    async def go() -> WorkflowSearch:
        found = WorkflowSearch(
            name=world.setting,
            setting=world.setting,
            kind=world.kind,
            start=single_call(),
            carried=carried,
            selection=selection,
            proposer=UniformProposer(world.editor) if row.edits else NoEdits(),
            runner=WorldRunner(world, unit=unit, most=math.inf if most is None else most),
            pool=None,
            runs=budget if most is None else 5 * budget,
            seed=world.seed,
            converge=False,
        )
        return await found.go()

    return asyncio.run(go())


def average_cost(world: DrawnWorld | RecordedWorld, unit: str) -> float:
    """Of one run of the portfolio's workflows, in calls or dollars."""
    place = {"calls": 1, "money": 2}[unit]
    listed = Portfolio.load().usable(world.editor)
    return statistics.fmean(world.outcome(p.workflow, task, 0)[place] for p in listed for task in range(20))


def experience(folder: Path) -> Prior:
    """What guided searches of other worlds have learned about workflows."""
    pool = ExperiencePool(folder / "pool.db")
    for seed in TAUGHT_BY:
        for family in FAMILIES:
            world = DrawnWorld(family, seed)
            found = searched(world, ROWS["guided"], budget=600, unit="runs", prior=None)
            learn(pool, world, found)
    return Prior.from_pool(pool, DrawnWorld.kind)


def taught_by_tables(path: Path, world: RecordedWorld) -> list[Prior]:
    """What all tables teach but the world's own and one more, for each choice of that one."""
    names = [table.name for table, _ in tables(path) if table.name != world.table.name]
    return [taught_without(path, frozenset({world.table.name, name}), world.kind) for name in names]


@cache
def taught_without(path: Path, apart: frozenset[str], kind: str) -> Prior:
    return Prior.fit([scored(table) for table, _ in tables(path) if table.name not in apart], kind)


def scored(table: RecordedTable) -> ScoredWorkflows:
    """The workflows of a table with their mean score over all runs."""
    means = [sum(map(sum, rows)) / (table.repeats * len(table.columns)) for rows in table.scores]
    found = [features(workflow) for workflow in table.programs.values()]
    runs = [len(table.columns)] * len(means)
    return ScoredWorkflows(table.kind, features(single_call()), list(zip(found, means, runs, strict=True)))


def learn(pool: ExperiencePool, world: DrawnWorld, found: WorkflowSearch) -> None:
    from toolwright.workflow.pool import Experience

    start = found.tree.start.fingerprint
    for one in found.tree:
        if one.number in found.scores:
            pool.keep_workflow(one.fingerprint, one.workflow.to_json())
            before, after = found.scores[0][0], found.scores[one.number][0]
            about = (world.setting, one.number, world.setting, start, world.kind, one.edit, start)
            pool.learn([Experience(*about, one.fingerprint, before, after, len(one.runs))])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=40, help="worlds of each family (40)")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--budgets", type=int, nargs="*", default=[250, 1000])
    parser.add_argument("--unit", choices=["runs", "calls", "money"], default="runs")
    parser.add_argument("--tables", type=Path, help="recorded tables in place of simulated worlds")
    parser.add_argument("--rows", nargs="*", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    logging.disable(logging.WARNING)
    started = time.perf_counter()
    taught = any(ROWS[row].taught for row in asked.rows)
    priors: list[Prior] = []
    if taught and asked.tables is None:
        with tempfile.TemporaryDirectory() as folder:
            priors = [experience(Path(folder))]
    found: dict[str, dict[str, dict[str, tuple[float, float, float]]]] = {}
    for seed in range(asked.first_seed, asked.first_seed + asked.seeds):
        for world in worlds(asked, seed):
            start = world.truth(single_call())
            if taught and isinstance(world, RecordedWorld):
                priors = taught_by_tables(asked.tables, world)
            for budget in asked.budgets:
                rows = found.setdefault(str(budget), {})
                for name in asked.rows:
                    results = [
                        searched(world, ROWS[name], budget=budget, unit=asked.unit, prior=prior)
                        for prior in (priors if ROWS[name].taught else [None])
                    ]
                    result = results[0]
                    score = statistics.fmean(world.truth(one.best.workflow) for one in results)
                    believed = statistics.fmean(one.expected for one in results)
                    rows.setdefault(name, {})[world.setting] = start, score, believed
                    if name == "guided" and isinstance(world, RecordedWorld):
                        for kind, one in world.without_search(result.best.workflow).items():
                            rows.setdefault(kind, {})[world.setting] = (
                                start,
                                world.truth(one),
                                world.seen(one),
                            )
        if asked.json:
            asked.json.write_text(json.dumps(found))
    for budget_said, rows in found.items():
        print(f"\nbudget {budget_said} {asked.unit}, {len(next(iter(rows.values())))} worlds")
        show(rows)
    print(f"{time.perf_counter() - started:.0f} s")


def show(rows: Mapping[str, Mapping[str, tuple[float, float, float]]]) -> None:
    """Gains in points, by family and in all, beside the better of portfolio and AFlow; and the estimates."""
    gains = {name: {w: 100 * (s[1] - s[0]) for w, s in made.items()} for name, made in rows.items()}
    bases = [name for name in ("portfolio", "aflow ×1") if name in gains]
    base = max(bases or gains, key=lambda name: statistics.fmean(gains[name].values()))
    known = list(dict.fromkeys(world.rpartition("-")[0] for world in gains[base]))
    families = "".join(f"{name:>11}" for name in known)
    print(
        f"{'':16}{'gain':>6}{'95 %':>14}{families}{f'of {base}':>14}{'95 %':>14}"
        f"{'over guided':>13}{'95 %':>14}{'believed − test':>17}"
    )
    for name, mine in gains.items():
        low, high = interval([[gain] for gain in mine.values()], mean)
        pairs = [(gain, gains[base][world]) for world, gain in mine.items()]
        below, above = interval(pairs, ratio)
        apart = "".join(
            f"{statistics.fmean(g for w, g in mine.items() if w.startswith(f)):11.1f}" for f in known
        )
        believed = statistics.fmean(100 * (s[2] - s[1]) for s in rows[name].values())
        over = [[gain - gains.get("guided", mine)[world]] for world, gain in mine.items()]
        worst, most = interval(over, mean)
        print(
            f"{name:16}{statistics.fmean(mine.values()):6.1f}{f'{low:.1f} to {high:.1f}':>14}{apart}"
            f"{ratio(pairs):14.2f}{f'{below:.2f} to {above:.2f}':>14}"
            f"{mean(over):+13.2f}{f'{worst:.2f} to {most:.2f}':>14}{believed:+17.1f}"
        )


def mean(rows: Sequence[Sequence[float]]) -> float:
    return statistics.fmean(row[0] for row in rows)


def ratio(pairs: Sequence[Sequence[float]]) -> float:
    """Of mean gains; infinite where the other gained nothing."""
    other = statistics.fmean(p[1] for p in pairs)
    return statistics.fmean(p[0] for p in pairs) / other if other > 0 else math.inf


def interval(rows: Sequence[Sequence[float]], statistic: Any, *, draws: int = 2000) -> tuple[float, float]:
    """Bootstrap over worlds, 95 %."""
    rng = random.Random(0)
    drawn = sorted(statistic(rng.choices(rows, k=len(rows))) for _ in range(draws))
    return drawn[int(0.025 * draws)], drawn[int(0.975 * draws)]


if __name__ == "__main__":
    main()
