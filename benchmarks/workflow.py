"""The guided search for workflows beside AFlow's selection, at the same budget of runs.

    python benchmarks/workflow.py [--seeds 20] [--runs 1000] [--workers 2] [--policy FOLDER] [--json FILE]
    python benchmarks/workflow.py --policy FOLDER --first-seed 60000 --seeds 40 --base "aflow ×1, untaught" \
        --rows "aflow ×1, untaught" "aflow ×1, taught"

Each seed is a world of its own: a simulated executor model and data set, all of whose parameters are drawn
from the seed (skill of each operator, difficulty of tasks, how far errors go together, worth of prompts,
prices). A search sees 40 validation tasks and spends `--runs` runs, a run being one workflow on one task.
What it returns is judged on 1,000 test tasks that it never saw. Compared is the gain over the single call
that every search starts from, in points of score.

AFlow's selection is as published, with uniform proposals among the legal edits that were not tried. Its
`repeats`, 5 runs of every task for every candidate, leave it few candidates here, so the row `aflow ×1`
gives it the setting that suits it best, and is what the others are compared with. Nothing is tuned by seed:
settings are the defaults, chosen on worlds 1000 to 1009. The policy was taught by `sft` (the language:
random legal edits) and by GiGPO lessons on worlds 20000 to 20059, and the pool holds searches of
worlds 5000 to 5015; worlds of the benchmark are 0 to `--seeds` - 1.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

VALIDATION, TEST = 40, 1000
TAUGHT_BY = range(5000, 5016)  # worlds whose searches are the experience

# name: (selection, its settings, proposer, with experience, part of the budget)
ROWS: Mapping[str, tuple[str, Mapping[str, Any], str, bool, float]] = {
    "aflow": ("aflow", {}, "uniform", False, 1.0),
    "aflow ×1": ("aflow", {"repeats": 1}, "uniform", False, 1.0),
    "guided": ("guided", {}, "taught", True, 1.0),
    "guided, half the budget": ("guided", {}, "taught", True, 0.5),
    "− policy prior": ("guided", {"prior": 0.0}, "taught", True, 1.0),
    "− value": ("guided", {"value": False}, "taught", True, 1.0),
    "− racing": ("guided", {"racing": False, "repeats": 1}, "taught", True, 1.0),
    "− experience": ("guided", {}, "taught", False, 1.0),
    "untaught policy": ("guided", {}, "untaught", True, 1.0),
    # The prior by itself: no experience of other searches, and a budget that leaves little to learn from.
    "taught, a quarter": ("guided", {}, "taught", False, 0.25),
    "untaught, a quarter": ("guided", {}, "untaught", False, 0.25),
    "uniform, a quarter": ("guided", {}, "uniform", False, 0.25),
    "aflow ×1, taught": ("aflow", {"repeats": 1}, "taught", False, 0.5),
    "aflow ×1, untaught": ("aflow", {"repeats": 1}, "untaught", False, 0.5),
}


def searched(
    row: str, seed: int, *, runs: int, policies: Mapping[str, str], prior: Any
) -> tuple[float, float]:
    """The true scores of the start and of what one search returned."""
    from toolwright.workflow.config import Aflow, Guided
    from toolwright.workflow.executors import SimulatedExecutor
    from toolwright.workflow.policy import EditPolicy, configured
    from toolwright.workflow.program import single_call
    from toolwright.workflow.proposers import Editor, UniformProposer
    from toolwright.workflow.runners import LocalRunner
    from toolwright.workflow.search_loop import Proposer, SearchBudget, WorkflowSearch
    from toolwright.workflow.selection import AflowSelection, GuidedSelection, Selection
    from toolwright.workflow.tree import schedule

    logging.disable(logging.WARNING)
    kind, settings, proposing, experienced, part = ROWS[row]
    executor = SimulatedExecutor(seed=seed, count=VALIDATION)
    editor = Editor(executor.operators, executor.prompts, executor.limits)
    tasks = [task.id for task in executor.tasks()]
    random.Random(seed).shuffle(tasks)
    selection: Selection
    if kind == "aflow":
        aflow = Aflow(**settings)
        selection = AflowSelection(aflow, schedule(tasks, aflow.repeats))
    else:
        guided = Guided(**settings)
        own = schedule(tasks, guided.repeats)
        selection = GuidedSelection(guided, own, len(tasks), prior if experienced else None)
    proposer: Proposer = UniformProposer(editor)
    if proposing in policies:
        proposer = EditPolicy(configured(Path(policies[proposing]), ["run.threads=1"]), editor)

    async def go() -> tuple[float, float]:
        search = WorkflowSearch(
            name=f"{row} {seed}",
            setting=executor.setting,
            kind=executor.kind,
            start=single_call(),
            selection=selection,
            proposer=proposer,
            runner=LocalRunner(executor, None),
            pool=None,
            budget=SearchBudget(round(part * runs)),
            seed=seed,
            converge=False,
        )
        found = await search.go()
        judge = SimulatedExecutor(seed=seed, count=TEST, split="test")
        evaluator = judge.open()(0)
        scores = []
        for candidate in (found.tree.start, found.best):
            made = await evaluator.evaluate(candidate.workflow, judge.tasks())
            scores.append(statistics.fmean(outcome.score for outcome in made))
        return scores[0], scores[1]

    return asyncio.run(go())


def experience(pool: str, seed: int) -> None:
    """One search whose edits and scores go into the pool."""
    from toolwright.workflow.config import Guided
    from toolwright.workflow.executors import SimulatedExecutor
    from toolwright.workflow.pool import ExperiencePool
    from toolwright.workflow.program import single_call
    from toolwright.workflow.proposers import Editor, UniformProposer
    from toolwright.workflow.runners import LocalRunner
    from toolwright.workflow.search_loop import SearchBudget, WorkflowSearch
    from toolwright.workflow.selection import GuidedSelection
    from toolwright.workflow.tree import schedule

    logging.disable(logging.WARNING)
    executor = SimulatedExecutor(seed=seed, count=VALIDATION)
    own = ExperiencePool(pool)

    async def go() -> None:
        guided = Guided()
        tasks = [task.id for task in executor.tasks()]
        search = WorkflowSearch(
            name=f"experience {seed}",
            setting=executor.setting,
            kind=executor.kind,
            start=single_call(),
            selection=GuidedSelection(guided, schedule(tasks, guided.repeats), len(tasks), None),
            proposer=UniformProposer(Editor(executor.operators, executor.prompts, executor.limits)),
            runner=LocalRunner(executor, None),
            pool=own,
            budget=SearchBudget(800),
            seed=seed,
            converge=False,
        )
        await search.go()

    asyncio.run(go())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--policy", type=Path, help="a folder of `toolwright workflow policy`; else made now")
    parser.add_argument("--rows", nargs="*", default=list(ROWS))
    parser.add_argument("--base", default="aflow ×1", help="the row that the others are compared with")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    from toolwright.workflow.pool import ExperiencePool
    from toolwright.workflow.value import Prior

    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(asked.workers) as crew:
        taught = asked.policy
        if taught is None:
            from toolwright.workflow.policy_training import train_policy

            taught = Path(folder) / "policy"
            train_policy(taught)
            print(f"the policy was taught in {time.perf_counter() - started:.0f} s", flush=True)
        policies = {"taught": str(taught / "model"), "untaught": str(taught / "warm/model")}
        pool = str(Path(folder) / "pool.db")
        if any(ROWS[row][3] for row in asked.rows):
            list(crew.map(partial(experience, pool), TAUGHT_BY))
            print(f"experience was gathered after {time.perf_counter() - started:.0f} s", flush=True)
        seeds = range(asked.first_seed, asked.first_seed + asked.seeds)
        prior = Prior.from_pool(ExperiencePool(pool))
        told = {"runs": asked.runs, "policies": policies, "prior": prior}
        running = {row: [crew.submit(searched, row, s, **told) for s in seeds] for row in asked.rows}
        found = {}
        for row, made in running.items():
            found[row] = [future.result() for future in made]
            print(f"{row} after {time.perf_counter() - started:.0f} s", flush=True)
            if asked.json:
                asked.json.write_text(json.dumps(found))
    show(found, runs=asked.runs, base=asked.base)
    print(f"{asked.seeds} seeds in {time.perf_counter() - started:.0f} s")


def show(found: Mapping[str, Sequence[tuple[float, float]]], *, runs: int, base: str) -> None:
    starts = [before for before, _ in next(iter(found.values()))]
    print(f"start: {100 * statistics.fmean(starts):.1f} % on test tasks; budget {runs} runs; beside {base}:")
    print(f"{'':26}{'gain':>8}{'95 %':>14}{'ratio':>9}{'95 %':>14}{'more':>8}{'95 %':>14}{'wins':>7}")
    gains = {row: [100 * (after - before) for before, after in made] for row, made in found.items()}
    against = gains.get(base) or next(iter(gains.values()))
    for row, mine in gains.items():
        low, high = interval([[gain] for gain in mine], mean)
        pairs = list(zip(mine, against, strict=True))
        below, above = interval(pairs, ratio)
        more = [[a - b] for a, b in pairs]
        least, most = interval(more, mean)
        wins = sum(a > b for a, b in pairs)
        print(
            f"{row:26}{statistics.fmean(mine):8.1f}{f'{low:.1f} to {high:.1f}':>14}"
            f"{ratio(pairs):9.2f}{f'{below:.2f} to {above:.2f}':>14}"
            f"{mean(more):+8.1f}{f'{least:+.1f} to {most:+.1f}':>14}{wins:>4}/{len(pairs)}"
        )


def mean(rows: Sequence[Sequence[float]]) -> float:
    return statistics.fmean(row[0] for row in rows)


def ratio(pairs: Sequence[Sequence[float]]) -> float:
    return statistics.fmean(p[0] for p in pairs) / max(1e-9, statistics.fmean(p[1] for p in pairs))


def interval(rows: Sequence[Sequence[float]], statistic: Any, *, draws: int = 4000) -> tuple[float, float]:
    """Bootstrap over seeds, 95 %."""
    rng = random.Random(0)
    drawn = sorted(statistic(rng.choices(rows, k=len(rows))) for _ in range(draws))
    return drawn[int(0.025 * draws)], drawn[int(0.975 * draws)]


if __name__ == "__main__":
    main()
