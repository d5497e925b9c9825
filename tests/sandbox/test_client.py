"""The client, against a real server and against bad ones."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.waiting import wait_until
from toolwright.failures import InfrastructureFailure, UserError
from toolwright.sandbox import BlockingClient, Client, DeadlinePassed, SessionLost, servers
from toolwright.sandbox.judge import same_output
from toolwright.sandbox.servers import Servers

from .attack import served_without
from .conftest import needs_isolation
from .served import Server, processes_named

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
OK = {
    "status": "ok", "stdout": "", "stderr": "", "exit_code": 0, "duration_s": 0.0, "queued_s": 0.0,
    "truncated": False,
}  # fmt: skip


@asynccontextmanager
async def fake(handler: Handler) -> AsyncIterator[str]:
    """A server that answers every POST as it is told to; it ends at once, whatever it has not answered."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def echo(request: web.Request) -> web.Response:
    runs = (await request.json())["runs"]
    return web.json_response({"results": [{**OK, "stdout": run["code"]} for run in runs]})


def test_calls_travel_in_batches_and_come_back_to_their_callers() -> None:
    sizes: list[int] = []

    async def counting(request: web.Request) -> web.Response:
        sizes.append(len((await request.json())["runs"]))
        return await echo(request)

    async def main() -> None:
        async with fake(counting) as url, Client(url, batch_size=10, batch_timeout_seconds=0.02) as client:
            results = await asyncio.gather(*(client.run(str(n)) for n in range(25)))
            assert [result.stdout for result in results] == [str(n) for n in range(25)]

    asyncio.run(main())
    assert sorted(sizes) == [5, 10, 10]


def test_a_batch_too_large_for_one_request_travels_in_several(server: Server) -> None:
    async def main() -> None:
        async with Client(server.url, batch_size=4, batch_timeout_seconds=1) as client:
            large = "x" * (20 << 20)
            calls = [client.run("print(len(input()))", stdin=large[n:]) for n in range(4)]
            assert [result.stdout for result in await asyncio.gather(*calls)] == [
                f"{len(large) - n}\n" for n in range(4)
            ]
            with pytest.raises(UserError, match="413"):
                await client.run("1", stdin="x" * (65 << 20))

    asyncio.run(main())


def test_an_error_of_the_code_is_an_answer(server: Server) -> None:
    async def main() -> None:
        async with Client(server.url) as client:
            results = await asyncio.gather(
                client.run("print(1)"), client.run("1/0"), client.run("while True: pass", timeout_s=0.3)
            )
            assert [result.status for result in results] == ["ok", "error", "timeout"]
            with pytest.raises(UserError, match="422"):
                await client.judge("print(1)")

    asyncio.run(main())


def test_infrastructure_is_retried_and_answers_are_not() -> None:
    calls = 0

    async def flaky(request: web.Request) -> web.Response:
        nonlocal calls
        calls += 1
        if calls == 1:
            return web.Response(status=503, text="{}")
        if calls == 2:
            return web.Response(status=429, text="{}", headers={"retry-after": "0"})
        if calls == 3:
            lost = {**OK, "status": "killed", "exit_code": None, "reason": "worker: killed"}
            return web.json_response({"results": [lost]})
        return web.json_response({"results": [{**OK, "status": "error", "exit_code": 1}]})

    async def main() -> None:
        async with fake(flaky) as url, Client(url) as client:
            assert (await client.run("x")).status == "error"

    asyncio.run(main())
    assert calls == 4


def test_retries_end_with_an_infrastructure_failure() -> None:
    async def broken(_: web.Request) -> web.Response:
        return web.Response(status=500, text="no")

    async def main() -> None:
        async with fake(broken) as url, Client(url, max_retries=2) as client:
            with pytest.raises(InfrastructureFailure, match="3 times"):
                await client.run("x")

    asyncio.run(main())


def test_a_call_keeps_its_deadline_whatever_the_server_does() -> None:
    async def silent(_: web.Request) -> web.Response:
        await asyncio.sleep(100)
        return web.Response()

    async def main() -> None:
        async with fake(silent) as url, Client(url) as client:
            for limit in (0.2, 0.4):
                started = time.monotonic()
                with pytest.raises(DeadlinePassed, match=url):
                    await client.run("x", timeout=limit)
                assert time.monotonic() - started < limit + 5
        async with Client("http://127.0.0.1:9", timeout=0.3) as client:
            with pytest.raises(InfrastructureFailure):
                await client.run("x")

    asyncio.run(main())


