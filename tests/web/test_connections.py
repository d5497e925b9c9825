"""Limits that hold before anything is known about a caller, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import pytest

from toolwright.web import connections
from toolwright.web.asgi import HttpReply, send_reply
from toolwright.web.body import read_body
from toolwright.web.connections import ConnectionLimits
from toolwright.web.serving import serve_in_background

HEALTH = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
HALF = b"GET /health HTTP/1.1\r\nhost: loc"
PATIENT = {"head_s": 300.0, "body_s": 300.0}  # for tests of something else than time
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Slow:
    """Answers at once, except on /wait: then when it is told to."""

    draining = False

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.waiting = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = await read_body(scope, receive, limit=1 << 20)
        if body is None:
            return
        if scope["path"] == "/wait":
            self.waiting += 1
            await self.go.wait()
        await send_reply(send, HttpReply(str(len(body)).encode()))


class Callers:
    """Raw connections to a server with the given limits."""

    def __init__(self, url: str, app: Slow) -> None:
        self._port = urlsplit(url).port
        self.app = app
        self._open: list[asyncio.StreamWriter] = []

    async def call(self, sent: bytes, address: str = "127.0.0.1") -> Streams:
        streams = await asyncio.open_connection("127.0.0.1", self._port, local_addr=(address, 0))
        self._open.append(streams[1])
        streams[1].write(sent)
        return streams

    async def status(self, sent: bytes, address: str = "127.0.0.1") -> int:
        return await answer((await self.call(sent, address))[0])

    async def busy(self, count: int, address: str = "127.0.0.1") -> list[Streams]:
        before = self.app.waiting
        calls = [await self.call(HEALTH.replace(b"/health", b"/wait"), address) for _ in range(count)]
        while self.app.waiting < before + count:
            await asyncio.sleep(0.01)
        return calls

    def close(self) -> None:
        for writer in self._open:
            writer.close()


async def answer(reader: asyncio.StreamReader) -> int:
    """The status of an answer; 0 when the server hung up without one."""
    with contextlib.suppress(ConnectionError):
        line = await reader.readline()
        return int(line.split()[1]) if line else 0
    return 0


def against(scene: Callable[[Callers], Awaitable[None]], **limits: Any) -> None:
    @contextlib.asynccontextmanager
    async def callers() -> AsyncIterator[Callers]:
        app = Slow()
        async with serve_in_background(app, limits=ConnectionLimits(**limits)) as url:
            callers = Callers(url, app)
            try:
                yield callers
            finally:
                app.go.set()
                callers.close()

    async def main() -> None:
        async with callers() as given, asyncio.timeout(120):
            await scene(given)

    asyncio.run(main())


def test_an_endless_head_is_cut_off() -> None:
    async def scene(callers: Callers) -> None:
        reader, writer = await callers.call(b"GET / HTTP/1.1\r\nendless: ")
        sent = 0
        with contextlib.suppress(ConnectionError):
            while not reader.at_eof() and sent < 64 << 20:
                writer.write(b"x" * 4096)
                sent += 4096
                await writer.drain()
                await asyncio.sleep(0)
        assert sent < 32 << 20  # what the sockets' buffers hold, not what a sender wishes
        assert await callers.status(b"GET / HTTP/1.1\r\nlong: " + b"x" * 4096) == 431
        assert await callers.status(b"GET /" + b"x" * 4096 + b" HTTP/1.1\r\n\r\n") == 431
        assert await callers.status(HEALTH) == 200

    against(scene, head_bytes=4096, **PATIENT)


def test_a_large_body_beside_a_small_head_is_not_taken_for_one() -> None:
    async def scene(callers: Callers) -> None:
        for size in (0, 500, 100_000):
            sent = b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % size + b"x" * size
            reader, writer = await callers.call(sent)
            assert await answer(reader) == 200
            writer.write(HEALTH)  # on the same connection
            said = await reader.readuntil(b"HTTP/1.1 200")
            assert said.endswith(b"\r\n\r\n%dHTTP/1.1 200" % size)

    against(scene, head_bytes=200, **PATIENT)


def test_a_head_of_many_headers_is_refused() -> None:
    async def scene(callers: Callers) -> None:
        for count, status in ((20, 200), (21, 431)):
            head = b"GET / HTTP/1.1\r\n" + b"".join(b"h%d: 1\r\n" % number for number in range(count))
            assert await callers.status(head + b"\r\n") == status

    against(scene, headers=20, **PATIENT)


def test_a_late_head_and_a_late_body_are_refused() -> None:
    async def scene(callers: Callers) -> None:
        body = b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\n\r\nab"
        for half in (b"", HALF, body):
            assert await callers.status(half) == 408
        reader, writer = await callers.call(HEALTH)
        assert await answer(reader) == 200
        writer.write(HALF)  # a second one, half
        assert b" 408 " in await reader.read()

    against(scene, head_s=0.2, body_s=0.2)


def test_a_slow_body_that_makes_progress_is_read_to_its_end() -> None:
    async def scene(callers: Callers) -> None:
        _, writer = streams = await callers.call(
            b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 60\r\n\r\n"
        )
        for _ in range(6):
            writer.write(b"x" * 10)
            await asyncio.sleep(0.1)
        assert await answer(streams[0]) == 200

    against(scene, head_s=300.0, body_s=0.2, body_bytes_a_second=1)


def test_half_requests_lock_nobody_out() -> None:
    """Three times as many as there are places: each that came later takes that of one that came before."""

    async def scene(callers: Callers) -> None:
        halves = [await callers.call(HALF) for _ in range(30)]
        assert await callers.status(HEALTH) == 200
        for reader, _ in halves[:15]:
            assert await answer(reader) == 0

    against(scene, connections=10, reserve=1, **PATIENT)


def test_connections_that_are_served_keep_their_places_and_health_is_still_answered() -> None:
    async def scene(callers: Callers) -> None:
        busy = await callers.busy(6)  # all that one address may hold
        for _ in range(5):
            assert await callers.status(HEALTH) == 200
            assert await callers.status(HEALTH.replace(b"/health", b"/run")) == 503
        halves = [await callers.call(HALF) for _ in range(9)]  # not even of the reserve
        assert await callers.status(HEALTH) == 200
        assert len(halves) == 9
        callers.app.go.set()
        assert [await answer(reader) for reader, _ in busy] == [200] * 6

    against(scene, connections=8, reserve=2, **PATIENT)


def test_one_address_cannot_take_the_places_of_all() -> None:
    async def scene(callers: Callers) -> None:
        await callers.busy(6, "127.0.0.2")
        assert await callers.status(HEALTH.replace(b"/health", b"/run"), "127.0.0.2") == 503
        assert await callers.status(HEALTH.replace(b"/health", b"/run"), "127.0.0.3") == 200

    against(scene, connections=8, reserve=2, **PATIENT)


def test_an_idle_connection_makes_room_before_a_request_that_has_just_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "_YOUNG_S", 300.0)

    async def scene(callers: Callers) -> None:
        idle = [await callers.call(HEALTH, "127.0.0.2") for _ in range(3)]
        assert [await answer(reader) for reader, _ in idle] == [200] * 3
        begun, writer = await callers.call(HALF, "127.0.0.2")
        assert await callers.status(HEALTH, "127.0.0.3") == 200
        writer.write(b"alhost\r\n\r\n")
        assert await answer(begun) == 200
        await idle[0][0].read()  # to its end, for it was closed

    against(scene, connections=4, reserve=1, **PATIENT)


def test_a_thousand_pipelined_requests_are_not_all_accepted() -> None:
    async def scene(callers: Callers) -> None:
        reader, _ = await callers.call(HEALTH.replace(b"/health", b"/wait") + HEALTH * 1000)
        assert await answer(reader) in (429, 0)
        assert await callers.status(HEALTH) == 200

    against(scene, **PATIENT)


@pytest.mark.parametrize("files", [300, 1000])
def test_there_are_never_more_connections_than_files(files: int) -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    try:
        assert ConnectionLimits().total == files - 128 - 16
        ConnectionLimits(connections=files).raise_open_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(files + 128 + 16, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
