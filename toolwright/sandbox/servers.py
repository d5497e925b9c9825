"""Several servers behind one client.

The client notices a server that hangs, sends its calls to another, and leaves it out until it answers again.
A call that a live server keeps for half of its time is sent to a second server as well.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson

from toolwright.failures import InfrastructureFailure, UserError

_RETRIED_CODES = (408, 429, 500, 502, 503, 504)
_LONGEST_RETRY_AFTER_S = 10.0
_LOOK_AFTER_S = 1.0  # after this time the health of a server that keeps a call is checked
_PROBE_S = 1.5  # for an answer to one check; there are two
_HEDGES_A_CALL = 0.1  # second calls: a tenth of all, so that slow servers do not get slower
_HEDGES_AT_ONCE = 10.0
_EJECT_AFTER = 3
_EJECT_S = 5.0
_EJECT_MOST_S = 60.0
_NEVER_TWICE = "/sessions"  # a second session would be left behind
_NO_LIMIT = aiohttp.ClientTimeout(total=None)  # the client keeps the deadlines


class SessionLost(InfrastructureFailure):
    """The session is gone, and its variables with it."""


class RequestTooLarge(UserError):
    """The request is larger than the server takes."""


class TryAgain(Exception):
    """An infrastructure error that may pass; `after_s` is the server's Retry-After."""

    def __init__(self, text: str, after_s: float = 0.0) -> None:
        super().__init__(text)
        self.after_s = after_s


@dataclass(eq=False)
class Server:
    """A URL and its recent health."""

    url: str
    outstanding: int = 0
    failures: int = 0
    ejections: int = 0
    back_at: float = 0.0
    probe: asyncio.Task[bool] | None = None  # whether it answers
    return_watch: asyncio.Task[None] | None = None  # lets it back in

    @property
    def is_out(self) -> bool:
        return self.back_at > time.monotonic()

    def succeeded(self) -> None:
        self.failures = 0
        self.ejections = 0

    def failed(self) -> None:
        """Counts a failure. After three in a row the server is left out, each time for longer."""
        self.failures += 1
        if self.failures >= _EJECT_AFTER and not self.is_out:
            self.eject()

    def eject(self) -> None:
        self.back_at = time.monotonic() + min(_EJECT_S * 2**self.ejections, _EJECT_MOST_S)
        self.ejections += 1
        # One more failure after its return and it is out again.
        self.failures = _EJECT_AFTER - 1


