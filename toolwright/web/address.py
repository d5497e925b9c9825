"""Where a server listens, and who may call it there."""

from __future__ import annotations

import asyncio
import ipaddress
import socket

from toolwright.failures import UserError


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_who_may_call(host: str, token: str | None, variable: str) -> None:
    """A server that others can reach must know its callers; `variable` may hold the token."""
    if not is_loopback(host) and not token:
        raise UserError(
            f"{host} can be reached from other machines: give a token with --token or in {variable}, "
            f"or serve on 127.0.0.1"
        )


def bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except (OSError, OverflowError) as error:
        listening.close()
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"cannot listen on {host}:{port}: {reason}") from None
    listening.listen(2048)  # callers may come as soon as the address is announced
    return listening


def url_of(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where it is installed: it carries about a third more calls."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
