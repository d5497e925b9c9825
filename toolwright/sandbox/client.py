"""The client: small calls travel in batches, infrastructure errors are retried, answers are answers.

Nothing is opened before the first call, so that a client can be made from its configuration in any process.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import aiohttp
import orjson

from toolwright.failures import InfrastructureFailure, UserError
from toolwright.sandbox.balance import Balance, Server

_RETRIED_CODES = (429, 500, 502, 503, 504)
_BACKOFF_S = 0.1
_BACKOFF_MOST_S = 10.0

Answer = TypeVar("Answer")


class DeadlinePassed(InfrastructureFailure):
    """No answer came in the time that the caller gave."""


class SessionLost(InfrastructureFailure):
    """The session is gone, and its variables with it."""


class _TooLarge(UserError):
    """More than the server takes in one request."""


class _TryAgain(Exception):
    """An infrastructure error; `after_s` is the server's own wish."""

    def __init__(self, text: str, after_s: float = 0.0) -> None:
        super().__init__(text)
        self.after_s = after_s


@dataclass(frozen=True)
class Result:
    """How a run went; `status` is ok, error, timeout, memory or killed."""

    status: str
    stdout: str
    stderr: str
    exit_code: int | None
    duration_s: float
    queued_s: float
    truncated: bool
    reason: str = ""
    files: Mapping[str, Any] = field(default_factory=dict)
    value: str | None = None

    @property
    def ok(self) -> bool:
        return self.status == "ok"

    @staticmethod
    def of(told: Mapping[str, Any]) -> Result:
        known = {name: told[name] for name in Result.__dataclass_fields__ if told.get(name) is not None}
        return Result(**{"exit_code": None, **known})

    @property
    def is_infrastructure(self) -> bool:
        """Whether the run says nothing about its code: it never ran, or its worker was killed under it."""
        return self.exit_code is None and self.reason.startswith(
            ("queue:", "worker:", "the server is stopping")
        )


@dataclass(eq=False)
class _Waiting:
    """A call that waits for its batch, and for its answer."""

    body: dict[str, Any]
    answer: asyncio.Future[Result]
    deadline: float


