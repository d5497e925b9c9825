"""Serves an application on a socket, and finishes the requests under way before it ends."""

from __future__ import annotations

import asyncio
import contextlib
import math
import signal
import socket
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, Protocol

import uvicorn

from toolwright.web import address
from toolwright.web.connections import ConnectionLimits, Connections, LimitedConnection


class Application(Protocol):
    """An ASGI application. `draining` makes it refuse new work while old work is finished."""

    draining: bool

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None: ...


async def serve(
    app: Application, listener: socket.socket, *, drain_s: float, on_start: Callable[[], None]
) -> None:
    """Serves until SIGTERM or SIGINT, then finishes the requests under way for at most `drain_s`."""
    limits = ConnectionLimits()
    limits.raise_open_files()
    server = _server(app, drain_s, limits)
    loop = asyncio.get_running_loop()

    def stop() -> None:
        server.force_exit = app.draining  # a second signal does not wait for requests under way
        app.draining = server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    on_start()
    await server.serve(sockets=[listener])


@contextlib.asynccontextmanager
async def serve_in_background(
    app: Application, *, drain_s: float = 5.0, limits: ConnectionLimits | None = None
) -> AsyncIterator[str]:
    """Serves on a free port of the loopback while the block runs, in the same loop, and gives the URL.

    Signal handlers stay as they are.
    """
    with address.bind("127.0.0.1", 0) as listener:
        server = _server(app, drain_s, limits or ConnectionLimits())
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield address.url_of(listener)
        finally:
            app.draining = server.should_exit = True
            await serving


def _server(app: Application, drain_s: float, limits: ConnectionLimits) -> _Server:
    config = uvicorn.Config(
        app,
        http=partial(LimitedConnection, Connections(limits)),  # type: ignore[arg-type]
        ws="none",
        log_level="error",  # errors of a request go to its caller and not to the log
        access_log=False,
        lifespan="off",
        timeout_keep_alive=75,
        timeout_graceful_shutdown=math.ceil(drain_s),
        server_header=False,
        date_header=False,
    )
    return _Server(config)


class _Server(uvicorn.Server):
    """Leaves signal handlers to the caller."""

    def capture_signals(self) -> contextlib.AbstractContextManager[None]:  # type: ignore[override]
        return contextlib.nullcontext()
