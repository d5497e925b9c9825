"""Time limits count what a run does, not what its neighbours do."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.waiting import wait_until
from toolwright.sandbox.processes import DEADLINE, STARVED, TIMEOUT, Clock

from .attack import served_without
from .conftest import needs_isolation
from .served import Server

pytestmark = needs_isolation

# Less than half of its limit alone; with seven like it on one core, three times the limit by the wall clock.
LIMIT_S = 1.0
WORK = "import time\nwhile time.process_time() < 0.4: pass"
SIXTY_BUSY = "import os\nfor _ in range(59):\n  if os.fork() == 0: break\nwhile True: pass"


@pytest.fixture(scope="module")
def crowded() -> Iterator[Server]:
    """Everything on one core."""
    options = ("--workers", "1", "--runs-per-worker", "10", "--preload", "", "--timeout-s", str(LIMIT_S))
    with served_without(frozenset(), *options) as server:
        yield server


def statuses(server: Server, code: str, *, at_once: int) -> list[str]:
    with ThreadPoolExecutor(at_once) as pool:
        return [answer["status"] for answer in pool.map(server.run, [code] * at_once)]


@pytest.mark.parametrize("at_once", [1, 8])
def test_the_same_code_gives_the_same_status_alone_and_with_others(crowded: Server, at_once: int) -> None:
    assert statuses(crowded, WORK, at_once=at_once) == ["ok"] * at_once


def test_a_run_with_sixty_busy_processes_makes_no_neighbour_time_out(crowded: Server) -> None:
    with crowded.session() as session, crowded.busy(SIXTY_BUSY):
        assert statuses(crowded, WORK, at_once=4) == ["ok"] * 4
        assert session.cell(WORK)["status"] == "ok"


def test_a_cell_gives_the_same_status_beside_others(crowded: Server) -> None:
    with crowded.session() as session, ThreadPoolExecutor(8) as pool:
        others = [pool.submit(crowded.run, WORK) for _ in range(7)]
        assert session.cell(WORK)["status"] == "ok"
        assert {other.result()["status"] for other in others} == {"ok"}


def test_sleep_counts_as_time_of_the_run_and_the_cell(crowded: Server) -> None:
    sleep = "import time; time.sleep(500)"
    run = crowded.run(sleep)
    assert run["status"] == "timeout"
    assert 0.9 <= run["duration_s"] < 30, "its own time ends it, long before the wall clock's limit"
    with crowded.session() as session:
        assert session.cell(sleep)["status"] == "timeout"
        assert session.cell("1")["value"] == "1"


def test_the_time_of_all_processes_is_added_up(crowded: Server) -> None:
    forked = """
import os, time
for _ in range(6):
    if os.fork() == 0:
        while time.process_time() < 0.4: pass
        os._exit(0)
for _ in range(6): os.wait()
print('all')
"""
    answer = crowded.run(forked)
    assert (answer["status"], answer["stdout"]) == ("timeout", "")
    assert crowded.run(forked, timeout_s=20)["stdout"] == "all\n"


def test_the_time_of_children_that_nobody_waits_for_is_not_lost(crowded: Server) -> None:
    one_after_another = """
import os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for _ in range(200):
    reading, writing = os.pipe()
    if os.fork() == 0:
        while time.process_time() < 0.5: pass
        os._exit(0)
    os.close(writing); os.read(reading, 1); os.close(reading)
"""
    assert crowded.run(one_after_another)["status"] == "timeout"


def test_a_process_that_has_ended_and_is_not_yet_waited_for_does_not_sleep() -> None:
    clock = Clock({"timeout_s": 0.1, "wall_s": 60.0, "wall_is_deadline": False})
    with subprocess.Popen(["true"]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        looks_until = time.monotonic() + 0.5
        while time.monotonic() < looks_until:
            clock.look([ended.pid])
            time.sleep(0.01)
        assert clock.passed() == ""


def test_a_deadline_is_a_limit_by_the_wall_clock(crowded: Server) -> None:
    with crowded.busy(SIXTY_BUSY):
        answer = crowded.run(WORK.replace("0.4", "20"), timeout_s=60, deadline_s=1)
    assert answer["status"] == "timeout"
    assert "deadline" in answer["reason"]


def looked_at(code: str, wall_s: float, *, deadline: bool) -> str:
    job = {"timeout_s": 0.3, "wall_s": wall_s, "wall_is_deadline": deadline}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        clock = Clock(job)

        def passed() -> str:
            clock.look([process.pid])
            return clock.passed()

        try:
            wait_until(passed, "a limit is passed")
        finally:
            process.kill()
        return clock.passed()


@pytest.mark.parametrize(
    ("code", "wall_s", "deadline", "limit"),
    [
        ("print(flush=True)\nwhile True: pass", 300.0, False, TIMEOUT),
        ("import time; print(flush=True); time.sleep(300)", 300.0, False, TIMEOUT),
        ("import time; print(flush=True); time.sleep(300)", 0.1, True, DEADLINE),
        ("import time; print(flush=True); time.sleep(300)", 0.1, False, STARVED),
    ],
)
def test_a_clock_says_which_limit_was_passed(code: str, wall_s: float, deadline: bool, limit: str) -> None:
    assert looked_at(code, wall_s, deadline=deadline) == limit
