"""Bare ASGI: a request's headers, a reply, and a caller who leaves."""

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
    """What goes back."""

    body: bytes
    code: int = 200
    content_type: bytes = JSON
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)


def header(scope: Scope, wanted: bytes) -> bytes:
    return next((value for name, value in scope["headers"] if name == wanted), b"")


def same(given: bytes, token: str) -> bool:
    """Whether that is the token, in a time that tells nothing."""
    return hmac.compare_digest(given, token.encode())


async def send_reply(send: Send, reply: HttpReply, *, head: bool = False) -> None:
    headers = [
        (b"content-type", reply.content_type),
        (b"content-length", str(len(reply.body)).encode()),
        *reply.headers,
    ]
    await send({"type": "http.response.start", "status": reply.code, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if head else reply.body})


class Gone:
    """Notices that the caller has left, and cancels the work for them; after a while, because most calls are
    over before it is worth it."""

    def __init__(self, receive: Receive, task: asyncio.Task[Any], *, after_s: float) -> None:
        self.left = False
        self._receive = receive
        self._task = task
        self._watch: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(after_s, self._begin)

    def _begin(self) -> None:
        self._watch = asyncio.get_running_loop().create_task(self._look())

    async def _look(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.left = True
        self._task.cancel()

    def forget(self) -> None:
        self._timer.cancel()
        if self._watch is not None and not self.left:
            self._watch.cancel()
