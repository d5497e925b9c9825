"""A search over Ray workers: what one process finds, sooner; the pool served to all of them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.waiting import wait_until
from tests.workflow.searches import searched, told
from toolwright.cli import main
from toolwright.providers.budget import Amount, SpendingBudget
from toolwright.workflow.executors import CostLimit, SimulatedExecutor
from toolwright.workflow.pool import ExperiencePool, Payment
from toolwright.workflow.program import Workflow, single_call
from toolwright.workflow.runners import RayRunner
from toolwright.workflow.tree import Run, schedule

pytestmark = pytest.mark.xdist_group("ray runs")


class Counted:
    """Workers that are closed when the search is over."""

    def __init__(self, executor: SimulatedExecutor, pool: ExperiencePool, count: int) -> None:
        self.workers = RayRunner(executor, pool, count=count)

    async def run(self, workflow: Workflow, runs: Sequence[Run]) -> dict[Run, Payment]:
        return await self.workers.run(workflow, runs)


@pytest.mark.parametrize("count", [1, 4])
def test_any_number_of_workers_finds_what_one_process_finds(count: int, cluster: Any, tmp_path: Path) -> None:
    alone = searched(None, runs=120)
    pool = ExperiencePool(tmp_path / "pool.db")
    served = pool.serve(f"pool-{tmp_path.name}")
    crew = Counted(SimulatedExecutor.of(3, 12), served, count)
    found = searched(pool, runs=120, runner=crew)
    asyncio.run(crew.workers.close())
    assert told(found) == told(alone)
    assert found.best.number == alone.best.number
    assert pool.spent()[0] == found.tree.runs


@pytest.mark.slow
def test_four_workers_wait_for_a_remote_model_side_by_side(cluster: Any, tmp_path: Path) -> None:
    """Each worker makes two runs at a time; sixteen of 3 s are eight waits for one, and two for four."""
    seconds = {}
    for count in (1, 4):
        pool = ExperiencePool(tmp_path / f"{count}.db")
        executor = SimulatedExecutor.of(3, 20, latency_s=3.0, parallel=2)
        workers = RayRunner(executor, pool, count=count)
        runs = schedule([task.id for task in executor.tasks], 1)

        async def made(workers: RayRunner, runs: Sequence[Run]) -> float:
            await asyncio.gather(*(workers.run(single_call(), [run]) for run in runs[:4]))  # all have started
            started = time.monotonic()
            await workers.run(single_call(), runs[4:])
            return time.monotonic() - started

        seconds[count] = asyncio.run(made(workers, runs))
        asyncio.run(workers.close())
    assert seconds[4] < 0.6 * seconds[1]


def test_a_worker_that_dies_is_made_again_and_pays_for_nothing_twice(cluster: Any, tmp_path: Path) -> None:
    import ray

    pool = ExperiencePool(tmp_path / "pool.db")
    executor = SimulatedExecutor.of(3, 24, latency_s=0.2, parallel=2)
    workers = RayRunner(executor, pool, count=1)
    runs = schedule([task.id for task in executor.tasks], 1)

    async def made() -> dict[Run, Payment]:
        running = asyncio.create_task(workers.run(single_call(), runs))
        while pool.spent()[0] < 4:
            await asyncio.sleep(0.05)
        ray.kill(workers.actors[0], no_restart=False)
        return await running

    done = asyncio.run(made())
    asyncio.run(workers.close())
    assert set(done) == set(runs)
    assert pool.spent()[0] == len(runs)


def test_workers_spend_from_one_purse_and_do_not_pass_it_together(cluster: Any, tmp_path: Path) -> None:
    cost_limit = CostLimit(0.02, str(tmp_path / "cost.db"))
    executor = SimulatedExecutor.of(3, 60, latency_s=0.01, cost_limit=cost_limit.serve())
    workers = RayRunner(executor, ExperiencePool(tmp_path / "pool.db"), count=2)
    runs = schedule([task.id for task in executor.tasks], 2)

    async def made() -> dict[Run, Payment]:
        try:
            return await workers.run(single_call(), runs)
        finally:
            await workers.close()

    done = asyncio.run(made())
    assert 0 < len(done) < len(runs)
    assert 0.01 < sum(payment.cost for payment in done.values()) <= 0.02
    assert SpendingBudget(file=tmp_path / "cost.db").spent.dollars <= 0.02


def test_nothing_is_asked_of_the_purse_before_it_knows_who_asks(cluster: Any) -> None:
    """Or a worker that came back would be taken for the one that died."""
    order: list[str] = []

    async def join(*who: object) -> None:
        await asyncio.sleep(0.05)
        order.append("joined")

    async def reserve(*what: object) -> int:
        order.append("reserved")
        return 7

    async def go() -> None:
        joining = SimpleNamespace(remote=lambda *who: asyncio.ensure_future(join(*who)))
        slow = SimpleNamespace(join=joining, reserve=SimpleNamespace(remote=reserve))
        asked = CostLimit(1.0, "", actor=slow).open()
        assert await asyncio.gather(asked.reserve(Amount(0.1)), asked.reserve(Amount(0.1))) == [7, 7]

    asyncio.run(go())
    assert order == ["joined", "reserved", "reserved"]


def test_a_served_pool_is_found_by_its_name(cluster: Any, tmp_path: Path) -> None:
    import ray

    pool = ExperiencePool(tmp_path / "pool.db")
    served = pool.serve(f"served-{tmp_path.name}")

    @ray.remote(num_cpus=0)
    def pay(address: ExperiencePool, number: int) -> int:
        address.pay([Payment("s", "w", f"t{number}-{n}", 0, 1.0, 0.5, 1) for n in range(5)])
        return os.getpid()

    ray.get([pay.remote(served, number) for number in range(4)])
    assert pool.spent() == served.spent() == (20, 10.0)


SEARCH = ["workflow", "search", "--config", "quick", "search.tasks=10", "search.held_out=4", "search.runs=80"]
QUICK = ["search.guided.first=5", "proposer.name=uniform", "search.cost=1"]
RAY = ["runtime.name=ray", "runtime.workers=2"]


def record(run: Path) -> dict[str, Any]:
    return dict(json.loads((run / "searches/simulated.json").read_text()))


@pytest.mark.slow
def test_the_command_over_ray_finds_what_it_finds_in_one_process(cluster: Any, tmp_path: Path) -> None:
    for name, runtime in (("alone", []), ("workers", RAY)):
        assert main([*SEARCH, *QUICK, *runtime, f"run.dir={tmp_path}", f"run.name={name}"]) == 0
    assert record(tmp_path / "workers") == record(tmp_path / "alone")


@pytest.mark.slow
def test_the_command_over_ray_killed_and_resumed_ends_where_one_process_does(tmp_path: Path) -> None:
    where = [f"run.dir={tmp_path}", "executor.latency_s=0.05"]
    assert main([*SEARCH, *QUICK, *where, "run.name=alone"]) == 0
    command = [sys.executable, "-m", "toolwright.cli", *SEARCH, *QUICK, *RAY, *where, "run.name=killed"]
    killed, run = subprocess.Popen(command, start_new_session=True), tmp_path / "killed"
    pool = run / "pool.db"
    try:
        wait_until(lambda: pool.exists() and ExperiencePool(pool).spent()[0] > 20, "twenty runs")
    finally:
        os.killpg(killed.pid, signal.SIGKILL)
        killed.wait()
    assert not (run / "report.html").exists()
    assert subprocess.run([*command, "run.resume=true"], timeout=600).returncode == 0
    assert record(run) == record(tmp_path / "alone")
    assert ExperiencePool(pool).spent() == ExperiencePool(tmp_path / "alone/pool.db").spent()
