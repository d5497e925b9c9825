"""The address that a server listens on."""

from __future__ import annotations

import asyncio
import ipaddress
import socket

from toolwright.failures import UserError


def ip_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address, or None for a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def is_loopback(host: str) -> bool:
    address = ip_address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def require_token(host: str, token: str | None, variable: str) -> None:
    """Refuses to serve other machines without a token; `variable` is the environment variable for it."""
    if not is_loopback(host) and not token:
        raise UserError(
            f"other machines can reach {host}: set a token with --token or in {variable}, "
            f"or serve on 127.0.0.1"
        )


def bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"cannot listen on {host}:{port}: {reason}") from None
    listener.listen(2048)  # clients may connect as soon as the address is announced
    return listener


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def new_event_loop() -> asyncio.AbstractEventLoop:
    """An event loop of uvloop if it is installed: it answers about a third more calls."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
