"""Serving: a socket, a service behind it, and an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import signal
import socket
from collections.abc import Callable

import uvicorn

from toolwright.failures import InfrastructureFailure, UserError
from toolwright.sandbox.app import App
from toolwright.sandbox.service import Service
from toolwright.sandbox.settings import Settings

TOKEN_VARIABLE = "TOOLWRIGHT_SANDBOX_TOKEN"


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_who_may_call(host: str, token: str | None) -> None:
    """A server that others can reach must know its callers."""
    if not is_loopback(host) and not token:
        raise UserError(
            f"{host} can be reached from other machines: give a token with --token or in {TOKEN_VARIABLE}, "
            f"or serve on 127.0.0.1"
        )


def bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise UserError(f"cannot listen on {host}:{port}: {error.strerror}") from None
    listening.listen(2048)  # callers may come as soon as the address is announced
    return listening


def event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where it is installed: it carries about a third more calls."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


async def serve(
    settings: Settings, listening: socket.socket, token: str | None, said: Callable[[str], None]
) -> None:
    """Until SIGTERM or SIGINT: then no new work, the old is finished, and nothing is left behind."""
    service = Service(settings)
    try:
        await service.start()
    except InfrastructureFailure as error:
        raise UserError(str(error)) from None
    app = App(service, token)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_keep_alive=75,
        timeout_graceful_shutdown=int(settings.drain_s),
        server_header=False,
        date_header=False,
    )
    server = _Server(config)
    loop = asyncio.get_running_loop()

    def stop() -> None:
        server.force_exit = app.draining  # asked twice: without waiting for what is under way
        app.draining = server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    try:
        host, port = listening.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        said(f"serving on http://{shown}:{port}")
        await server.serve(sockets=[listening])
    finally:
        await service.close()


class _Server(uvicorn.Server):
    """Signals are the caller's: a first one drains, whoever sent it."""

    def capture_signals(self) -> contextlib.AbstractContextManager[None]:  # type: ignore[override]
        return contextlib.nullcontext()
