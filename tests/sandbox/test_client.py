"""The client, against a real server and against bad ones."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import orjson
import pytest
from aiohttp import web
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from toolwright.failures import InfrastructureFailure, UserError
from toolwright.sandbox import BlockingClient, Client, DeadlinePassed, SessionLost, balance
from toolwright.sandbox.balance import Balance
from toolwright.sandbox.judge import same_output

from .served import Server

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


def test_retries_end() -> None:
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


def test_a_sick_server_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(balance, "_EJECT_S", 60.0)
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


def test_the_least_busy_server_is_asked() -> None:
    both = Balance(["http://a", "http://b/"])
    first, second = both.servers
    assert second.url == "http://b"
    first.outstanding = 3
    assert both.choose() is second
    for _ in range(3):
        second.failed()
    assert both.choose() is first
    first.back_at = time.monotonic() + 1000
    assert both.choose() is second


def test_requests_keep_their_distance_and_their_number() -> None:
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
    from toolwright.sandbox.client import Result

    assert Result.of(orjson.loads(orjson.dumps({**OK, "exit_code": None, "extra": 1}))).exit_code is None
