"""The client: it sends small calls in batches and retries infrastructure errors.

It opens nothing before the first call, so you can create a client in any process. `BlockingClient` makes the
same calls from code without an event loop.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from toolwright.failures import InfrastructureFailure
from toolwright.sandbox.servers import RequestTooLarge, Server, Servers, SessionLost, TryAgain
from toolwright.web.loop_thread import LoopThread

_BACKOFF_S = 0.1
_BACKOFF_MOST_S = 10.0
_UNJUDGED = ("queue:", "worker:", "the server is stopping")
_BY_THE_SERVER = ("killed", "time_limit")  # verdicts whose reason is the server's own

Answer = TypeVar("Answer")


class DeadlinePassed(InfrastructureFailure):
    """No answer came in the caller's time."""


@dataclass(frozen=True)
class ExecutionResult:
    """The result of a run; `status` is ok, error, timeout, memory or killed."""

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
    def of(body: Mapping[str, Any]) -> ExecutionResult:
        known = {
            name: body[name] for name in ExecutionResult.__dataclass_fields__ if body.get(name) is not None
        }
        return ExecutionResult(**{"exit_code": None, **known})

    @property
    def is_infrastructure(self) -> bool:
        """True if the result says nothing about the code: it never ran, or its worker was killed."""
        return self.exit_code is None and self.reason.startswith(_UNJUDGED)


@dataclass(eq=False)
class _Waiting:
    """A call that waits for its batch and its answer."""

    body: dict[str, Any]
    answer: asyncio.Future[ExecutionResult]
    deadline: float


class Client:
    """An asynchronous client. All tasks of one event loop may share it."""

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
        retry_delay_s: float | None = None,
    ) -> None:
        self._servers = Servers(
            [urls] if isinstance(urls, str) else list(urls),
            token=token,
            concurrency=concurrency,
            interval_s=request_interval,
        )
        self._batch_size = max(1, batch_size)
        self._batch_timeout_s = batch_timeout_seconds
        self._timeout_s = timeout
        self._max_retries, self._retry_delay_s = max_retries, retry_delay_s
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
        await self._servers.close()

    def _pause_s(self, attempt: int) -> float:
        """Seconds to wait before another try: those that were set, or twice as many each time, with full
        jitter, so that many clients do not come back at once."""
        if self._retry_delay_s is not None:
            return self._retry_delay_s
        return random.uniform(0, min(_BACKOFF_S * 2 ** min(attempt, 10), _BACKOFF_MOST_S)) + 0.01

    async def run(self, code: str, *, timeout: float | None = None, **options: Any) -> ExecutionResult:
        """Runs code. `options` are the other fields of a run: stdin, timeout_s, files, language and so on.

        Errors of the code are in the result. Raises InfrastructureFailure if the infrastructure fails.
        """
        return await self._until_run(self._run_once, {"code": code, **options}, timeout)

    async def judge(self, code: str, *, timeout: float | None = None, **options: Any) -> dict[str, Any]:
        """Judges code; see `POST /judge`."""
        return await self._until_run(self._judge_once, {"code": code, **options}, timeout)

    async def open_session(self, **options: Any) -> SandboxSession:
        """Opens a live interpreter on one of the servers."""
        deadline = time.monotonic() + self._timeout_s
        opened, server = await self._in_time(self._post("/sessions", options, deadline), self._timeout_s)
        return SandboxSession(self, server, opened["id"])

    async def _in_time(self, call: Awaitable[Answer], limit: float) -> Answer:
        try:
            async with asyncio.timeout(limit):
                return await call
        except TimeoutError:
            raise DeadlinePassed(f"no answer from the sandbox ({self._servers}) within {limit:g} s") from None

    async def _until_run(
        self,
        once: Callable[[dict[str, Any], float], Awaitable[tuple[Answer, str]]],
        body: dict[str, Any],
        timeout: float | None,
    ) -> Answer:
        """Calls `once` until the code has run. It gives an answer, and the reason if the code did not run."""
        limit = self._timeout_s if timeout is None else timeout
        deadline = time.monotonic() + limit

        async def tries(body: dict[str, Any]) -> Answer:
            for attempt in range(self._max_retries + 1):
                answer, reason = await once(body, deadline)
                if not reason:
                    return answer
                if reason.startswith("worker:"):
                    # If the worker dies that it has for itself, the server says that the run is at fault.
                    body = {**body, "alone": True}
                if attempt < self._max_retries:
                    await asyncio.sleep(self._pause_s(attempt))
            raise InfrastructureFailure(f"the sandbox could not run it: {reason}")

        return await self._in_time(tries(body), limit)

    async def _judge_once(self, body: dict[str, Any], deadline: float) -> tuple[dict[str, Any], str]:
        result, _ = await self._post("/judge", body, deadline)
        # Of other verdicts the program may have written the reason: the text of an error that it raises.
        reasons = (
            v.get("reason") or "" for v in result.get("verdicts", []) if v["verdict"] in _BY_THE_SERVER
        )
        return result, next((reason for reason in reasons if reason.startswith(_UNJUDGED)), "")

    async def _run_once(self, body: dict[str, Any], deadline: float) -> tuple[ExecutionResult, str]:
        result = await self._run_in_batch(body, deadline)
        return result, result.reason if result.is_infrastructure else ""

    # Batches.

    async def _run_in_batch(self, body: dict[str, Any], deadline: float) -> ExecutionResult:
        if self._batch_size == 1:
            return ExecutionResult.of((await self._post("/run", body, deadline))[0])
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
        """Sends one request for all. Each caller keeps its own deadline; the request lives until the last."""
        deadline = max(call.deadline for call in calls)
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                body = {"runs": [call.body for call in calls]}
                answer, _ = await self._post("/run/batch", body, deadline)
            results = [ExecutionResult.of(item) for item in answer["results"]]
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
        except RequestTooLarge as error:
            # They may be too large together, and not each alone.
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

    async def _post(self, path: str, body: object, deadline: float) -> tuple[dict[str, Any], Server]:
        """Tries one server after another until the retries or the time are used up. Returns the answer and
        the server that gave it."""
        last: Server | None = None
        for attempt in range(self._max_retries + 1):
            last = self._servers.choose(avoid=last)
            try:
                return await self._servers.ask_with_hedge(last, path, body, deadline)
            except TryAgain as error:
                wait = max(error.after_s, self._pause_s(attempt))
                if attempt == self._max_retries:
                    raise InfrastructureFailure(f"{last.url}{path}: {error}, {attempt + 1} times") from None
                if time.monotonic() + wait >= deadline:
                    raise DeadlinePassed(
                        f"{last.url}{path}: {error}, and no time is left to try again"
                    ) from None
                await asyncio.sleep(wait)
        raise AssertionError("unreachable")


