"""One HTTP request and its response: a body in, a reply or server-sent events out."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import ExitStack, aclosing
from typing import Any

import orjson
from pydantic import ValidationError

from toolwright.serve.problems import HttpProblem, of_validation
from toolwright.web.asgi import (
    ClientDisconnected,
    ClientWatch,
    HttpReply,
    Receive,
    Scope,
    Send,
    header,
    send_reply,
)
from toolwright.web.body import BodyTooLarge, parse_json, read_body
from toolwright.web.callers import RequestRefused

logger = logging.getLogger("toolwright.serve")

BODY_MB = 32
WATCH_AFTER_S = 0.05
DISCONNECTED = 499  # the status that is counted for a caller who disconnected, as nginx does
EVENTS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]

# Handles the request: returns a whole reply, or a stream of events.
Work = Callable[[], Awaitable[HttpReply | AsyncGenerator[bytes]]]


class RequestLog:
    """Records requests; this base class records none."""

    def count(self, route: str, code: int, started: float) -> None:
        """A request was answered."""

    def first(self, route: str, started: float) -> None:
        """The first event of a stream is on its way."""


class Exchange:
    """Handles a request and its response."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, metrics: RequestLog, route: str) -> None:
        self.scope, self.path, self.method = scope, scope["path"], scope["method"]
        self._receive, self._send, self._metrics, self._route = receive, send, metrics, route
        self._started = time.perf_counter()
        self._guards = ExitStack()
        self._anthropic = self.path.startswith("/v1/messages") or bool(header(scope, b"anthropic-version"))

    async def body(self) -> Any:
        try:
            raw = await read_body(self.scope, self._receive, limit=BODY_MB << 20)
            self._guards.enter_context(ClientWatch(self._receive, after_s=WATCH_AFTER_S))
            return await parse_json(raw)
        except BodyTooLarge as error:
            raise HttpProblem(413, str(error)) from None
        except orjson.JSONDecodeError as error:
            raise HttpProblem(400, f"the body is not JSON: {error}") from None

    async def run(self, work: Work) -> None:
        """Do the work and send its result; cancel it if the caller disconnects."""
        try:
            with self._guards:
                code = await self._send_outcome(work)
        except ClientDisconnected:
            code = DISCONNECTED
        self._metrics.count(self._route, code, self._started)

    async def _send_outcome(self, work: Work) -> int:
        try:
            outcome = await work()
            if isinstance(outcome, HttpReply):
                reply = outcome
            else:
                async with aclosing(outcome):
                    first = await anext(outcome)  # an error before the first event still gets its own status
                    return await self._stream(first, outcome)
        except ClientDisconnected:
            raise
        except Exception as error:
            problem = self._as_problem(error)
            reply = HttpReply(self._encode(problem), problem.status)
            if problem.status in (429, 503):
                reply.headers.append((b"retry-after", b"1"))
            if problem.status == 413:  # do not wait for the rest of the body
                reply.headers.append((b"connection", b"close"))
        await send_reply(self._send, reply, head=self.method == "HEAD")
        return reply.code

    async def _stream(self, first: bytes, rest: AsyncGenerator[bytes]) -> int:
        self._metrics.first(self._route, self._started)
        await self._send({"type": "http.response.start", "status": 200, "headers": EVENTS})
        await self._send_event(first)
        code = 200
        try:
            async for event in rest:
                await self._send_event(event)
        except Exception as error:  # too late for a status: send an error event
            problem = self._as_problem(error)
            code = problem.status
            mark = b"event: error\n" if self._anthropic else b""
            await self._send_event(mark + b"data: " + self._encode(problem) + b"\n\n")
        await self._send({"type": "http.response.body", "body": b""})
        return code

    async def _send_event(self, event: bytes) -> None:
        await self._send({"type": "http.response.body", "body": event, "more_body": True})

    def _encode(self, problem: HttpProblem) -> bytes:
        return orjson.dumps(problem.anthropic() if self._anthropic else problem.openai())

    def _as_problem(self, error: Exception) -> HttpProblem:
        if isinstance(error, HttpProblem):
            return error
        if isinstance(error, ValidationError):
            return of_validation(error)
        if isinstance(error, RequestRefused):
            return HttpProblem(
                error.status, str(error), code="invalid_api_key" if error.status == 401 else None
            )
        logger.error("%s %s failed", self.method, self.path, exc_info=error)
        return HttpProblem(500, "the server failed; see its log")
