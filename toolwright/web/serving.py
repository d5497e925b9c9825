"""Serving: a socket, an application behind it, and an end that finishes what was begun."""

from __future__ import annotations

import asyncio
import contextlib
import math
import signal
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

import uvicorn

from toolwright.web import address
from toolwright.web.connections import ConnectionLimits, Connections


class Application(Protocol):
    """`draining` turns new work away while the old is finished."""

    draining: bool

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None: ...


async def serve(
    app: Application, listening: socket.socket, *, drain_s: float, said: Callable[[], None]
) -> None:
    """Until SIGTERM or SIGINT: then no new work, and the old is finished. `said` is called when it begins."""
    limits = ConnectionLimits()
    limits.raise_open_files()
    server = _server(app, drain_s, limits)
    loop = asyncio.get_running_loop()

    def stop() -> None:
        server.force_exit = app.draining  # asked twice: without waiting for what is under way
        app.draining = server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    said()
    await server.serve(sockets=[listening])


@contextlib.asynccontextmanager
async def hosted(
    app: Application, *, drain_s: float = 5.0, limits: ConnectionLimits | None = None
) -> AsyncIterator[str]:
    """On a free port of the loopback for as long as a block lasts, beside what else this loop does; gives the
    URL. Signals stay whose they were."""
    with address.bind("127.0.0.1", 0) as listening:
        server = _server(app, drain_s, limits or ConnectionLimits())
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            yield address.url_of(listening)
        finally:
            app.draining = server.should_exit = True
            await serving


def _server(app: Application, drain_s: float, limits: ConnectionLimits) -> _Server:
    config = uvicorn.Config(
        app,
        http=Connections(limits).protocol,  # type: ignore[arg-type]
        ws="none",
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_keep_alive=75,
        timeout_graceful_shutdown=math.ceil(drain_s),
        server_header=False,
        date_header=False,
    )
    return _Server(config)


class _Server(uvicorn.Server):
    """Signals are the caller's: a first one drains, whoever sent it."""

    def capture_signals(self) -> contextlib.AbstractContextManager[None]:  # type: ignore[override]
        return contextlib.nullcontext()
