"""Which requests a server accepts: by host name, by the web page that sends them, and by token.

Any web page can send requests to 127.0.0.1, and a page whose name resolves to 127.0.0.1 can also read the
answers. A page cannot forge three things, so these are checked: `Host`, the name in its URL; `Origin` and
`Sec-Fetch-Site`, which say where the page came from; and the content type of a body, because a page of
another site must ask (preflight) before it sends JSON.
"""

from __future__ import annotations

import argparse
import socket
from dataclasses import dataclass
from functools import lru_cache

from toolwright.web.address import ip_address, is_loopback
from toolwright.web.asgi import JSON, HttpReply, Scope, Send, is_token

HEALTH_PATH = "/health"


class RequestRefused(Exception):
    """A request that is refused with `status`. The text says why, and what would help."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True)
class Callers:
    """Decides who may call a server that is bound to the address `bound`.

    `hosts` are further names of the server; `origins` are other sites whose pages may call it.
    """

    bound: str = "127.0.0.1"
    token: str | None = None
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()

    def check(self, scope: Scope) -> HttpReply | None:
        """Raises `RequestRefused`, or returns None. A browser's preflight gets its whole answer from here."""
        if scope["path"] == HEALTH_PATH:
            return None
        headers = dict(scope["headers"])
        self._check_host(headers.get(b"host", b"").decode("latin-1"))
        self._check_page(scope["method"], headers)
        if scope["method"] == "OPTIONS" and b"access-control-request-method" in headers:
            return _PREFLIGHT
        if self.token is not None and not is_token(_token_in(headers), self.token):
            raise RequestRefused(401, "this server needs a token")
        if scope["method"] == "POST":
            _check_content_type(headers.get(b"content-type", b""))
        return None

    def with_cors(self, scope: Scope, send: Send) -> Send:
        """Adds the headers that let a page of an allowed origin read the answer."""
        origin = dict(scope["headers"]).get(b"origin") if self.origins else None
        if origin is None or origin.decode("latin-1") not in self.origins:
            return send

        async def send_with_headers(message: dict[str, object]) -> None:
            if message["type"] == "http.response.start":
                allowed = [(b"access-control-allow-origin", origin), (b"vary", b"origin")]
                message = {**message, "headers": [*message["headers"], *allowed]}  # type: ignore[misc]
            await send(message)

        return send_with_headers

    def _check_host(self, host: str) -> None:
        if not _is_own_name(host, self.bound, self.hosts):
            raise RequestRefused(
                421,
                f"this server does not answer to the name {_name_in(host)[:200]!r}: call it by its address, "
                "or start it with --allow-host and that name",
            )

    def _check_page(self, method: str, headers: dict[bytes, bytes]) -> None:
        if b"origin" in headers:
            origin = headers[b"origin"].decode("latin-1")
            own_page = origin.partition("://")[2] == headers[b"host"].decode("latin-1")
            if not own_page and origin not in self.origins:
                raise RequestRefused(
                    403,
                    f"web pages of {origin[:200]} may not call this server; if they should, start it with "
                    f"--allow-origin {origin[:200]}",
                )
        elif headers.get(b"sec-fetch-site") in (b"cross-site", b"same-site"):
            followed_link = method == "GET" and headers.get(b"sec-fetch-mode") == b"navigate"
            if not followed_link:
                raise RequestRefused(403, "a web page of another site may not call this server")


@lru_cache(maxsize=256)  # checked with every call; parsing an address takes longer than all other checks
def _is_own_name(host: str, bound: str, hosts: tuple[str, ...]) -> bool:
    name = _name_in(host)
    if name in ("localhost", bound.lower(), *hosts) or is_loopback(name):
        return True
    # An address, unlike a name, cannot be made to resolve elsewhere. Behind a forwarded port, such as a
    # container's, it need not be one of this machine's own.
    return not is_loopback(bound) and (ip_address(name) is not None or name == socket.gethostname().lower())


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that allow further hosts and origins."""
    parser.add_argument(
        "--allow-host", action="append", default=[], metavar="NAME",
        help="another name of this server, such as a proxy's; repeat it for several",
    )  # fmt: skip
    parser.add_argument(
        "--allow-origin", action="append", default=[], metavar="URL",
        help="a site whose web pages may call it, as https://example.org; repeat it for several",
    )  # fmt: skip


def from_options(arguments: argparse.Namespace, token: str | None) -> Callers:
    return Callers(
        arguments.host,
        token,
        hosts=tuple(name.lower() for name in arguments.allow_host),
        origins=tuple(origin.rstrip("/") for origin in arguments.allow_origin),
    )


_PREFLIGHT = HttpReply(
    b"",
    200,
    headers=[
        (b"access-control-allow-methods", b"GET, POST, DELETE"),
        (b"access-control-allow-headers", b"*, authorization"),
        (b"access-control-max-age", b"600"),
    ],
)


def _token_in(headers: dict[bytes, bytes]) -> bytes:
    """The token of a request. SDKs send their keys in different headers."""
    scheme, _, credentials = headers.get(b"authorization", b"").partition(b" ")
    bearer = credentials.strip() if scheme.lower() == b"bearer" else b""
    return bearer or headers.get(b"x-api-key", b"")


def _check_content_type(value: bytes) -> None:
    kind = value.partition(b";")[0].strip().lower()
    if kind != JSON:
        found = f"it is {kind.decode('latin-1')[:100]!r}" if kind else "there is none"
        raise RequestRefused(415, f"send JSON with the header content-type: application/json; {found}")


def _name_in(host: str) -> str:
    """The name in `name:port` or `[address]:port`, in lower case."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower().rstrip(".")
