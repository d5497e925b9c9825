"""Bare ASGI: the headers of a request, a reply, and a client that hangs up."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

JSON = b"application/json"


@dataclass
class HttpReply:
    """A whole response."""

    body: bytes
    code: int = 200
    content_type: bytes = JSON
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)


def header(scope: Scope, name: bytes) -> bytes:
    return next((value for key, value in scope["headers"] if key == name), b"")


def is_token(text: bytes, token: str) -> bool:
    """Compares in constant time, so that the time tells nothing about the token."""
    return hmac.compare_digest(text, token.encode())


async def send_reply(send: Send, reply: HttpReply, *, head: bool = False) -> None:
    headers = [
        (b"content-type", reply.content_type),
        (b"content-length", str(len(reply.body)).encode()),
        *reply.headers,
    ]
    await send({"type": "http.response.start", "status": reply.code, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if head else reply.body})


class ClientDisconnected(Exception):
    """The client hung up before it had its answer."""


class ClientWatch:
    """Cancels the block that it guards when the client hangs up, and raises `ClientDisconnected` instead.

    It starts to look after `after_s`: most calls end sooner, and looking costs a task.
    """

    def __init__(self, receive: Receive, *, after_s: float) -> None:
        self._receive, self._after_s = receive, after_s
        self._left = False
        self._task: asyncio.Task[Any] | None = None
        self._watch: asyncio.Task[None] | None = None

    def __enter__(self) -> ClientWatch:
        self._task = asyncio.current_task()
        self._timer = asyncio.get_running_loop().call_later(self._after_s, self._start)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: Any) -> None:
        self._timer.cancel()
        if self._watch is not None and not self._left:
            self._watch.cancel()
        if self._left and kind is asyncio.CancelledError:
            assert self._task is not None
            self._task.uncancel()
            raise ClientDisconnected from None

    def _start(self) -> None:
        self._watch = asyncio.get_running_loop().create_task(self._wait_for_disconnect())

    async def _wait_for_disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._left = True
        assert self._task is not None
        self._task.cancel()
