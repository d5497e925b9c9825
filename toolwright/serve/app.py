"""The HTTP face of a model: a bare ASGI application."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import orjson
from pydantic import ValidationError

from toolwright.serve.anthropic import Anthropic
from toolwright.serve.metrics import CONTENT_TYPE, Metrics
from toolwright.serve.openai import OpenAI, Outcome
from toolwright.serve.problems import Problem, of_validation
from toolwright.serve.service import Service
from toolwright.web.asgi import (
    Gone,
    Receive,
    Reply,
    Scope,
    Send,
    TooLarge,
    bearer,
    header,
    read_body,
    same,
    send_reply,
)

logger = logging.getLogger("toolwright.serve")

BODY_MB = 32
WATCH_AFTER_S = 0.05
MODELS = "/v1/models"
EVENTS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]


class App:
    """Routes, errors and the token. `draining` turns new work away while the old is finished."""

    def __init__(self, service: Service, token: str | None = None) -> None:
        self.draining = False
        self._token, self._metrics = token, Metrics(service)
        self._openai, anthropic = OpenAI(service), Anthropic(service)
        self._get: dict[str, Callable[[], Reply]] = {
            "/health": self._health,
            "/metrics": lambda: Reply(self._metrics.text(), content_type=CONTENT_TYPE),
            MODELS: self._models,
        }
        self._post: dict[str, Callable[[Any], Awaitable[Outcome]]] = {
            "/v1/chat/completions": self._openai.chat,
            "/v1/completions": self._openai.completions,
            "/v1/messages": anthropic.messages,
            "/v1/messages/count_tokens": anthropic.count_tokens,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        exchange = _Exchange(scope, receive, send, self._metrics, self._route(scope["path"]))
        await exchange.guarded(lambda: self._answer(exchange))

    async def _answer(self, exchange: _Exchange) -> Reply | AsyncIterator[bytes]:
        path, method = exchange.path, exchange.method
        if self._token is not None and path != "/health" and not exchange.shows(self._token):
            raise Problem(401, "this server wants a token", code="invalid_api_key")
        if method in ("GET", "HEAD"):
            if path in self._get:
                return self._get[path]()
            if path.startswith(MODELS + "/"):
                return self._model(path.removeprefix(MODELS + "/"))
        handler = self._post.get(path) if method == "POST" else None
        if handler is None:
            known = path in self._get or path in self._post
            text = f"{path} does not take {method}" if known else f"there is nothing at {path}"
            raise Problem(405 if known else 404, text)
        if self.draining:
            raise Problem(503, "the server is stopping")
        outcome = await handler(await exchange.body())
        return Reply(outcome) if isinstance(outcome, bytes) else outcome

    def _health(self) -> Reply:
        if self.draining:
            raise Problem(503, "the server is stopping")
        return Reply(b'{"status":"ok"}')

    def _models(self) -> Reply:
        models = self._openai.models()
        ends = {"first_id": models[0]["id"], "last_id": models[-1]["id"], "has_more": False}
        return Reply(orjson.dumps({"object": "list", "data": models, **ends}))

    def _model(self, name: str) -> Reply:
        for model in self._openai.models():
            if model["id"] == name:
                return Reply(orjson.dumps(model))
        raise Problem(404, f"the model {name!r} does not exist here", param="model", code="model_not_found")

    def _route(self, path: str) -> str:
        """Names that callers make up must not become labels."""
        if path in self._get or path in self._post:
            return path
        return MODELS + "/{model}" if path.startswith(MODELS + "/") else "other"


class _Exchange:
    """One request and its answer."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, metrics: Metrics, route: str) -> None:
        self.scope, self.path, self.method = scope, scope["path"], scope["method"]
        self._receive, self._send, self._metrics, self._route = receive, send, metrics, route
        self._started = time.perf_counter()
        self._gone: Gone | None = None
        self._anthropic = self.path.startswith("/v1/messages") or bool(header(scope, b"anthropic-version"))

    def shows(self, token: str) -> bool:
        """The SDKs show their keys in different headers."""
        return same(bearer(self.scope) or header(self.scope, b"x-api-key"), token)

    async def body(self) -> Any:
        try:
            raw = await read_body(self.scope, self._receive, limit=BODY_MB << 20)
        except TooLarge:
            raise Problem(413, f"the body is larger than {BODY_MB} MiB") from None
        if raw is None:
            raise asyncio.CancelledError
        task = asyncio.current_task()
        assert task is not None
        self._gone = Gone(self._receive, task, after_s=WATCH_AFTER_S)
        try:
            return orjson.loads(raw)
        except orjson.JSONDecodeError as error:
            raise Problem(400, f"the body is not JSON: {error}") from None

    async def guarded(self, work: Callable[[], Awaitable[Reply | AsyncIterator[bytes]]]) -> None:
        """Does the work and sends what comes of it; gives it up when the caller leaves."""
        try:
            code = await self._send_outcome(work)
            self._metrics.count(self._route, code, self._started)
        except asyncio.CancelledError:
            if self._gone is None or not self._gone.left:
                raise
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()
            self._metrics.count(self._route, 499, self._started)
        finally:
            if self._gone is not None:
                self._gone.forget()

    async def _send_outcome(self, work: Callable[[], Awaitable[Reply | AsyncIterator[bytes]]]) -> int:
        try:
            outcome = await work()
            if isinstance(outcome, Reply):
                reply = outcome
            else:
                first = await anext(outcome)  # what cannot be begun is still answered with its status
                return await self._stream(first, outcome)
        except Exception as error:
            problem = self._sorted_out(error)
            reply = Reply(self._written(problem), problem.status)
            if problem.status in (429, 503):
                reply.headers.append((b"retry-after", b"1"))
        await send_reply(self._send, reply, head=self.method == "HEAD")
        return reply.code

    async def _stream(self, first: bytes, rest: AsyncIterator[bytes]) -> int:
        self._metrics.first(self._route, self._started)
        await self._send({"type": "http.response.start", "status": 200, "headers": EVENTS})
        await self._part(first)
        code = 200
        try:
            async for event in rest:
                await self._part(event)
        except Exception as error:  # too late for a status: the last event says it
            problem = self._sorted_out(error)
            code = problem.status
            mark = b"event: error\n" if self._anthropic else b""
            await self._part(mark + b"data: " + self._written(problem) + b"\n\n")
        await self._send({"type": "http.response.body", "body": b""})
        return code

    async def _part(self, event: bytes) -> None:
        await self._send({"type": "http.response.body", "body": event, "more_body": True})

    def _written(self, problem: Problem) -> bytes:
        return orjson.dumps(problem.anthropic() if self._anthropic else problem.openai())

    def _sorted_out(self, error: Exception) -> Problem:
        if isinstance(error, Problem):
            return error
        if isinstance(error, ValidationError):
            return of_validation(error)
        logger.error("%s %s failed", self.method, self.path, exc_info=error)
        return Problem(500, "the server made a mistake; its log says which")
