"""Money: asked for before every call, so that a search never spends more than it was given."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from toolwright.cli import main
from toolwright.failures import UserError
from toolwright.providers.budget import Amount, SpendingBudget
from toolwright.workflow.executors import CostLimit, CostLimitActor, SimulatedExecutor
from toolwright.workflow.graph import Node, Ref
from toolwright.workflow.pool import ExperiencePool
from toolwright.workflow.program import Workflow, single_call
from toolwright.workflow.proposers import Editor, UniformProposer, WorkflowState
from toolwright.workflow.record import records
from toolwright.workflow.runners import LocalRunner
from toolwright.workflow.tree import Proposal, schedule

from .searches import OPERATORS, searched, told

SEARCH = ["workflow", "search", "--config", "quick", "search.tasks=12", "search.held_out=4"]
SMALL = ["search.guided.first=6", "proposer.name=uniform", "executor.latency_s=0.001"]


def spent(run: Path) -> Amount:
    return SpendingBudget(file=run / "cost/simulated.db").spent


def test_the_cost_is_kept_to_the_call_and_remembered_by_a_search_that_goes_on(tmp_path: Path) -> None:
    where = [f"run.dir={tmp_path}", "run.name=poor"]
    assert main([*SEARCH, *SMALL, "search.cost=0.03", *where]) == 0
    (record,) = records(tmp_path / "poor").values()
    assert record.why == "budget"
    paid = spent(tmp_path / "poor")
    assert 0.02 < paid.dollars <= 0.03
    runs = sum(row.runs * row.cost for row in record.rows)
    assert runs <= paid.dollars + 1e-9  # what a run that was cut off had cost is spent as well
    assert main(["workflow", "search", *where, "run.resume=true"]) == 0
    assert spent(tmp_path / "poor").dollars <= 0.03


def test_calls_side_by_side_do_not_pass_it_together(tmp_path: Path) -> None:
    """Forty samples at once, of which the budget pays for a few."""
    executor = SimulatedExecutor.of(
        3, 2, latency_s=0.01, cost_limit=CostLimit(0.004, str(tmp_path / "cost.db"))
    )
    wide = Node("solve", "Custom", {"input": (Ref("task", "problem"),)}, repeat=10)
    asked = {"problem": (Ref("task", "problem"),), "solutions": (Ref("solve", "response"),)}
    best = Node("best", "ScEnsemble", asked)
    pool = ExperiencePool(tmp_path / "pool.db")

    async def made() -> int:
        bench = LocalRunner(executor, pool)
        runs = schedule(list(bench.tasks), 2)
        done = await bench.run(Workflow((wide, best), (Ref("best", "response"),)), runs)
        await bench.close()
        return len(done)

    assert asyncio.run(made()) < 4
    paid = SpendingBudget(file=tmp_path / "cost.db").spent
    assert 0 < paid.dollars <= 0.004
    assert pool.spent()[0] < 4


def test_a_cost_that_pays_for_nothing_is_reported(tmp_path: Path) -> None:
    executor = SimulatedExecutor.of(3, 12, cost_limit=CostLimit(1e-7, str(tmp_path / "cost.db")))
    with pytest.raises(UserError, match="does not pay for one run of the start"):
        searched(None, runner=LocalRunner(executor, None))
    assert SpendingBudget(file=tmp_path / "cost.db").spent.calls == 0


def test_what_was_paid_before_does_not_count_for_the_cost(tmp_path: Path) -> None:
    pool = ExperiencePool(tmp_path / "pool.db")
    before = searched(pool, runs=60)
    poor = SimulatedExecutor.of(3, 12, cost_limit=CostLimit(1e-7, str(tmp_path / "cost.db")))
    again = searched(pool, runs=60, runner=LocalRunner(poor, pool))
    assert told(again) == told(before)


class Dear(UniformProposer):
    """A proposer whose second answer nobody can pay for."""

    async def propose(self, state: WorkflowState, again: int) -> Sequence[Proposal]:
        if state.workflow.fingerprint != single_call().fingerprint:
            await SpendingBudget(dollars=0.0).reserve(Amount(1.0))
        return (await super().propose(state, again))[:3]


def test_a_proposer_that_cannot_be_paid_ends_the_search_with_what_it_has() -> None:
    found = searched(None, proposer=Dear(Editor(OPERATORS)))
    assert found.why == "budget"
    assert 1 < len(found.tree) <= 4


def test_what_a_dead_worker_had_under_way_counts_as_spent(tmp_path: Path) -> None:
    async def go() -> None:
        keeper = CostLimitActor(1.0, str(tmp_path / "cost.db"))
        await keeper.join("worker", 1)
        number = await keeper.reserve("worker", 1, Amount(0.6))
        waiting = asyncio.create_task(keeper.reserve("worker", 1, Amount(0.3)))
        await waiting
        await keeper.settle("worker", number, Amount(0.1))
        assert keeper.budget.spent.dollars == pytest.approx(0.1)
        await keeper.join("worker", 2)  # it came back, and its second call is lost
        assert keeper.budget.spent.dollars == pytest.approx(0.4)
        late = asyncio.create_task(keeper.reserve("worker", 1, Amount(0.1)))  # asked before it died
        await late
        last = await keeper.reserve("worker", 2, Amount(0.6))
        await keeper.settle("worker", last, Amount(0.6))
        assert keeper.budget.spent.dollars == pytest.approx(1.0)

    asyncio.run(go())


def test_a_worker_that_joins_twice_has_not_died(tmp_path: Path) -> None:
    async def go() -> None:
        keeper = CostLimitActor(1.0, str(tmp_path / "cost.db"))
        number = await keeper.reserve("worker", 1, Amount(0.6))
        await keeper.join("worker", 1)
        assert keeper.budget.spent.dollars == 0, "its call is under way"
        await keeper.settle("worker", number, Amount(0.1))
        assert keeper.budget.spent.dollars == pytest.approx(0.1)

    asyncio.run(go())
