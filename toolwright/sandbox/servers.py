"""Several servers that are asked as if they were one.

One that stands still is noticed, its calls are asked of another, and it is left out until it answers again.
A call that a live server keeps for half of its time is asked of a second one as well.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import orjson

from toolwright.failures import InfrastructureFailure, UserError
from toolwright.sandbox.balance import Balance, Server

_RETRIED_CODES = (408, 429, 500, 502, 503, 504)
_LONGEST_WISH_S = 10.0
_LOOK_AFTER_S = 1.0  # a server that has kept a call this long is asked for a sign of life
_PROBE_S = 1.5  # how long it has for one; it is asked twice
_HEDGES_A_CALL = 0.1  # second askings: a tenth of all calls, so that servers that are all slow get no slower
_HEDGES_AT_ONCE = 10.0
_NEVER_TWICE = "/sessions"  # two sessions for one caller would leave one behind
_NO_LIMIT = aiohttp.ClientTimeout(total=None)  # deadlines are kept by whoever asks


class SessionLost(InfrastructureFailure):
    """The session is gone, and its variables with it."""


class RequestTooLarge(UserError):
    """More than the server takes in one request."""


class TryAgain(Exception):
    """An infrastructure error; `after_s` is the server's own wish."""

    def __init__(self, text: str, after_s: float = 0.0) -> None:
        super().__init__(text)
        self.after_s = after_s


