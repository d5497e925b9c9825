"""The HTTP face of the sandbox: a bare ASGI application.

On the same route and model FastAPI took 0.16 to 0.22 ms of the server's time for a call, this 0.05 ms; and a
result is passed on in the very bytes in which the worker wrote it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError

from toolwright.failures import InfrastructureFailure
from toolwright.sandbox import codejudge, fusion, judge
from toolwright.sandbox.jobs import BadRequest
from toolwright.sandbox.languages import UnknownLanguage
from toolwright.sandbox.metrics import CONTENT_TYPE, SandboxMetrics
from toolwright.sandbox.openapi import document
from toolwright.sandbox.queue import CALLER, Flow, QueueFull
from toolwright.sandbox.requests import BatchRequest, CellRequest, JudgeRequest, RunRequest, SessionRequest
from toolwright.sandbox.service import SandboxService, explain
from toolwright.sandbox.sessions import LostSession, UnknownSession
from toolwright.sandbox.slices import in_slices
from toolwright.web.asgi import Gone, HttpReply, Receive, Scope, Send, send_reply
from toolwright.web.body import BodyTooLarge, parse_json, read_body
from toolwright.web.callers import Callers, RequestRefused

logger = logging.getLogger("toolwright.sandbox")

Model = TypeVar("Model", bound=BaseModel)

_WATCH_AFTER_S = 1.0


def problem(code: int, text: str, *headers: tuple[bytes, bytes]) -> HttpReply:
    return HttpReply(orjson.dumps({"error": text}), code, headers=list(headers))


class SandboxApp:
    """Routes and errors. `draining` turns new work away while the old is finished."""

    def __init__(self, service: SandboxService, callers: Callers) -> None:
        self._service = service
        self._callers = callers
        self._metrics = SandboxMetrics(service)
        self._limit = service.settings.body_mb << 20
        self._openapi = orjson.dumps(document())
        self.draining = False
        self._get: dict[str, Callable[[], HttpReply]] = {
            "/health": self._health,
            "/ping": lambda: HttpReply(b'"pong"'),
            "/status": lambda: HttpReply(orjson.dumps(service.status())),
            codejudge.PREFIX + "/status": lambda: HttpReply(orjson.dumps(codejudge.status(service))),
            "/metrics": lambda: HttpReply(self._metrics.text(), content_type=CONTENT_TYPE.encode()),
            "/openapi.json": lambda: HttpReply(self._openapi),
        }
        self._post: dict[str, Callable[[Any], Awaitable[bytes]]] = {
            "/run": self._run,
            "/run/batch": self._run_batch,
            "/run/long-batch": lambda told: self._submissions(told, long=True, output=True),
            "/judge": self._judge,
            "/judge/batch": lambda told: self._submissions(told, long=False, output=False),
            "/judge/long-batch": lambda told: self._submissions(told, long=True, output=False),
            "/run_code": self._run_code,
            "/sessions": self._open_session,
        }
        self._post |= {codejudge.PREFIX + path: self._post[path] for path in codejudge.PATHS}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        if scope["type"] != "http":
            return
        started = time.perf_counter()
        CALLER.set(scope["client"][0] if scope["client"] else "")
        path, method = scope["path"], scope["method"]
        route = path if path in self._post or path in self._get else _pattern(path)
        try:
            reply = await self._answer(scope, receive, method, path)
        except asyncio.CancelledError:
            raise
        except Exception:
            logger.exception("%s %s failed", method, path)
            reply = problem(500, "the server made a mistake; its log says which")
        if reply is not None:
            await send_reply(self._callers.shared(scope, send), reply, head=method == "HEAD")
            self._metrics.count(route, reply.code, started)

    async def _live(self, receive: Receive, send: Send) -> None:
        """The pool is started and closed by whoever made the service."""
        while True:
            message = await receive()
            await send({"type": message["type"] + ".complete"})
            if message["type"] == "lifespan.shutdown":
                return

    async def _answer(self, scope: Scope, receive: Receive, method: str, path: str) -> HttpReply | None:
        try:
            reply = self._callers.check(scope)
        except RequestRefused as error:
            shown = [(b"www-authenticate", b"Bearer")] if error.status == 401 else []
            return problem(error.status, str(error), *shown)
        if reply is not None:
            return reply
        if method in ("GET", "HEAD") and path in self._get:
            return self._get[path]()
        handler = self._post.get(path) if method == "POST" else None
        if handler is None:
            return await self._answer_session(scope, receive, method, path)
        body = await self._read(scope, receive)
        if isinstance(body, HttpReply) or body is None:
            return body
        return await self._guarded(receive, lambda: handler(body))

    async def _answer_session(
        self, scope: Scope, receive: Receive, method: str, path: str
    ) -> HttpReply | None:
        parts = path.split("/")
        named = len(parts) in (3, 4) and parts[1] == "sessions" and parts[2]
        if named and len(parts) == 4 and parts[3] == "run" and method == "POST":
            body = await self._read(scope, receive)
            if isinstance(body, HttpReply) or body is None:
                return body
            return await self._guarded(receive, lambda: self._run_cell(parts[2], body))
        if named and len(parts) == 3 and method == "DELETE":
            return await self._guarded(receive, lambda: self._close_session(parts[2]))
        return _not_found(method, path, self._get, self._post, bool(named))

    async def _read(self, scope: Scope, receive: Receive) -> ParsedBody | HttpReply | None:
        """The body as JSON; None when the caller has left."""
        try:
            body = await read_body(scope, receive, limit=self._limit)
            return None if body is None else ParsedBody(await parse_json(body))
        except BodyTooLarge as error:
            return problem(413, str(error), (b"connection", b"close"))
        except orjson.JSONDecodeError as error:
            return problem(422, f"the body is not JSON: {error}")

    async def _guarded(self, receive: Receive, work: Callable[[], Awaitable[bytes]]) -> HttpReply | None:
        """Does the work, gives it up when the caller leaves, and says what went wrong in HTTP's terms."""
        if self.draining:
            return problem(503, "the server is stopping", (b"retry-after", b"5"), (b"connection", b"close"))
        task = asyncio.current_task()
        assert task is not None
        gone = Gone(receive, task, after_s=_WATCH_AFTER_S)
        try:
            return HttpReply(await work())
        except (BadRequest, UnknownLanguage) as error:
            return problem(422, str(error))
        except ValidationError as error:
            return problem(422, explain(error))
        except QueueFull as error:
            return problem(429, str(error), (b"retry-after", str(error.retry_after_s).encode()))
        except UnknownSession as error:
            return problem(404, f"there is no session {error.args[0]!r}")
        except LostSession as error:
            return problem(410, str(error))
        except InfrastructureFailure as error:
            return problem(503, str(error), (b"retry-after", b"1"))
        except asyncio.CancelledError:
            if gone.left:
                task.uncancel()
                return None
            raise
        finally:
            gone.forget()

    def _health(self) -> HttpReply:
        ready = self._service.status()["num_workers"]
        if self.draining or not ready:
            return problem(503, "stopping" if self.draining else "no worker is ready")
        return HttpReply(b'{"status":"ok"}')

    # Handlers: a parsed body in, JSON out.

    async def _run(self, told: ParsedBody) -> bytes:
        if told.has("solution"):
            submission = codejudge.Submission.model_validate(told.value)
            self._service.pool.queue.reserve(1)
            return orjson.dumps(await codejudge.run(self._service, submission, Flow()))
        request = RunRequest.model_validate(told.value)
        self._service.pool.queue.reserve(1)
        return await self._service.run(request, Flow())

    async def _run_batch(self, told: ParsedBody) -> bytes:
        if told.has("submissions"):
            return await self._submissions(told, long=False, output=True)
        batch = BatchRequest.model_validate(told.value)
        self._service.pool.queue.reserve(len(batch.runs))
        flow = Flow()
        results = await in_slices(self._service.run_or_refuse(item, flow) for item in batch.runs)
        return b'{"results":[' + b",".join(results) + b"]}"

    async def _submissions(self, told: ParsedBody, *, long: bool, output: bool) -> bytes:
        batch = codejudge.BatchSubmission.model_validate(told.value)
        result = await codejudge.run_batch(self._service, batch, long=long)
        return orjson.dumps(result if output else codejudge.without_output(result))

    async def _judge(self, told: ParsedBody) -> bytes:
        if told.has("solution"):
            submission = codejudge.Submission.model_validate(told.value)
            self._service.pool.queue.reserve(1)
            result = await codejudge.run(self._service, submission, Flow())
            return orjson.dumps(codejudge.without_output(result))
        return orjson.dumps(await judge.judge(self._service, JudgeRequest.model_validate(told.value)))

    async def _run_code(self, told: ParsedBody) -> bytes:
        request = fusion.RunCodeRequest.model_validate(told.value)
        return orjson.dumps(await fusion.run_code(self._service, request))

    async def _open_session(self, told: ParsedBody) -> bytes:
        session = await self._service.sessions.open(SessionRequest.model_validate(told.value))
        return orjson.dumps({"id": session.name, "idle_s": session.idle_s})

    async def _run_cell(self, name: str, told: ParsedBody) -> bytes:
        return await self._service.sessions.run(name, CellRequest.model_validate(told.value))

    async def _close_session(self, name: str) -> bytes:
        self._service.sessions.end(name)
        return b'{"closed":true}'


@dataclass(frozen=True)
class ParsedBody:
    """A parsed body of any shape."""

    value: Any

    def has(self, key: str) -> bool:
        return isinstance(self.value, dict) and key in self.value


def _pattern(path: str) -> str:
    """Names of sessions must not become labels."""
    if path.startswith("/sessions/"):
        return "/sessions/{id}/run" if path.endswith("/run") else "/sessions/{id}"
    return "other"


def _not_found(method: str, path: str, get: dict[str, Any], post: dict[str, Any], named: bool) -> HttpReply:
    allowed = b"GET" if path in get else b"POST" if path in post else b""
    if not allowed and named:
        allowed = b"POST" if path.endswith("/run") else b"DELETE"
    if allowed:
        return problem(405, f"{path} does not take {method}", (b"allow", allowed))
    return problem(404, f"there is nothing at {path}; /openapi.json lists what there is")