class Client:
    """Asynchronous. One client serves any number of tasks of one event loop."""

    def __init__(
        self,
        urls: str | list[str],
        *,
        token: str | None = None,
        batch_size: int = 32,
        batch_timeout_seconds: float = 0.005,
        concurrency: int = 64,
        request_interval: float = 0.0,
        timeout: float = 60.0,
        max_retries: int = 4,
    ) -> None:
        self._balance = Balance([urls] if isinstance(urls, str) else list(urls))
        self._token = token
        self._batch_size = max(1, batch_size)
        self._batch_timeout_s = batch_timeout_seconds
        self._concurrency = concurrency
        self._interval_s = request_interval
        self._timeout_s = timeout
        self._max_retries = max_retries
        self._http: aiohttp.ClientSession | None = None
        self._places: asyncio.Semaphore | None = None
        self._next_start = 0.0
        self._waiting: list[_Waiting] = []
        self._flush_at: asyncio.TimerHandle | None = None
        self._batches: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        if self._flush_at is not None:
            self._flush_at.cancel()
        for task in list(self._batches):
            task.cancel()
        await asyncio.gather(*self._batches, return_exceptions=True)
        for call in self._waiting:
            call.answer.cancel()
        if self._http is not None:
            await self._http.close()
            self._http = None

    async def run(self, code: str, *, timeout: float | None = None, **wishes: Any) -> Result:
        """Runs code; `wishes` are the other fields of a run: stdin, timeout_s, files, language and so on.

        An error of the code is in the result. Infrastructure that fails raises InfrastructureFailure.
        """
        limit = self._timeout_s if timeout is None else timeout
        body = {"code": code, **wishes}
        return await self._in_time(self._run(body, time.monotonic() + limit), limit)

    async def judge(self, code: str, *, timeout: float | None = None, **wishes: Any) -> dict[str, Any]:
        """Judges code by its output; see `/judge`."""
        limit = self._timeout_s if timeout is None else timeout
        call = self._post("/judge", {"code": code, **wishes}, time.monotonic() + limit)
        return await self._in_time(call, limit)

    async def open_session(self, **wishes: Any) -> Session:
        """A live interpreter on one of the servers."""
        deadline = time.monotonic() + self._timeout_s
        server: list[Server] = []
        told = await self._in_time(self._post("/sessions", wishes, deadline, chosen=server), self._timeout_s)
        return Session(self, server[-1], told["id"])

    async def _in_time(self, call: Any, limit: float) -> Any:
        try:
            async with asyncio.timeout(limit):
                return await call
        except TimeoutError:
            names = ", ".join(server.url for server in self._balance.servers)
            raise DeadlinePassed(f"no answer from the sandbox ({names}) within {limit:g} s") from None

    # Batches.

    async def _run(self, body: dict[str, Any], deadline: float) -> Result:
        for attempt in range(self._max_retries + 1):
            result = await self._run_once(body, deadline)
            if not result.is_infrastructure or attempt == self._max_retries:
                break
            await asyncio.sleep(_backoff(attempt))
        if result.is_infrastructure:
            raise InfrastructureFailure(f"the sandbox could not run it: {result.reason}")
        return result

    async def _run_once(self, body: dict[str, Any], deadline: float) -> Result:
        if self._batch_size == 1:
            return Result.of(await self._post("/run", body, deadline))
        call = _Waiting(body, asyncio.get_running_loop().create_future(), deadline)
        self._waiting.append(call)
        if len(self._waiting) >= self._batch_size:
            self._flush()
        elif self._flush_at is None:
            self._flush_at = asyncio.get_running_loop().call_later(self._batch_timeout_s, self._flush)
        return await call.answer

    def _flush(self) -> None:
        if self._flush_at is not None:
            self._flush_at.cancel()
            self._flush_at = None
        calls, self._waiting = [call for call in self._waiting if not call.answer.done()], []
        if calls:
            task = asyncio.get_running_loop().create_task(self._send_batch(calls))
            self._batches.add(task)
            task.add_done_callback(self._batches.discard)

    async def _send_batch(self, calls: list[_Waiting]) -> None:
        """One request for all. Each caller keeps its own deadline; the request lives until the last one."""
        deadline = max(call.deadline for call in calls)
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                told = await self._post("/run/batch", {"runs": [call.body for call in calls]}, deadline)
            results = [Result.of(item) for item in told["results"]]
            if len(results) != len(calls):
                raise InfrastructureFailure(
                    f"{len(calls)} runs were sent and {len(results)} results came back"
                )
            for call, result in zip(calls, results, strict=True):
                if not call.answer.done():
                    call.answer.set_result(result)
        except asyncio.CancelledError:
            for call in calls:
                call.answer.cancel()
            raise
        except _TooLarge as error:
            # Together they may be, each alone need not.
            half = len(calls) // 2
            if half:
                await asyncio.gather(self._send_batch(calls[:half]), self._send_batch(calls[half:]))
            elif not calls[0].answer.done():
                calls[0].answer.set_exception(error)
        except Exception as error:
            for call in calls:
                if not call.answer.done():
                    call.answer.set_exception(error)

    # Requests.

    async def _post(
        self, path: str, body: object, deadline: float, chosen: list[Server] | None = None
    ) -> dict[str, Any]:
        """Asks one server after another until one answers, the tries are used up, or the time is."""
        last: Server | None = None
        for attempt in range(self._max_retries + 1):
            last = self._balance.choose(avoid=last)
            try:
                told = await self._ask(last, "POST", path, body)
            except _TryAgain as error:
                wait = max(error.after_s, _backoff(attempt))
                if attempt == self._max_retries:
                    raise InfrastructureFailure(f"{last.url}{path}: {error}, {attempt + 1} times") from None
                if time.monotonic() + wait >= deadline:
                    raise DeadlinePassed(
                        f"{last.url}{path}: {error}, and no time is left to try again"
                    ) from None
                await asyncio.sleep(wait)
            else:
                if chosen is not None:
                    chosen.append(last)
                return told
        raise AssertionError("unreachable")

    async def _ask(self, server: Server, method: str, path: str, body: object) -> dict[str, Any]:
        if self._http is None:
            self._http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=_NO_LIMIT)
            self._places = asyncio.Semaphore(self._concurrency)
        assert self._places is not None
        headers = {"content-type": "application/json"}
        if self._token:
            headers["authorization"] = f"Bearer {self._token}"
        async with self._places:
            await self._keep_interval()
            server.outstanding += 1
            try:
                data = orjson.dumps(body)
                async with self._http.request(
                    method, server.url + path, data=data, headers=headers
                ) as response:
                    answer = await response.read()
                    return self._understood(server, path, response.status, response.headers, answer)
            except (aiohttp.ClientError, OSError, EOFError) as error:
                server.failed()
                raise _TryAgain(f"{type(error).__name__}: {error}") from None
            finally:
                server.outstanding -= 1

    @staticmethod
    def _understood(
        server: Server, path: str, code: int, headers: Mapping[str, str], body: bytes
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
            raise _TryAgain(f"busy: {text}", _seconds(headers.get("retry-after")))
        if code in _RETRIED_CODES or code == 200:
            server.failed()
            raise _TryAgain(f"answered {code}: {text}", _seconds(headers.get("retry-after")))
        if code in (404, 410) and path.startswith("/sessions/"):
            raise SessionLost(str(text))
        kind = _TooLarge if code == 413 else UserError
        raise kind(f"{server.url} refused the call with {code}: {text}")

    async def _keep_interval(self) -> None:
        if self._interval_s <= 0:
            return
        now = time.monotonic()
        start = max(now, self._next_start)
        self._next_start = start + self._interval_s
        if start > now:
            await asyncio.sleep(start - now)


_NO_LIMIT = aiohttp.ClientTimeout(total=None)  # deadlines are kept by whoever asks


class Session:
    """A live interpreter. It lives on one server; when that is gone, so is the session."""

    def __init__(self, client: Client, server: Server, name: str) -> None:
        self._client = client
        self._server = server
        self.name = name

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def run(self, code: str, *, timeout: float | None = None, **wishes: Any) -> Result:
        """One cell. Never sent twice: it may have changed the session the first time."""
        limit = self._client._timeout_s if timeout is None else timeout
        call = self._client._ask(self._server, "POST", f"/sessions/{self.name}/run", {"code": code, **wishes})
        try:
            result = Result.of(await self._client._in_time(call, limit))
        except _TryAgain as error:
            raise InfrastructureFailure(f"{self._server.url}: {error}") from None
        if result.is_infrastructure:
            raise InfrastructureFailure(
                f"the cell was not run, and the session is as before: {result.reason}"
            )
        return result

    async def close(self) -> None:
        try:
            await self._client._ask(self._server, "DELETE", f"/sessions/{self.name}", None)
        except (_TryAgain, SessionLost):
            return


def _backoff(attempt: int) -> float:
    """Doubling, with jitter over the whole width, so that many clients do not come back at once."""
    return random.uniform(0, min(_BACKOFF_S * 2**attempt, _BACKOFF_MOST_S)) + 0.01


def _seconds(header: str | None) -> float:
    try:
        return min(float(header or 0), _BACKOFF_MOST_S)
    except ValueError:
        return 0.0