class Servers:
    """The servers of one client, at most so many requests to them at a time, and so far apart."""

    def __init__(self, urls: list[str], *, token: str | None, concurrency: int, interval_s: float) -> None:
        self._balance = Balance(urls)
        self._headers = {"content-type": "application/json"}
        if token:
            self._headers["authorization"] = f"Bearer {token}"
        self._concurrency = concurrency
        self._interval_s = interval_s
        self._next_start = 0.0
        self._hedges = _HEDGES_AT_ONCE
        self._http: aiohttp.ClientSession | None = None
        self._places: asyncio.Semaphore | None = None

    def __str__(self) -> str:
        return ", ".join(server.url for server in self._balance.servers)

    def choose(self, avoid: Server | None = None) -> Server:
        return self._balance.choose(avoid)

    async def close(self) -> None:
        watches = [
            one for server in self._balance.servers for one in (server.probe, server.return_watch) if one
        ]
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)
        if self._http is not None:
            await self._http.close()
            self._http = None

    async def ask_one_or_two(
        self, server: Server, path: str, body: object, deadline: float
    ) -> tuple[dict[str, Any], Server]:
        """The answer and who gave it: this server, or a second one where this one keeps the call too long.

        That is: when it gives no sign of life, or does and yet has kept the call for half of its time.
        """
        if len(self._balance.servers) == 1:
            return await self.ask(server, "POST", path, body), server
        async with self._place():
            now = time.monotonic()
            hedge_at = now + (deadline - now) / 2
            calls = {asyncio.ensure_future(self._exchange(server, "POST", path, body)): server}
            try:
                while True:
                    await asyncio.wait(calls, timeout=_LOOK_AFTER_S, return_when=asyncio.FIRST_COMPLETED)
                    hangs = not any(call.done() for call in calls) and await self._hangs(
                        [*calls.values()][-1]
                    )
                    for call in [call for call in calls if call.done()]:
                        if call.exception() is None or len(calls) == 1:
                            if len(calls) == 2 and calls[call] is not server:
                                self._failed(server)  # a second one was faster by half of the call's time
                            return call.result(), calls[call]
                        del calls[call]
                    late = time.monotonic() >= hedge_at and path != _NEVER_TWICE
                    second = (
                        self._second(server, hangs=hangs) if len(calls) == 1 and (hangs or late) else None
                    )
                    if second is not None:
                        calls[asyncio.ensure_future(self._exchange(second, "POST", path, body))] = second
                    elif hangs and len(calls) == 2:
                        raise TryAgain("it stands still, and so does a second one")
            finally:
                for call in calls:
                    call.cancel()

    async def _hangs(self, server: Server) -> bool:
        """Whether it gives no sign of life; it is then left out. Without another to ask, it is waited for."""
        if await self._is_alive(server) or self._balance.second(server) is None:
            return False
        if not server.is_out:
            server.eject()
            self._watch(server)
        return True

    def _second(self, first: Server, *, hangs: bool) -> Server | None:
        """Another server to ask; only so often while the first is alive, and perhaps all are slow."""
        if not hangs and self._hedges < 1:
            return None
        second = self._balance.second(first)
        if second is not None and not hangs:
            self._hedges -= 1
        return second

    async def _is_alive(self, server: Server) -> bool:
        """One probe for all who ask at the same time."""
        if server.probe is None or server.probe.done():
            server.probe = asyncio.ensure_future(self._probe(server))
        return await asyncio.shield(server.probe)

    async def _probe(self, server: Server) -> bool:
        """Any answer is a sign of life. It is asked twice: perhaps it was this process that stood still."""
        for _ in range(2):
            try:
                async with asyncio.timeout(_PROBE_S), self._session().get(server.url + "/health"):
                    return True
            except (aiohttp.ClientError, OSError):  # of which TimeoutError is one
                continue
        return False

    def _watch(self, server: Server) -> None:
        """Lets a server that was left out back in when it gives a sign of life, and not before."""

        async def until_it_is_back() -> None:
            while server.is_out:
                await asyncio.sleep(max(0.0, server.back_at - time.monotonic() - 2 * _PROBE_S))
                if await self._is_alive(server):
                    server.let_in()
                else:
                    server.eject()

        if server.return_watch is None or server.return_watch.done():
            server.return_watch = asyncio.ensure_future(until_it_is_back())

    def _session(self) -> aiohttp.ClientSession:
        if self._http is None:
            self._http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=_NO_LIMIT)
        return self._http

    @asynccontextmanager
    async def _place(self) -> AsyncIterator[None]:
        if self._places is None:
            self._places = asyncio.Semaphore(self._concurrency)
        async with self._places:
            await self._keep_interval()
            yield

    async def ask(self, server: Server, method: str, path: str, body: object) -> dict[str, Any]:
        async with self._place():
            return await self._exchange(server, method, path, body)

    async def _exchange(self, server: Server, method: str, path: str, body: object) -> dict[str, Any]:
        server.outstanding += 1
        try:
            data = orjson.dumps(body)
            request = self._session().request(method, server.url + path, data=data, headers=self._headers)
            async with request as response:
                answer = await response.read()
            told = self._understood(server, path, response.status, response.headers, answer)
            self._hedges = min(_HEDGES_AT_ONCE, self._hedges + _HEDGES_A_CALL)
            return told
        except (aiohttp.ClientError, OSError, EOFError) as error:
            self._failed(server)
            raise TryAgain(f"{type(error).__name__}: {error}") from None
        finally:
            server.outstanding -= 1

    def _failed(self, server: Server) -> None:
        server.failed()
        if server.is_out:
            self._watch(server)

    def _understood(
        self, server: Server, path: str, code: int, headers: Mapping[str, str], body: bytes
    ) -> dict[str, Any]:
        try:
            told = orjson.loads(body)
        except orjson.JSONDecodeError:
            told = None
        if code == 200 and isinstance(told, dict):
            server.succeeded()
            return told
        text = told.get("error") if isinstance(told, dict) else body[:200].decode(errors="replace")
        if code == 429:
            # Busy is not sick.
            raise TryAgain(f"busy: {text}", _seconds(headers.get("retry-after")))
        if code in _RETRIED_CODES or code == 200:
            self._failed(server)
            raise TryAgain(f"answered {code}: {text}", _seconds(headers.get("retry-after")))
        if code in (404, 410) and path.startswith("/sessions/"):
            raise SessionLost(str(text))
        kind = RequestTooLarge if code == 413 else UserError
        raise kind(f"{server.url} refused the call with {code}: {text}")

    async def _keep_interval(self) -> None:
        if self._interval_s <= 0:
            return
        now = time.monotonic()
        start = max(now, self._next_start)
        self._next_start = start + self._interval_s
        if start > now:
            await asyncio.sleep(start - now)


def _seconds(header: str | None) -> float:
    try:
        return min(float(header or 0), _LONGEST_WISH_S)
    except ValueError:
        return 0.0
