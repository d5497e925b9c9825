"""Limits on connections that hold before a token is checked: how many, how large, how slow.

uvicorn with httptools limits neither the size of a request's head nor the time that a request may take. When
the server is full, a new connection replaces the one that has kept the server waiting longest. So
half-sent requests hurt only those who send them.
"""

from __future__ import annotations

import asyncio
import resource
from dataclasses import dataclass, field
from typing import Any

import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from toolwright.web.asgi import HttpReply, Receive, Scope, Send, send_reply
from toolwright.web.callers import HEALTH_PATH

_OTHER_FILES = 128  # descriptors kept for workers, libraries and logs
_YOUNG_S = 1.0  # a request that began to arrive within this time is evicted last
_MOST_PIPELINED = 32


@dataclass(frozen=True)
class ConnectionLimits:
    """Limits on one request, and on the number of connections."""

    head_bytes: int = 16 << 10
    headers: int = 100
    head_s: float = 10.0
    body_s: float = 20.0  # and a second more for each `body_bytes_a_second` received
    body_bytes_a_second: int = 16 << 10
    connections: int = 4096
    reserve: int = 16  # further connections that may ask for `/health` only

    @property
    def total(self) -> int:
        """`connections`, or fewer where this process may not open that many files."""
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return max(1, min(self.connections, files - _OTHER_FILES - self.reserve))

    def raise_open_files(self) -> None:
        """Raises the limit on open files to what the connections need, if the system allows it."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        needed = self.connections + self.reserve + _OTHER_FILES
        if soft < needed:
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(needed, hard)), hard))


@dataclass(eq=False)
class _Share:
    """The connections of one address, or of the reserve; and which of them keep us waiting."""

    limit: int
    open: int = 0
    # Connections that have sent part of a request, with the time of its last bytes.
    arriving: dict[LimitedConnection, float] = field(default_factory=dict)
    idle: dict[LimitedConnection, None] = field(default_factory=dict)  # between two requests

    def evict_one(self, now: float) -> None:
        """Closes the connection that has kept us waiting longest, never one whose request is being served."""
        oldest = next(iter(self.arriving), None)
        if oldest is None or (self.idle and now - self.arriving[oldest] < _YOUNG_S):
            oldest = next(iter(self.idle), None)
        if oldest is not None:
            oldest.evict()


class Connections:
    """All connections of a server, counted by the address of the client."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self._total = limits.total
        self._per_address = max(1, self._total * 3 // 4)
        self._open = 0
        self._by_address: dict[str, _Share] = {}
        self._reserve = _Share(limits.reserve)
        self._due: dict[LimitedConnection, float] = {}  # connections that we wait for, with their deadlines
        self._check_every_s = min(limits.head_s, limits.body_s, 2.0) / 4
        self._timer_runs = False

    def enter(self, address: str, now: float) -> _Share | None:
        """The share of this address, or the reserve; None if both are full."""
        share = self._by_address.setdefault(address, _Share(self._per_address))
        if share.open >= share.limit:
            share.evict_one(now)
        elif self._open >= self._total:
            # From the address with the most connections that keep us waiting: others should not suffer.
            most = max(self._by_address.values(), key=lambda one: len(one.arriving) + len(one.idle))
            most.evict_one(now)
        if share.open < share.limit and self._open < self._total:
            self._open += 1
            share.open += 1
            return share
        if self._reserve.open >= self._reserve.limit:
            self._reserve.evict_one(now)
        if self._reserve.open >= self._reserve.limit:
            return None
        self._reserve.open += 1
        return self._reserve

    def wait_for(self, connection: LimitedConnection, due: float) -> None:
        """Ends the wait for the rest of a request soon after `due`.

        One timer serves all connections: most requests arrive whole, and setting a timer takes longer than
        reading one.
        """
        self._due[connection] = due
        if not self._timer_runs:
            self._timer_runs = True
            connection.loop.call_later(self._check_every_s, self._check_due, connection.loop)

    def stop_waiting_for(self, connection: LimitedConnection) -> None:
        self._due.pop(connection, None)

    def _check_due(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for connection in [one for one, due in self._due.items() if due <= now]:
            del self._due[connection]
            connection.overdue(now)
        self._timer_runs = bool(self._due)
        if self._timer_runs:
            loop.call_later(self._check_every_s, self._check_due, loop)

    def is_reserve(self, share: _Share) -> bool:
        return share is self._reserve

    def leave(self, address: str, share: _Share) -> None:
        share.open -= 1
        if share is not self._reserve:
            self._open -= 1
            if not share.open:
                self._by_address.pop(address, None)


class LimitedConnection(HttpToolsProtocol):
    """uvicorn's protocol, with limits on what arrives."""

    def __init__(self, connections: Connections, **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        self._connections, self._limits = connections, connections.limits
        self._share: _Share | None = None
        self._in_head = True
        self._whole = False  # nothing has arrived after the last whole request
        self._head_bytes = self._body_bytes = 0
        self._awaited = ""  # the part of a request that we wait for: "head", "body" or none
        self._began = 0.0
        self._refusal = (400, "this is not an HTTP request")

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._address = self.client[0] if self.client else ""
        self._share = self._connections.enter(self._address, self.loop.time())
        if self._share is None:
            transport.abort()
            return
        if self._connections.is_reserve(self._share):
            self.app = _health_only(self.app)
        self._await("head")

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._leave()

    def evict(self) -> None:
        """Closes the connection. Another may take its place at once."""
        self._leave()
        self.transport.abort()

    def _leave(self) -> None:
        self._await_nothing()
        if self._share is not None:
            self._share.idle.pop(self, None)
            self._connections.leave(self._address, self._share)
            self._share = None

    # Bytes that arrive.

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._share is not None:
            self._share.idle.pop(self, None)
        self._whole = False
        if self._in_head:
            room = self._limits.head_bytes - self._head_bytes
            if len(data) > room:
                # The head may end within the limit; then the rest belongs to the body.
                super().data_received(data[:room])
                if self.transport.is_closing():
                    return
                if self._in_head and not self._whole:
                    self._refuse(
                        431, f"the head of a request may have at most {self._limits.head_bytes} bytes"
                    )
                    return
                data = data[room:]
            else:
                self._head_bytes += len(data)
        super().data_received(data)
        if not self._whole and not self.transport.is_closing():
            self._await("head" if self._in_head else "body")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._whole = False

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        if len(self.headers) > self._limits.headers:
            self._refusal = (431, f"a request may have at most {self._limits.headers} headers")
            raise ValueError(self._refusal[1])  # ends the parser, which then calls send_400_response

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= _MOST_PIPELINED:
            self._refusal = (429, f"at most {_MOST_PIPELINED} requests may be pipelined")
            raise ValueError(self._refusal[1])
        super().on_headers_complete()
        self._in_head = False
        self._body_bytes = 0
        if self._share is not None and self._connections.is_reserve(self._share):
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._body_bytes += len(body)
        if self._share is not None and self._share.arriving.pop(self, None) is not None:
            # It makes progress: others have kept us waiting longer.
            self._share.arriving[self] = self.loop.time()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_head = self._whole = True
        self._head_bytes = 0
        self._await_nothing()
        if self.cycle.response_complete:
            self._mark_idle()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._whole and not self.pipeline:
            self._mark_idle()

    def _mark_idle(self) -> None:
        if self._share is not None:
            self._share.idle[self] = None

    # Waiting for the rest of a request.

    def _await(self, part: str) -> None:
        if self._awaited != part:
            self._awaited = part
            self._began = self.loop.time()
            limit_s = self._limits.head_s if part == "head" else self._limits.body_s
            self._connections.wait_for(self, self._began + limit_s)
            if self._share is not None:
                self._share.arriving[self] = self._began

    def _await_nothing(self) -> None:
        if self._awaited:
            self._awaited = ""
            self._connections.stop_waiting_for(self)
            if self._share is not None:
                self._share.arriving.pop(self, None)

    def overdue(self, now: float) -> None:
        """Closes a connection whose request is late, or gives it more time."""
        limits = self._limits
        if self.transport.is_closing():
            return
        if self.flow.read_paused:  # the server is the one that does not read
            self._connections.wait_for(self, now + limits.body_s)
        elif self._awaited == "head":
            self._refuse(408, f"the head of a request must arrive within {limits.head_s:g} s")
        elif now < (due := self._began + limits.body_s + self._body_bytes / limits.body_bytes_a_second):
            self._connections.wait_for(self, due)
        else:
            least = limits.body_bytes_a_second >> 10
            self._refuse(408, f"a body must arrive within {limits.body_s:g} s, or at {least} KiB a second")

    def send_400_response(self, msg: str) -> None:
        self._refuse(*self._refusal)

    def _refuse(self, status: int, text: str) -> None:
        """Answers with the reason and closes the connection; cuts off a response that has begun."""
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            body = orjson.dumps({"error": text})
            head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
            self.transport.write(STATUS_LINE[status] + head % len(body) + body)
        self.transport.close()


def _health_only(app: Any) -> Any:
    """The application for a connection of the reserve: it answers `/health` and refuses the rest."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == HEALTH_PATH:
            await app(scope, receive, send)
        else:
            body = orjson.dumps({"error": "too many connections are open; try again in a second"})
            await send_reply(send, HttpReply(body, 503, headers=[(b"retry-after", b"1")]))

    return answer