class Servers:
    """The servers of one client. Limits how many requests are under way and how far apart they start."""

    def __init__(self, urls: list[str], *, token: str | None, concurrency: int, interval_s: float) -> None:
        if not urls:
            raise ValueError("a client needs at least one URL")
        self.servers = [Server(url.rstrip("/")) for url in urls]
        self._headers = {"content-type": "application/json"}
        if token:
            self._headers["authorization"] = f"Bearer {token}"
        self._concurrency = concurrency
        self._interval_s = interval_s
        self._next_start = 0.0
        self._hedges = _HEDGES_AT_ONCE
        self._http: aiohttp.ClientSession | None = None
        self._slots: asyncio.Semaphore | None = None

    def __str__(self) -> str:
        return ", ".join(server.url for server in self.servers)

    def choose(self, avoid: Server | None = None) -> Server:
        """The healthy server with the fewest calls; if none is healthy, the one that is back first."""
        first_back = min(self.servers, key=lambda server: server.back_at)
        return self.other_than(avoid) or self.other_than(None) or first_back

    def other_than(self, first: Server | None) -> Server | None:
        """The healthy server with the fewest calls, other than the first; None if there is none."""
        healthy = [server for server in self.servers if server is not first and not server.is_out]
        return min(healthy, key=lambda server: server.outstanding, default=None)

    async def close(self) -> None:
        watches = [one for server in self.servers for one in (server.probe, server.return_watch) if one]
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)
        if self._http is not None:
            await self._http.close()
            self._http = None

    async def ask_with_hedge(
        self, server: Server, path: str, body: object, deadline: float
    ) -> tuple[dict[str, Any], Server]:
        """The answer and the server that gave it: this one, or a second one if this one takes too long.

        It takes too long if it does not answer a health check, or keeps the call for half of its time.
        """
        if len(self.servers) == 1:
            return await self.ask(server, "POST", path, body), server
        async with self._slot():
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
                                self._failed(server)  # the second was faster by half of the call's time
                            return call.result(), calls[call]
                        del calls[call]
                    late = time.monotonic() >= hedge_at and path != _NEVER_TWICE
                    alone = len(calls) == 1 and (hangs or late)
                    second = self._second(server, hangs=hangs) if alone else None
                    if second is not None:
                        calls[asyncio.ensure_future(self._exchange(second, "POST", path, body))] = second
                    elif hangs and len(calls) == 2:
                        raise TryAgain("it hangs, and so does a second server")
            finally:
                for call in calls:
                    call.cancel()

    async def _hangs(self, server: Server) -> bool:
        """Return True if the server hangs; then it is left out. Without another server, the client waits for
        it."""
        if await self._is_alive(server) or self.other_than(server) is None:
            return False
        if not server.is_out:
            server.eject()
            self._watch_return(server)
        return True

    def _second(self, first: Server, *, hangs: bool) -> Server | None:
        """A second server for a call; rarely while the first is alive, because all may be slow."""
        if not hangs and self._hedges < 1:
            return None
        second = self.other_than(first)
        if second is not None and not hangs:
            self._hedges -= 1
        return second

    async def _is_alive(self, server: Server) -> bool:
        """Checks the health, once for all calls that ask at the same time."""
        if server.probe is None or server.probe.done():
            server.probe = asyncio.ensure_future(self._probe(server))
        return await asyncio.shield(server.probe)

    async def _probe(self, server: Server) -> bool:
        """Return True if the server answers at all. Tries twice: perhaps this process was the one that
        hung."""
        for _ in range(2):
            try:
                async with asyncio.timeout(_PROBE_S), self._session().get(server.url + "/health"):
                    return True
            except (aiohttp.ClientError, OSError):  # TimeoutError is an OSError
                continue
        return False

    def _watch_return(self, server: Server) -> None:
        """Lets a server back in as soon as it answers."""

        async def wait_for_return() -> None:
            while server.is_out:
                await asyncio.sleep(max(0.0, server.back_at - time.monotonic() - 2 * _PROBE_S))
                if await self._is_alive(server):
                    server.back_at = 0.0
                else:
                    server.eject()

        if server.return_watch is None or server.return_watch.done():
            server.return_watch = asyncio.ensure_future(wait_for_return())

    def _session(self) -> aiohttp.ClientSession:
        if self._http is None:
            self._http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=_NO_LIMIT)
        return self._http

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        if self._slots is None:
            self._slots = asyncio.Semaphore(self._concurrency)
        async with self._slots:
            await self._keep_interval()
            yield

    async def ask(self, server: Server, method: str, path: str, body: object) -> dict[str, Any]:
        async with self._slot():
            return await self._exchange(server, method, path, body)

    async def _exchange(self, server: Server, method: str, path: str, body: object) -> dict[str, Any]:
        server.outstanding += 1
        try:
            data = orjson.dumps(body)
            request = self._session().request(method, server.url + path, data=data, headers=self._headers)
            async with request as response:
                answer = await response.read()
            result = self._parse(server, path, response.status, response.headers, answer)
            self._hedges = min(_HEDGES_AT_ONCE, self._hedges + _HEDGES_A_CALL)
            return result
        except (aiohttp.ClientError, OSError, EOFError) as error:
            self._failed(server)
            raise TryAgain(f"{type(error).__name__}: {error}") from None
        finally:
            server.outstanding -= 1

    def _failed(self, server: Server) -> None:
        server.failed()
        if server.is_out:
            self._watch_return(server)

    def _parse(
        self, server: Server, path: str, code: int, headers: Mapping[str, str], body: bytes
    ) -> dict[str, Any]:
        try:
            result = orjson.loads(body)
        except orjson.JSONDecodeError:
            result = None
        if code == 200 and isinstance(result, dict):
            server.succeeded()
            return result
        text = result.get("error") if isinstance(result, dict) else body[:200].decode(errors="replace")
        if code == 429:
            # A busy server is not a failing one.
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
        return min(float(header or 0), _LONGEST_RETRY_AFTER_S)
    except ValueError:
        return 0.0
