"""Scheduling attempts over workers that may be lost, without any cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from toolwright.agents.rollout import AttemptRequest
from toolwright.failures import InfrastructureFailure
from toolwright.runtime.scheduling import AttemptScheduler, AttemptWorker, WorkerLost
from toolwright.trajectory import Task, Trajectory


class Fake:
    """Dies of the tasks in `poison`, or the first `dies` times; comes back at once."""

    def __init__(self, name: str, *, poison: Sequence[str] = (), dies: int = 0) -> None:
        self.name, self.poison, self.dies = name, poison, dies
        self.had: list[list[str]] = []
        self.deaths = 0

    async def attempt(self, wanted: Sequence[AttemptRequest], temperature: float | None) -> list[Trajectory]:
        self.had.append([one.task.id for one in wanted])
        await asyncio.sleep(0.001)
        if self.dies > self.deaths or any(one.task.id in self.poison for one in wanted):
            self.deaths += 1
            raise WorkerLost("killed")
        return [Trajectory(one.task, one.group, index=one.index, seed=one.seed) for one in wanted]


def wanted(groups: int, samples: int = 2) -> list[AttemptRequest]:
    return [
        AttemptRequest(Task(f"t{g}", []), f"g{g}", i, seed=100 * g + i)
        for g in range(groups)
        for i in range(samples)
    ]


def schedule(
    workers: Sequence[Fake],
    asked: list[AttemptRequest],
    *,
    room: int = 8,
    quarantine: dict[str, str] | None = None,
) -> tuple[list[Trajectory], list[tuple[str, int]]]:
    lost: list[tuple[str, int]] = []

    def note(worker: AttemptWorker, count: int, reason: str) -> None:
        lost.append((worker.name, count))

    quarantine = {} if quarantine is None else quarantine
    scheduler = AttemptScheduler(
        asked, None, lambda: workers, quarantine, room=room, lost=note, patience_s=0.5
    )
    return asyncio.run(scheduler.run()), lost


def test_results_keep_their_order_and_every_worker_gets_work() -> None:
    workers, asked = [Fake("a"), Fake("b")], wanted(16)
    found, lost = schedule(workers, asked)
    assert [(t.group, t.index, t.seed) for t in found] == [(w.group, w.index, w.seed) for w in asked]
    assert all(worker.had for worker in workers)
    assert not lost


def test_no_group_is_split() -> None:
    workers = [Fake("a"), Fake("b"), Fake("c")]
    schedule(workers, wanted(7, samples=3))
    for worker in workers:
        for chunk in worker.had:
            assert all(chunk.count(task) == 3 for task in chunk)


def test_whole_groups_are_told_of_as_they_come() -> None:
    heard: list[list[str]] = []
    workers = [Fake("a", dies=1), Fake("b")]
    asked = wanted(16)
    scheduler = AttemptScheduler(
        asked,
        None,
        lambda: workers,
        {},
        room=8,
        lost=lambda worker, count, reason: None,
        patience_s=0.5,
        arrived=lambda found: heard.append([t.group for t in found]),
    )
    asyncio.run(scheduler.run())
    assert len(heard) > 1
    assert sorted(group for groups in heard for group in groups) == sorted(one.group for one in asked)
    assert all(groups.count(group) == 2 for groups in heard for group in groups)


def test_attempts_of_a_dead_worker_are_run_again() -> None:
    workers, asked = [Fake("a", dies=1), Fake("b")], wanted(8)
    found, lost = schedule(workers, asked)
    assert [t.seed for t in found] == [w.seed for w in asked]
    assert all(t.failure is None for t in found)
    assert sum(count for _, count in lost) > 0


def test_a_task_that_kills_twice_is_not_run_a_third_time() -> None:
    workers, quarantine = [Fake("a", poison=["t3"]), Fake("b", poison=["t3"])], dict[str, str]()
    found, _ = schedule(workers, wanted(8), quarantine=quarantine)
    assert {t.task.id for t in found if t.failure} == {"t3"}
    assert sum(worker.deaths for worker in workers) == 2
    assert list(quarantine) == ["t3"]
    schedule(workers, wanted(8), quarantine=quarantine)
    assert sum(worker.deaths for worker in workers) == 2


def test_two_tasks_that_kill_workers_fail_alone() -> None:
    workers = [Fake(name, poison=["t1", "t2"]) for name in "ab"]
    found, _ = schedule(workers, wanted(12), room=64)
    assert {t.task.id for t in found if t.failure} == {"t1", "t2"}


def test_no_worker_at_all_is_an_error_in_time() -> None:
    with pytest.raises(InfrastructureFailure, match=r"no rollout worker for 0\.5 s"):
        schedule([], wanted(2))