class SandboxSession:
    """A live interpreter on one server. If the server is gone, so is the session."""

    def __init__(self, client: Client, server: Server, name: str) -> None:
        self._client = client
        self._server = server
        self.name = name

    async def __aenter__(self) -> SandboxSession:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def run(self, code: str, *, timeout: float | None = None, **options: Any) -> ExecutionResult:
        """Runs a cell. It is never sent twice: the first time may have changed the session."""
        limit = self._client._timeout_s if timeout is None else timeout
        call = self._client._servers.ask(
            self._server, "POST", f"/sessions/{self.name}/run", {"code": code, **options}
        )
        try:
            result = ExecutionResult.of(await self._client._in_time(call, limit))
        except TryAgain as error:
            raise InfrastructureFailure(f"{self._server.url}: {error}") from None
        if result.is_infrastructure:
            raise InfrastructureFailure(
                f"the cell was not run, and the session is as before: {result.reason}"
            )
        return result

    async def close(self) -> None:
        try:
            await self._client._servers.ask(self._server, "DELETE", f"/sessions/{self.name}", None)
        except (TryAgain, SessionLost):
            return


class BlockingClient:
    """Takes the arguments of `Client`. Threads may share it: their calls travel in the same batches."""

    def __init__(self, urls: str | list[str], **options: Any) -> None:
        self._arguments = (urls, options)
        self._loop = LoopThread("sandbox-client")
        self._lock = threading.Lock()
        self._client: Client | None = None

    def __enter__(self) -> BlockingClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, code: str, **options: Any) -> ExecutionResult:
        return self._loop.run(self._opened().run(code, **options))

    def run_many(self, codes: list[str], **options: Any) -> list[ExecutionResult]:
        """Results in the order of the codes."""
        client = self._opened()

        async def run_all() -> list[ExecutionResult]:
            return await asyncio.gather(*(client.run(code, **options) for code in codes))

        return self._loop.run(run_all())

    def judge(self, code: str, **options: Any) -> dict[str, Any]:
        return self._loop.run(self._opened().judge(code, **options))

    def open_session(self, **options: Any) -> BlockingSession:
        return BlockingSession(self._loop, self._loop.run(self._opened().open_session(**options)))

    def close(self) -> None:
        """Closes the client. Calls of other threads that are under way are cancelled."""
        with self._lock:
            client, self._client = self._client, None
            if client is not None:
                self._loop.run(client.close())
                self._loop.close()

    def _opened(self) -> Client:
        with self._lock:
            if self._client is None:
                urls, options = self._arguments
                self._client = Client(urls, **options)
            return self._client


class BlockingSession:
    """A session of a blocking client."""

    def __init__(self, loop: LoopThread, session: SandboxSession) -> None:
        self._loop = loop
        self._session = session
        self.name = session.name

    def __enter__(self) -> BlockingSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, code: str, **options: Any) -> ExecutionResult:
        return self._loop.run(self._session.run(code, **options))

    def close(self) -> None:
        self._loop.run(self._session.close())
