"""The line in front of the workers: runs and cells in turn, each with its deadline."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

import pytest

from tests.waiting import wait_until
from toolwright.failures import InfrastructureFailure
from toolwright.sandbox.client import Client
from toolwright.sandbox.queue import CALLER, FairQueue, Flow, QueuedRun, QueueFull, SessionSlot

from .attack import served_without
from .conftest import needs_isolation

NARROW = ("--workers", "1", "--runs-per-worker", "1", "--preload", "")
EVERYTHING: frozenset[str] = frozenset()
T = TypeVar("T")
LOOP = asyncio.new_event_loop()  # one for all futures: each loop holds three descriptors


def call(name: str, *, deadline: float = 100.0, slot: SessionSlot | None = None) -> QueuedRun:
    return QueuedRun({"name": name}, LOOP.create_future(), 0.0, deadline, slot)


def taken(queue: FairQueue, *free: object) -> list[str]:
    names = []
    while (found := queue.take(list(free))) is not None:
        names.append(found.job["name"])
    return names


def test_flows_take_turns() -> None:
    queue, batch, single = FairQueue(10), Flow(), Flow()
    for number in range(3):
        queue.add(batch, call(f"batch {number}"))
    queue.add(single, call("single"))
    assert taken(queue, "worker") == ["batch 0", "single", "batch 1", "batch 2"]
    assert len(queue) == 0


def as_caller(name: str, work: Callable[[], T]) -> T:
    """As if a request of this caller were being handled."""

    def work_as_caller() -> T:
        CALLER.set(name)
        return work()

    return copy_context().run(work_as_caller)


def test_callers_take_turns_however_many_requests_they_send() -> None:
    queue = FairQueue(100)
    for number in range(3):
        queue.add(as_caller("a", Flow), call(f"a{number}"))
    for number in range(2):
        queue.add(as_caller("b", Flow), call(f"b{number}"))
    assert taken(queue, "worker") == ["a0", "b0", "a1", "b1", "a2"]


def test_a_caller_who_fills_the_queue_leaves_others_their_share() -> None:
    queue = FairQueue(4)
    for _ in range(4):
        queue.add(as_caller("a", Flow), call("a"))
    with pytest.raises(QueueFull, match="4 runs are waiting"):
        as_caller("a", lambda: queue.reserve(1))
    for _ in range(2):
        as_caller("b", lambda: queue.reserve(1))
        queue.add(as_caller("b", Flow), call("b"))
    with pytest.raises(QueueFull, match="6 runs are waiting"):
        as_caller("b", lambda: queue.reserve(1))


def test_cells_of_a_busy_session_are_passed_in_one_step() -> None:
    class Counted(SessionSlot):
        looks = 0

        def __getattribute__(self, name: str) -> object:
            if name == "busy":
                Counted.looks += 1
            return super().__getattribute__(name)

    queue, slot = FairQueue(10_000), Counted("a", 1, busy=True)
    for number in range(3900):
        queue.add(slot.flow, call(f"cell {number}", slot=slot))
    queue.add(Flow(), call("run"))
    assert taken(queue, "a") == ["run"]
    assert Counted.looks <= 2
    slot.busy = False
    assert taken(queue, "a") == [f"cell {number}" for number in range(3900)]


def test_a_cell_waits_for_its_worker_and_lets_others_pass() -> None:
    queue, slot = FairQueue(10), SessionSlot("a", 1)
    for name, where in (("cell", slot), ("run", None), ("second cell", slot)):
        queue.add(Flow(), call(name, slot=where))
    assert taken(queue, "b") == ["run"]
    first = queue.take(["a"])
    assert first is not None
    assert first.job["name"] == "cell"
    slot.busy = True
    assert queue.take(["a"]) is None
    slot.busy = False
    assert taken(queue, "a") == ["second cell"]


def test_expired_and_abandoned_calls_leave_the_queue() -> None:
    queue, flow = FairQueue(10), Flow()
    for deadline in (1.0, 5.0, 3.0):
        queue.add(flow, call(f"until {deadline:g}", deadline=deadline))
    gone = call("nobody waits for it")
    queue.add(Flow(), gone)
    gone.answer.cancel()
    assert queue.expire(0.5) == []
    assert [late.job["name"] for late in queue.expire(3.5)] == ["until 1", "until 3"]
    assert len(queue) == 2
    assert taken(queue, "worker") == ["until 5"]
    assert len(queue) == 0


def test_a_full_queue_refuses_a_request() -> None:
    queue = FairQueue(2)
    queue.reserve(5)  # into an empty one
    for _ in range(2):
        queue.add(Flow(), call("run"))
    with pytest.raises(QueueFull, match="2 runs are waiting"):
        queue.reserve(1)


@needs_isolation
def test_cells_wait_in_the_same_queue_as_runs() -> None:
    with served_without(EVERYTHING, *NARROW) as server, server.session() as session:
        with ThreadPoolExecutor(1) as callers:
            with server.busy():
                late = session.cell("1 + 1", deadline_s=0.4)
                waiting = callers.submit(session.cell, "1 + 1")
                wait_until(lambda: server.status()["queue"] == 1, "the cell is in line")
            waited = waiting.result()
        assert (late["status"], late["value"], late["exit_code"]) == ("timeout", None, None)
        assert late["reason"].startswith("queue:")
        assert waited["value"] == "2"
        assert waited["queued_s"] > 0


@needs_isolation
def test_a_deadline_counts_the_cells_before_it() -> None:
    with (
        served_without(EVERYTHING, "--workers", "1", "--runs-per-worker", "4", "--preload", "") as server,
        server.session() as session,
    ):
        with server.busy(path=f"/sessions/{session.name}/run"):
            late = session.cell("1", deadline_s=0.3)
            assert late["status"] == "timeout"
            assert 0.3 <= late["queued_s"] < 30
            assert server.run("print(1)")["status"] == "ok"  # only the session is busy, not its worker
        # What is left of a deadline is all that a cell gets.
        assert session.cell("import time; time.sleep(5)", deadline_s=0.5)["status"] == "timeout"


@needs_isolation
def test_too_many_cells_of_one_session_are_refused_with_retry_after() -> None:
    with (
        served_without(EVERYTHING, *NARROW, "--queue-limit", "2") as server,
        server.session() as session,
        ThreadPoolExecutor(2) as callers,
    ):
        with server.busy(path=f"/sessions/{session.name}/run"):
            waiting = [callers.submit(session.ask, "1") for _ in range(2)]
            wait_until(lambda: server.status()["queue"] == 2, "two cells are in line")
            assert [session.ask("1")[0] for _ in range(5)] == [429] * 5
        assert [call.result()[0] for call in waiting] == [200] * 2


@needs_isolation
def test_a_session_with_many_cells_takes_nothing_from_others() -> None:
    """More than one session may have in line, and far fewer than the queue holds."""
    with (
        served_without(EVERYTHING, "--workers", "1", "--runs-per-worker", "2", "--preload", "") as server,
        server.session() as session,
        ThreadPoolExecutor(80) as callers,
    ):
        with server.busy(path=f"/sessions/{session.name}/run"):
            waiting = [callers.submit(session.ask, "1") for _ in range(80)]
            wait_until(lambda: sum(call.done() for call in waiting) == 17, "the rest is in line")
            refused = [call.result() for call in waiting if call.done()]
            assert {code for code, _ in refused} == {429}
            assert "64 cells of this session are waiting" in refused[0][1]["error"]
            assert server.status()["queue"] == 63
            assert server.run("print(1)")["stdout"] == "1\n"
        assert sum(call.result()[0] == 200 for call in waiting) == 63


@needs_isolation
def test_a_run_alone_waits_until_its_worker_is_empty() -> None:
    with (
        served_without(EVERYTHING, "--workers", "1", "--runs-per-worker", "3", "--preload", "") as server,
        ThreadPoolExecutor(3) as callers,
    ):
        with server.busy():
            late = server.run("print(1)", alone=True, deadline_s=0.3)
            assert late["reason"].startswith("queue:")
            assert server.run("print(1)")["status"] == "ok"  # the worker is no longer kept for it
            alone = callers.submit(server.run, "import time; time.sleep(0.5); print(time.time())", alone=True)
            wait_until(lambda: server.status()["queue"] == 0, "it was taken from the line")
            after = callers.submit(server.run, "import time; print(time.time())")
            wait_until(lambda: server.status()["queue"] == 1, "nothing is begun beside it")
            assert server.status()["running"] == 1
        assert float(alone.result()["stdout"]) < float(after.result()["stdout"])


@needs_isolation
def test_a_full_queue_answers_429_with_retry_after() -> None:
    with (
        served_without(EVERYTHING, *NARROW, "--queue-limit", "1") as server,
        ThreadPoolExecutor(1) as callers,
    ):
        with server.busy():
            callers.submit(server.run, "print(1)")
            wait_until(lambda: server.status()["queue"] == 1, "the line is full")
            headers = {"content-type": "application/json"}
            request = urllib.request.Request(server.url + "/run", b'{"code": ""}', headers)
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(request)
        with refused.value as error:
            assert error.code == 429
            assert 1 <= int(error.headers["retry-after"]) <= 60


@needs_isolation
def test_a_cell_is_interrupted_and_its_session_kept_when_the_client_hangs_up() -> None:
    with served_without(EVERYTHING, *NARROW) as server, server.session() as session:
        session.cell("kept = 7")
        with server.busy(path=f"/sessions/{session.name}/run"):
            pass
        assert session.cell("kept")["value"] == "7"


@needs_isolation
def test_a_cell_that_never_began_is_a_failure_of_infrastructure() -> None:
    with served_without(EVERYTHING, *NARROW) as server:

        async def main() -> None:
            async with Client(server.url) as client, await client.open_session() as session:
                with server.busy(), pytest.raises(InfrastructureFailure, match="the session is as before"):
                    await session.run("1", deadline_s=0.2)
                assert (await session.run("1 + 1")).value == "2"

        asyncio.run(main())