def test_a_failing_server_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "_EJECT_S", 60.0)
    bad_calls = 0

    async def bad(_: web.Request) -> web.Response:
        nonlocal bad_calls
        bad_calls += 1
        return web.Response(status=500)

    async def main() -> None:
        async with fake(bad) as sick, fake(echo) as well, Client([sick, well], batch_size=2) as client:
            for number in range(40):
                assert (await client.run(str(number))).stdout == str(number)

    asyncio.run(main())
    assert bad_calls == 3


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that looks after its calls soon."""
    monkeypatch.setattr(servers, "_LOOK_AFTER_S", 0.2)
    monkeypatch.setattr(servers, "_EJECT_S", 1.0)


@needs_isolation
@pytest.mark.usefixtures("impatient")
def test_a_server_that_hangs_loses_no_call_and_is_used_again_later() -> None:
    options = ("--workers", "1", "--preload", "")
    nothing: frozenset[str] = frozenset()

    async def main(well: Server, still: Server) -> None:
        async with Client([still.url, well.url], batch_size=1, timeout=100, max_retries=0) as client:

            async def run_many() -> None:
                codes = [f"print({number})" for number in range(16)]
                results = await asyncio.gather(*(client.run(code) for code in codes))
                assert [result.stdout for result in results] == [f"{number}\n" for number in range(16)]

            os.kill(still.pid, signal.SIGSTOP)
            try:
                await run_many()
                assert client._servers.servers[0].is_out
                await run_many()
            finally:
                os.kill(still.pid, signal.SIGCONT)
            limit = time.monotonic() + 200
            while client._servers.servers[0].is_out and time.monotonic() < limit:
                await asyncio.sleep(0.05)
            before = (await asyncio.to_thread(still.status))["answers"]
            await run_many()
            assert (await asyncio.to_thread(still.status))["answers"] > before

    with served_without(nothing, *options) as well, served_without(nothing, *options) as still:
        asyncio.run(main(well, still))


@pytest.mark.usefixtures("impatient")
def test_a_slow_call_is_sent_to_a_second_server_once() -> None:
    kept = 0

    async def keeps(request: web.Request) -> web.StreamResponse:
        nonlocal kept
        if request.path != "/health":
            kept += 1
            await asyncio.sleep(500)
        return web.Response()

    async def main() -> None:
        async with (
            fake(keeps) as slow,
            fake(keeps) as slower,
            fake(echo) as well,
            Client([slow, well], timeout=4) as client,
            Client([slow, slower], timeout=2) as unlucky,
        ):
            assert (await client.run("x")).stdout == "x"
            assert kept == 1
            with pytest.raises(DeadlinePassed):
                await unlucky.run("x")
            assert kept == 1 + 2

    asyncio.run(main())


@pytest.mark.usefixtures("impatient")
def test_few_calls_are_hedged_when_all_servers_are_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "_HEDGES_AT_ONCE", 3.0)
    asked = 0

    async def keeps(request: web.Request) -> web.StreamResponse:
        nonlocal asked
        if request.path != "/health":
            asked += 1
            await asyncio.sleep(500)
        return web.Response()

    async def main() -> None:
        async with (
            fake(keeps) as one,
            fake(keeps) as other,
            Client([one, other], batch_size=1, timeout=3) as client,
        ):
            await asyncio.gather(*(client.run("x") for _ in range(20)), return_exceptions=True)

    asyncio.run(main())
    assert 20 <= asked <= 23


@pytest.mark.usefixtures("impatient")
def test_a_cell_is_never_sent_twice() -> None:
    cells = 0

    async def keeps_cells(request: web.Request) -> web.Response:
        nonlocal cells
        if request.path == "/sessions":
            return web.json_response({"id": "s"})
        if request.method == "POST":
            cells += 1
            await asyncio.sleep(500)
        return web.Response()

    async def main() -> None:
        async with (
            fake(keeps_cells) as one,
            fake(keeps_cells) as other,
            Client([one, other]) as client,
            await client.open_session() as session,
        ):
            with pytest.raises(DeadlinePassed):
                await session.run("x", timeout=2)

    asyncio.run(main())
    assert cells == 1


# A run that takes its worker with it: the test kills the worker when a process of this name runs below it.
PILL = "import ctypes, time\nctypes.CDLL(None).prctl(15, b'poison-pill')\ntime.sleep(500)"


def kill_workers_of_pills(server: Server, done: threading.Event) -> None:
    while not done.wait(0.02):
        for pid in processes_named("poison-pill"):
            with contextlib.suppress(OSError):
                family = [pid]
                while family[-1] > 1 and server.pid not in family:
                    family.append(
                        int(Path(f"/proc/{family[-1]}/stat").read_text().rpartition(")")[2].split()[1])
                    )
                if server.pid in family:
                    os.kill(family[family.index(server.pid) - 1], signal.SIGKILL)


@needs_isolation
def test_a_run_that_takes_its_worker_with_it_twice_is_its_own_failure_and_its_neighbours_are_run() -> None:
    """Two workers die of it, not five; the neighbours, though killed with it, are answered."""

    async def main(url: str) -> None:
        async with Client(url, batch_size=8, batch_timeout_seconds=0.2, timeout=200) as client:
            neighbours = [client.run(f"import time; time.sleep(0.3); print({n})") for n in range(5)]
            pill, *others = await asyncio.gather(client.run(PILL, timeout_s=60), *neighbours)
            assert (pill.status, pill.exit_code) == ("killed", None)
            assert pill.reason == "the run took its worker with it, and nothing else ran there"
            assert [other.stdout for other in others] == [f"{n}\n" for n in range(5)]

    options = ("--workers", "1", "--runs-per-worker", "4", "--preload", "")
    with served_without(frozenset(), *options) as server:
        done = threading.Event()
        killer = threading.Thread(target=kill_workers_of_pills, args=(server, done))
        killer.start()
        try:
            asyncio.run(main(server.url))
        finally:
            done.set()
            killer.join()
        wait_until(lambda: server.status()["worker_restarts"] == 2, "both are replaced")


@needs_isolation
def test_a_judged_program_whose_worker_was_killed_is_judged_again(server: Server) -> None:
    """Killed once, from outside: no verdict about the program."""

    async def judge(url: str) -> dict[str, Any]:
        async with Client(url) as client:
            return await client.judge(
                "import time; time.sleep(1); print(1)", expected_output="1", timeout=200
            )

    with served_without(frozenset(), "--workers", "1", "--preload", "") as own:
        with ThreadPoolExecutor(1) as pool:
            judged = pool.submit(asyncio.run, judge(own.url))
            wait_until(lambda: own.status()["running"], "it is under way")
            for pid in processes_named("sandbox-worker"):
                # One of another server may just have ended.
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                    if int(stat[1]) == own.pid:
                        os.kill(pid, signal.SIGKILL)
            assert judged.result()["passed"]
        wait_until(lambda: own.status()["worker_restarts"] == 1, "it is replaced")


def test_the_least_busy_server_is_called() -> None:
    both = Servers(["http://a", "http://b/"], token=None, concurrency=1, interval_s=0.0)
    first, second = both.servers
    assert second.url == "http://b"
    first.outstanding = 3
    assert both.choose() is second
    for _ in range(3):
        second.failed()
    assert both.choose() is first
    first.back_at = time.monotonic() + 1000
    assert both.choose() is second


def test_request_interval_and_concurrency_are_kept() -> None:
    starts: list[float] = []
    inside = most = 0

    async def slow(request: web.Request) -> web.Response:
        nonlocal inside, most
        starts.append(time.monotonic())
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0.05)
        inside -= 1
        return web.json_response({**OK, "stdout": (await request.json())["code"]})

    async def main() -> None:
        async with (
            fake(slow) as url,
            Client(url, batch_size=1, concurrency=2, request_interval=0.05) as client,
        ):
            starts.append(time.monotonic())
            await asyncio.gather(*(client.run(str(n)) for n in range(8)))

    asyncio.run(main())
    assert most <= 2
    # From the call to the last: a loaded machine may bring two of them close together again on their way.
    assert starts[-1] - starts[0] > 7 * 0.05 * 0.99


def test_sessions_through_the_client(server: Server) -> None:
    async def main() -> None:
        async with Client(server.url) as client:
            async with await client.open_session() as session:
                await session.run("x = 41")
                assert (await session.run("x + 1")).value == "42"
            with pytest.raises(SessionLost):
                await session.run("x")

    asyncio.run(main())


def test_the_blocking_client(server: Server) -> None:
    with BlockingClient(server.url) as client:
        assert client.run("print(2)").stdout == "2\n"
        assert [r.stdout for r in client.run_many([f"print({n})" for n in range(10)])] == [
            f"{n}\n" for n in range(10)
        ]
        assert client.judge("print(1)", expected_output="1")["passed"]
        with client.open_session() as session:
            session.run("y = 1")
            assert session.run("y").value == "1"


@given(body=st.binary(max_size=200), code=st.sampled_from([200, 204, 400, 404, 418, 429, 500, 503]))
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_whatever_a_server_answers_the_client_ends(body: bytes, code: int) -> None:
    async def odd(_: web.Request) -> web.Response:
        return web.Response(status=code, body=body)

    async def main() -> None:
        async with fake(odd) as url, Client(url, max_retries=1, timeout=5) as client:
            with pytest.raises((InfrastructureFailure, UserError)):
                await client.run("x")

    asyncio.run(main())


@given(st.lists(st.text("ab \t", max_size=5), max_size=5))
def test_output_is_compared_without_trailing_blanks(lines: list[str]) -> None:
    text = "\n".join(lines)
    assert same_output(text, "\n".join(line + "  " for line in lines) + "\n\n")


def test_results_survive_the_wire() -> None:
    from toolwright.sandbox.client import ExecutionResult

    assert (
        ExecutionResult.of(orjson.loads(orjson.dumps({**OK, "exit_code": None, "extra": 1}))).exit_code
        is None
    )
