"""Connections: how many there may be, and what each may cost before anything is known about its caller.

uvicorn with httptools bounds neither the head of a request nor the time that one takes. What is here holds
before a token is looked at. Where no place is free, the connection that has kept the server waiting longest
gives up its own to the new one: so half-sent requests cost nobody but those who send them.
"""

from __future__ import annotations

import asyncio
import resource
from dataclasses import dataclass, field
from typing import Any

import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from toolwright.web.asgi import HttpReply, Receive, Scope, Send, send_reply
from toolwright.web.callers import OPEN_TO_ALL

_OTHER_FILES = 128  # descriptors left for workers, libraries and logs
_YOUNG_S = 1.0  # a request that began to arrive within this time is the last to be given up
_MOST_PIPELINED = 32


@dataclass(frozen=True)
class ConnectionLimits:
    """What one request may cost, and how many connections there may be."""

    head_bytes: int = 16 << 10
    headers: int = 100
    head_s: float = 10.0
    body_s: float = 20.0  # and a second more for every `body_bytes_a_second` that came
    body_bytes_a_second: int = 16 << 10
    connections: int = 4096
    reserve: int = 16  # beyond those, for callers who ask for the health and nothing else

    @property
    def in_all(self) -> int:
        """As many as wished, within the files that this process may have open."""
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return max(1, min(self.connections, files - _OTHER_FILES - self.reserve))

    def raise_open_files(self) -> None:
        """Lets this process have as many files open as its connections need, where the system allows it."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = self.connections + self.reserve + _OTHER_FILES
        if soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(wanted, hard)), hard))


@dataclass(eq=False)
class _Places:
    """The places that one address holds, or the reserve: how many, and who of them keeps us waiting."""

    most: int
    held: int = 0
    arriving: dict[LimitedConnection, float] = field(
        default_factory=dict
    )  # part of a request, last heard of when
    idle: dict[LimitedConnection, None] = field(default_factory=dict)  # between two requests

    def give_up_one(self, now: float) -> None:
        """Closes the connection that has kept us waiting longest; one that is being served never."""
        oldest = next(iter(self.arriving), None)
        if oldest is None or (self.idle and now - self.arriving[oldest] < _YOUNG_S):
            oldest = next(iter(self.idle), None)
        if oldest is not None:
            oldest.give_up()


class Connections:
    """All connections of a server, counted by the address that they come from."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self._in_all = limits.in_all
        self._of_one_address = max(1, self._in_all * 3 // 4)
        self._held = 0
        self._by_address: dict[str, _Places] = {}
        self._reserve = _Places(limits.reserve)
        self._due: dict[LimitedConnection, float] = {}  # connections that we wait for, and until when
        self._look_every_s = min(limits.head_s, limits.body_s, 2.0) / 4
        self._looks = False

    def protocol(
        self, config: Any, server_state: Any, app_state: Any, _loop: Any = None
    ) -> LimitedConnection:
        """What uvicorn makes of each connection."""
        return LimitedConnection(self, config, server_state, app_state, _loop)

    def enter(self, address: str, now: float) -> _Places | None:
        """The places of this address, or the reserve; None when there is no room in either."""
        places = self._by_address.setdefault(address, _Places(self._of_one_address))
        if places.held >= places.most:
            places.give_up_one(now)
        elif self._held >= self._in_all:
            # Of whoever keeps us waiting for the most: others should not suffer for it.
            most = max(self._by_address.values(), key=lambda one: len(one.arriving) + len(one.idle))
            most.give_up_one(now)
        if places.held < places.most and self._held < self._in_all:
            self._held += 1
            places.held += 1
            return places
        if self._reserve.held >= self._reserve.most:
            self._reserve.give_up_one(now)
        if self._reserve.held >= self._reserve.most:
            return None
        self._reserve.held += 1
        return self._reserve

    def wait_for(self, connection: LimitedConnection, due: float) -> None:
        """Ends the wait for what `connection` has begun to send, soon after `due`.

        One timer looks after all of them: most requests arrive whole, and setting one for each takes longer
        than reading it.
        """
        self._due[connection] = due
        if not self._looks:
            self._looks = True
            connection.loop.call_later(self._look_every_s, self._look, connection.loop)

    def wait_no_more(self, connection: LimitedConnection) -> None:
        self._due.pop(connection, None)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for connection in [one for one, due in self._due.items() if due <= now]:
            del self._due[connection]
            connection.overdue(now)
        self._looks = bool(self._due)
        if self._looks:
            loop.call_later(self._look_every_s, self._look, loop)

    def is_reserve(self, places: _Places) -> bool:
        return places is self._reserve

    def leave(self, address: str, places: _Places) -> None:
        places.held -= 1
        if places is not self._reserve:
            self._held -= 1
            if not places.held:
                self._by_address.pop(address, None)


class LimitedConnection(HttpToolsProtocol):
    """uvicorn's, with limits on what arrives."""

    def __init__(self, connections: Connections, *uvicorn: Any) -> None:
        super().__init__(*uvicorn)
        self._connections, self._limits = connections, connections.limits
        self._places: _Places | None = None
        self._in_head = True
        self._whole = False  # no part of a next request has come after the last one
        self._head_bytes = self._body_bytes = 0
        self._awaited = ""  # the part of a request that has to arrive in time: "head", "body" or none
        self._began = 0.0
        self._refusal = (400, "this is not a request in HTTP")

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._address = self.client[0] if self.client else ""
        self._places = self._connections.enter(self._address, self.loop.time())
        if self._places is None:
            transport.abort()
            return
        if self._connections.is_reserve(self._places):
            self.app = _health_alone(self.app)
        self._await("head")

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._leave()

    def give_up(self) -> None:
        """Its place is free at once, though the transport closes a little later."""
        self._leave()
        self.transport.abort()

    def _leave(self) -> None:
        self._await_nothing()
        if self._places is not None:
            self._places.idle.pop(self, None)
            self._connections.leave(self._address, self._places)
            self._places = None

    # What arrives.

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._places is not None:
            self._places.idle.pop(self, None)
        self._whole = False
        if self._in_head:
            room = self._limits.head_bytes - self._head_bytes
            if len(data) > room:
                # The head may end within what fits; what is beyond it is then no head.
                super().data_received(data[:room])
                if self.transport.is_closing():
                    return
                if self._in_head and not self._whole:
                    self._refuse(
                        431, f"the head of a request is at most {self._limits.head_bytes} bytes long"
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
            self._refusal = (431, f"a request has at most {self._limits.headers} headers")
            raise ValueError(self._refusal[1])  # ends the parser, and with it comes send_400_response

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= _MOST_PIPELINED:
            self._refusal = (429, f"at most {_MOST_PIPELINED} requests may wait for the one before them")
            raise ValueError(self._refusal[1])
        super().on_headers_complete()
        self._in_head = False
        self._body_bytes = 0
        if self._places is not None and self._connections.is_reserve(self._places):
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._body_bytes += len(body)
        if self._places is not None and self._places.arriving.pop(self, None) is not None:
            self._places.arriving[self] = self.loop.time()  # it moves: others have kept us waiting longer

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_head = self._whole = True
        self._head_bytes = 0
        self._await_nothing()
        if self.cycle.response_complete:
            self._is_idle()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._whole and not self.pipeline:
            self._is_idle()

    def _is_idle(self) -> None:
        if self._places is not None:
            self._places.idle[self] = None

    # Waiting for the rest of it.

    def _await(self, part: str) -> None:
        if self._awaited != part:
            self._awaited = part
            self._began = self.loop.time()
            limit_s = self._limits.head_s if part == "head" else self._limits.body_s
            self._connections.wait_for(self, self._began + limit_s)
            if self._places is not None:
                self._places.arriving[self] = self._began

    def _await_nothing(self) -> None:
        if self._awaited:
            self._awaited = ""
            self._connections.wait_no_more(self)
            if self._places is not None:
                self._places.arriving.pop(self, None)

    def overdue(self, now: float) -> None:
        """The part that is waited for had to be here by now: ends the connection, or gives it more time."""
        limits = self._limits
        if self.transport.is_closing():
            return
        if self.flow.read_paused:  # it is we who do not read
            self._connections.wait_for(self, now + limits.body_s)
        elif self._awaited == "head":
            self._refuse(408, f"the head of a request has to arrive within {limits.head_s:g} s")
        elif now < (due := self._began + limits.body_s + self._body_bytes / limits.body_bytes_a_second):
            self._connections.wait_for(self, due)
        else:
            least = limits.body_bytes_a_second >> 10
            self._refuse(
                408, f"a body has to arrive within {limits.body_s:g} s, or with {least} KiB a second"
            )

    def send_400_response(self, msg: str) -> None:
        self._refuse(*self._refusal)

    def _refuse(self, status: int, text: str) -> None:
        """Says why and hangs up; an answer that is under way is cut off."""
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            body = orjson.dumps({"error": text})
            head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
            self.transport.write(STATUS_LINE[status] + head % len(body) + body)
        self.transport.close()


def _health_alone(app: Any) -> Any:
    """The application for a connection of the reserve."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == OPEN_TO_ALL:
            await app(scope, receive, send)
        else:
            body = orjson.dumps({"error": "too many connections are open; try again in a second"})
            await send_reply(send, HttpReply(body, 503, headers=[(b"retry-after", b"1")]))

    return answer
