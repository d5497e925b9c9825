"""The strategies of `toolwright workflow search` at the same cost, in worlds of another make.

    python benchmarks/workflow.py [--seeds 40] [--budgets 250 1000] [--unit runs|calls|money] [--rows …]
    python benchmarks/workflow.py --rows guided "guided, policy" --policy FOLDER    # of `workflow policy`

Each world (benchmarks/worlds.py) is a simulated executor and a data set, drawn from a seed, of one of three
families: operator synergies, deceptive optima, prompts of hidden worth. They share no code and no features
with the search. A search sees 120 tasks. What it returns is judged on 1,500 test tasks that it never saw.
Compared is the gain over a single call, in points of score, and what a search believes of its best with what
that scores on test tasks.

All strategies have their defaults. AFlow's selection is as published, from a single call and with uniform
proposals, but with each task run once, on 40 tasks: 5 runs of every task would leave it 5 candidates.
`taught` is the guided search whose value begins with the experience of 24 other worlds. Settings were chosen
on worlds 1000 to 1015; the benchmark's are 0 to `--seeds` - 1 of each family.

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
from pathlib import Path
from typing import Any, ClassVar

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.worlds import FAMILIES, OPERATORS, World, WorldRunner
from toolwright.workflow.config import SearchConfig
from toolwright.workflow.pool import ExperiencePool
from toolwright.workflow.portfolio import Portfolio
from toolwright.workflow.program import Workflow, single_call
from toolwright.workflow.proposers import Editor, UniformProposer
from toolwright.workflow.search_loop import Proposer, SearchBudget, SearchResult, WorkflowSearch
from toolwright.workflow.selection import build_selection
from toolwright.workflow.simulate import PROMPTS
from toolwright.workflow.value import Prior

TASKS, AFLOW_TASKS = 120, 40
TAUGHT_BY = range(5000, 5008)  # of each family: the worlds whose searches are the experience


@dataclass(frozen=True)
class Row:
    """A strategy with its settings."""

    select: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    portfolio: bool = True
    taught: bool = False
    policy: bool = False


ROWS = {
    "portfolio": Row("portfolio"),
    "random": Row("random"),
    "greedy": Row("greedy"),
    "aflow ×1": Row("aflow", {"aflow": {"repeats": 1}}, portfolio=False),
    "guided": Row("guided"),
    "taught": Row("guided", taught=True),
    "guided, policy": Row("guided", policy=True),
    # Without one part each. Without its value, the guided search is the greedy one.
    "− portfolio": Row("guided", portfolio=False),
    "− shared runs": Row("guided", {"guided": {"explore": 1.0, "finals": 0.0, "first": 40}}),
    "− finals": Row("guided", {"guided": {"finals": 0.0}}),
}


class CachedEditor(Editor):
    """Lists the edits of a workflow once in all worlds: they are the same, and take longer than a search."""

    known: ClassVar[dict[str, dict[str, Workflow]]] = {}

    def edits(self, workflow: Workflow) -> dict[str, Workflow]:
        if workflow.fingerprint not in self.known:
            self.known[workflow.fingerprint] = super().edits(workflow)
        return self.known[workflow.fingerprint]


EDITOR = CachedEditor(OPERATORS, PROMPTS)


def searched(
    world: World, row: Row, *, budget: int, unit: str, prior: Prior | None, policy: Path | None
) -> SearchResult:
    search = SearchConfig.model_validate({**row.settings, "select": row.select, "runs": budget})
    tasks = [str(number) for number in range(AFLOW_TASKS if row.select == "aflow" else TASKS)]
    random.Random(world.setting).shuffle(tasks)
    carried = Portfolio.load().usable(EDITOR) if row.portfolio else []
    most = budget * average_cost(world, unit) if unit != "runs" else None
    proposer: Proposer = UniformProposer(EDITOR)
    if row.policy and policy is not None:
        from toolwright.workflow.policy import EditPolicy, configured

        proposer = EditPolicy(configured(policy / "model", ["run.threads=1"]), EDITOR)

    async def go() -> SearchResult:
        found = WorkflowSearch(
            name=world.setting,
            setting=world.setting,
            kind="math",
            start=single_call(),
            carried=carried,
            selection=build_selection(
                search, tasks, carried=len(carried), prior=prior if row.taught else None
            ),
            proposer=proposer,
            runner=WorldRunner(world, unit=unit, most=math.inf if most is None else most),
            pool=None,
            budget=SearchBudget(budget if most is None else 5 * budget, most),
            seed=world.seed,
            converge=False,
        )
        return await found.go()

    return asyncio.run(go())


def average_cost(world: World, unit: str) -> float:
    """Of one run of the portfolio's workflows, in calls or dollars."""
    place = {"calls": 1, "money": 2}[unit]
    listed = Portfolio.load().usable(EDITOR)
    return statistics.fmean(world.outcome(p.workflow, task, 0)[place] for p in listed for task in range(20))


