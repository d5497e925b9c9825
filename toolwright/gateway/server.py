"""The address that programs call: it finds the attempt by its key, and lets that attempt answer."""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from dataclasses import dataclass

from toolwright.gateway.session import Session
from toolwright.serve.app import MODELS, models
from toolwright.serve.exchange import Exchange, RequestLog
from toolwright.serve.problems import HttpProblem
from toolwright.web.asgi import HttpReply, Receive, Scope, Send, header
from toolwright.web.callers import Callers
from toolwright.web.connections import ConnectionLimits
from toolwright.web.serving import serve_in_background

PREFIX = "/attempt/"  # before a key in a path, for programs that take an address but no key
REMEMBERED = 4096  # keys of attempts that are over, to say so


@dataclass(frozen=True)
class AttemptAddress:
    """The address of the policy for the program of one attempt."""

    url: str  # with the key in it
    key: str


class Gateway:
    """Sessions by key, behind one address of this machine. It starts when the first attempt does."""

    def __init__(self) -> None:
        self.draining = False
        self._sessions: dict[str, Session] = {}
        self._over: OrderedDict[str, None] = OrderedDict()
        self._callers, self._log = Callers(), RequestLog()
        self._starting = asyncio.Lock()
        self._stack = AsyncExitStack()
        self._url = ""

    async def open(self, session: Session) -> AttemptAddress:
        async with self._starting:
            if not self._url:
                limits = ConnectionLimits()
                limits.raise_open_files()
                self._url = await self._stack.enter_async_context(
                    serve_in_background(self, drain_s=1.0, limits=limits)
                )
        key = f"tw-{secrets.token_urlsafe(24)}"
        self._sessions[key] = session
        return AttemptAddress(f"{self._url}{PREFIX}{key}", key)

    def end(self, address: AttemptAddress) -> None:
        """Refuse the key from now on."""
        self._sessions.pop(address.key).close()
        self._over[address.key] = None
        if len(self._over) > REMEMBERED:
            self._over.popitem(last=False)

    async def close(self) -> None:
        await self._stack.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        key, path = _key_in_path(scope)
        exchange = Exchange({**scope, "path": path}, receive, send, self._log, "")
        await exchange.run(lambda: self._answer(exchange, key))

    async def _answer(self, exchange: Exchange, key: str) -> HttpReply | AsyncGenerator[bytes]:
        reply = self._callers.check(exchange.scope)
        if reply is not None:
            return reply
        given = _key_in_header(exchange.scope)
        session, path = self._session(key or given), exchange.path
        try:
            if key and given != key and (given in self._sessions or given in self._over):
                text = (
                    "the address belongs to this attempt, but the key to another: send this attempt's key, "
                    "or none"
                )
                raise HttpProblem(403, text, code="invalid_api_key")
            if exchange.method in ("GET", "HEAD") and (path == MODELS or path.startswith(MODELS + "/")):
                return models(session, path)
            handler = session.post.get(path) if exchange.method == "POST" else None
            if handler is None:
                known = path in session.post or path == MODELS
                text = f"{path} does not take {exchange.method}" if known else f"there is nothing at {path}"
                raise HttpProblem(405 if known else 404, text)
            outcome = await handler(await exchange.body())
        except Exception as error:
            session.refusal = f"{path}: {error}"
            session.attempt.count("calls_refused")
            raise
        return HttpReply(outcome) if isinstance(outcome, bytes) else outcome

    def _session(self, key: str) -> Session:
        if key in self._sessions:
            return self._sessions[key]
        if key in self._over:
            raise HttpProblem(403, "the attempt of this key is over", code="attempt_over")
        raise HttpProblem(401, "this key does not belong to any attempt of this run", code="invalid_api_key")


def _key_in_path(scope: Scope) -> tuple[str, str]:
    """The key, if the path has one, and the path behind it."""
    path = scope["path"]
    if not path.startswith(PREFIX):
        return "", path
    key, _, rest = path[len(PREFIX) :].partition("/")
    return key, "/" + rest


def _key_in_header(scope: Scope) -> str:
    given = header(scope, b"authorization").decode("latin-1").removeprefix("Bearer ")
    return given or header(scope, b"x-api-key").decode("latin-1")