def experience(folder: Path) -> Prior:
    """What guided searches of other worlds have learned about workflows."""
    pool = ExperiencePool(folder / "pool.db")
    for seed in TAUGHT_BY:
        for family in FAMILIES:
            world = World(family, seed)
            found = searched(world, ROWS["guided"], budget=600, unit="runs", prior=None, policy=None)
            learn(pool, world, found)
    return Prior.from_pool(pool)


def learn(pool: ExperiencePool, world: World, found: SearchResult) -> None:
    from toolwright.workflow.pool import Experience

    start = found.tree.start.fingerprint
    for one in found.tree:
        if one.number in found.scores:
            pool.keep_workflow(one.fingerprint, one.workflow.to_json())
            before, after = found.scores[0][0], found.scores[one.number][0]
            about = (world.setting, one.number, world.setting, start, "", one.edit, start, one.fingerprint)
            pool.learn([Experience(*about, before, after, len(one.runs))])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=40, help="worlds of each family (40)")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--budgets", type=int, nargs="*", default=[250, 1000])
    parser.add_argument("--unit", choices=["runs", "calls", "money"], default="runs")
    parser.add_argument("--policy", type=Path, help="a folder of `toolwright workflow policy`")
    parser.add_argument("--rows", nargs="*", default=[row for row in ROWS if row != "guided, policy"])
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    logging.disable(logging.WARNING)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        prior = experience(Path(folder)) if any(ROWS[row].taught for row in asked.rows) else None
    found: dict[str, dict[str, dict[str, tuple[float, float, float]]]] = {}
    for seed in range(asked.first_seed, asked.first_seed + asked.seeds):
        for family in FAMILIES:
            world = World(family, seed)
            start = world.truth(single_call())
            for budget in asked.budgets:
                for name in asked.rows:
                    told = {"budget": budget, "unit": asked.unit, "prior": prior, "policy": asked.policy}
                    result = searched(world, ROWS[name], **told)
                    scores = start, world.truth(result.best.workflow), result.scores[result.best.number][0]
                    found.setdefault(str(budget), {}).setdefault(name, {})[world.setting] = scores
        if asked.json:
            asked.json.write_text(json.dumps(found))
    for budget_said, rows in found.items():
        print(f"\nbudget {budget_said} {asked.unit}, {3 * asked.seeds} worlds")
        show(rows)
    print(f"{time.perf_counter() - started:.0f} s")


def show(rows: Mapping[str, Mapping[str, tuple[float, float, float]]]) -> None:
    """Gains in points, by family and in all, beside the better of portfolio and AFlow; and the estimates."""
    gains = {name: {w: 100 * (s[1] - s[0]) for w, s in made.items()} for name, made in rows.items()}
    bases = [name for name in ("portfolio", "aflow ×1") if name in gains]
    base = max(bases or gains, key=lambda name: statistics.fmean(gains[name].values()))
    families = "".join(f"{name:>11}" for name in FAMILIES)
    print(f"{'':16}{'gain':>6}{'95 %':>14}{families}{f'of {base}':>14}{'95 %':>14}{'believed − test':>17}")
    for name, mine in gains.items():
        low, high = interval([[gain] for gain in mine.values()], mean)
        pairs = [(gain, gains[base][world]) for world, gain in mine.items()]
        below, above = interval(pairs, ratio)
        apart = "".join(
            f"{statistics.fmean(g for w, g in mine.items() if w.startswith(f)):11.1f}" for f in FAMILIES
        )
        over = statistics.fmean(100 * (s[2] - s[1]) for s in rows[name].values())
        print(
            f"{name:16}{statistics.fmean(mine.values()):6.1f}{f'{low:.1f} to {high:.1f}':>14}{apart}"
            f"{ratio(pairs):14.2f}{f'{below:.2f} to {above:.2f}':>14}{over:+17.1f}"
        )


def mean(rows: Sequence[Sequence[float]]) -> float:
    return statistics.fmean(row[0] for row in rows)


def ratio(pairs: Sequence[Sequence[float]]) -> float:
    return statistics.fmean(p[0] for p in pairs) / max(1e-9, statistics.fmean(p[1] for p in pairs))


def interval(rows: Sequence[Sequence[float]], statistic: Any, *, draws: int = 2000) -> tuple[float, float]:
    """Bootstrap over worlds, 95 %."""
    rng = random.Random(0)
    drawn = sorted(statistic(rng.choices(rows, k=len(rows))) for _ in range(draws))
    return drawn[int(0.025 * draws)], drawn[int(0.975 * draws)]


if __name__ == "__main__":
    main()
