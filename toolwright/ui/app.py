"""The ASGI application of the page: who may ask, which view answers, and the headers of every answer."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from http.cookies import CookieError, SimpleCookie
from urllib.parse import unquote_to_bytes

from toolwright.failures import UserError
from toolwright.ui.assets import Assets
from toolwright.ui.live import LiveFeed
from toolwright.ui.problem import PageProblem
from toolwright.ui.query import Query
from toolwright.ui.run_library import RunLibrary
from toolwright.ui.view import RUN_VIEWS, VIEWS, ViewAnswer, as_json
from toolwright.web.asgi import (
    ClientDisconnected,
    ClientWatch,
    HttpReply,
    Receive,
    Scope,
    Send,
    header,
    is_token,
    send_reply,
)
from toolwright.web.callers import HEALTH_PATH, Callers, RequestRefused

logger = logging.getLogger("toolwright.ui")

TOKEN_VARIABLE = "TOOLWRIGHT_UI_TOKEN"
THREADS = 4  # views that are worked on at a time
# Attempts hold text of anybody: no script but ours may run, and nothing may be fetched from elsewhere.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS = [
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
NO_STORE = (b"cache-control", b"no-store")
ASK_FOR_TOKEN = (
    b'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>Toolwright</title>'
    b'<meta name="viewport" content="width=device-width, initial-scale=1"></head><body><h1>Toolwright</h1>'
    b"<p>This page needs its token: open the link that the terminal printed, or paste the token here.</p>"
    b'<form method="get" action="/"><label>Token <input name="token" type="password" autocomplete="off">'
    b"</label> <button>Open</button></form></body></html>"
)


class UiApp:
    """Answers GET alone. While `draining`, open streams of events end."""

    def __init__(self, library: RunLibrary, callers: Callers, *, assets: Assets | None = None) -> None:
        self.draining = False
        self._library, self._callers, self._assets = library, callers, assets or Assets()
        self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="ui")
        self._feed = LiveFeed(library, self._executor, lambda: self.draining)
        self._cookie = f"toolwright_ui_{_digest(callers.token or '')[:8]}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        send = self._callers.with_cors(scope, send)
        try:
            path = _path(scope)
            self._check(scope, path)
            if path == ["api", "events"] and scope["method"] == "GET":
                await self._stream(receive, send)
                return
            reply = await self._answer(path, scope)
        except ClientDisconnected:
            return
        except (PageProblem, RequestRefused, UserError) as error:
            reply = self._refusal(getattr(error, "status", 400), str(error), scope)
        except Exception:
            logger.exception("a view failed: %s", scope["path"])
            reply = self._refusal(500, "the server failed; its terminal says why", scope)
        reply.headers += HEADERS
        await send_reply(send, reply, head=scope["method"] == "HEAD")

    def _check(self, scope: Scope, path: list[str]) -> None:
        token = self._callers.token
        if token is not None and (
            hmac.compare_digest(self._cookie_of(scope), _digest(token))
            or (path == [""] and is_token(_given_token(scope), token))
        ):
            scope = {**scope, "headers": [*scope["headers"], (b"authorization", b"Bearer " + token.encode())]}
        if scope["method"] not in ("GET", "HEAD"):
            raise PageProblem(405, "this server is read-only: it answers only GET requests")
        self._callers.check(scope)

    async def _answer(self, path: list[str], scope: Scope) -> HttpReply:
        if path == [""]:
            return self._enter(scope) if _given_token(scope) else self._assets.reply("index.html")
        if path[0] == "assets":
            return self._assets.reply("/".join(path))
        if scope["path"] == HEALTH_PATH:
            return HttpReply(b'{"status":"ok"}')
        if path[0] != "api":
            raise PageProblem(404, "there is nothing at this address")
        work = self._view(path[1:], scope["query_string"])
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def _view(self, path: list[str], text: bytes) -> Callable[[], HttpReply]:
        """The view at `runs/RUN`, `runs/RUN/VIEW…` or `VIEW`."""
        if len(path) >= 2 and path[0] == "runs":
            view, *rest = path[2:] or ["overview"]
            name = f"{view}/item" if rest else view
            # A name is looked up among the known ones only: the registry would import what looks like a path.
            if name not in RUN_VIEWS.names():
                raise PageProblem(404, f"there is no view {name[:100]!r} of a run")
            query = Query.parse(text, rest)

            def show_run() -> HttpReply:
                run = self._library.get(path[1])
                answer = RUN_VIEWS.get(name).target(run, query)
                self._library.make_room(run)
                return _reply(answer, query, f"{path[1]}-{view}")

            return show_run
        if len(path) != 1 or path[0] not in VIEWS.names():
            raise PageProblem(404, "there is nothing at this address")
        query = Query.parse(text)
        return lambda: _reply(VIEWS.get(path[0]).target(self._library, query), query, path[0])

    async def _stream(self, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), NO_STORE, *HEADERS]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        with ClientWatch(receive, after_s=0.0):
            async with aclosing(self._feed.events()) as events:
                async for event in events:
                    await send({"type": "http.response.body", "body": event, "more_body": True})
            await send({"type": "http.response.body", "body": b""})

    def _enter(self, scope: Scope) -> HttpReply:
        """The token goes from the address into a cookie that no script can read."""
        headers = [(b"location", b"/"), NO_STORE]
        if self._callers.token is not None:
            cookie = f"{self._cookie}={_digest(self._callers.token)}; HttpOnly; SameSite=Lax; Path=/"
            headers.append((b"set-cookie", cookie.encode()))
        return HttpReply(b"", 303, headers=headers)

    def _cookie_of(self, scope: Scope) -> str:
        try:
            found = SimpleCookie(header(scope, b"cookie").decode("latin-1")).get(self._cookie)
        except CookieError:
            return ""
        return found.value if found is not None and found.value.isascii() else ""

    def _refusal(self, status: int, text: str, scope: Scope) -> HttpReply:
        if status == 401 and scope["path"] == "/":
            return HttpReply(ASK_FOR_TOKEN, 401, b"text/html; charset=utf-8", [NO_STORE])
        return HttpReply(as_json({"error": text}), status, headers=[NO_STORE])


def _path(scope: Scope) -> list[str]:
    """The parts of the address; a slash that was written as %2F belongs to its part."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    try:
        return [unquote_to_bytes(part).decode() for part in raw.partition(b"?")[0][1:].split(b"/")]
    except UnicodeDecodeError:
        raise PageProblem(404, "there is nothing at this address") from None


def _given_token(scope: Scope) -> bytes:
    return Query.parse(scope["query_string"]).text("token").encode()


def _digest(token: str) -> str:
    return hashlib.sha256(b"toolwright ui " + token.encode()).hexdigest()


def _reply(answer: ViewAnswer, query: Query, name: str) -> HttpReply:
    if query.choice("format", ("json", "csv"), "json") == "json":
        return HttpReply(as_json(answer.data), headers=[NO_STORE])
    if not answer.names:
        raise PageProblem(400, "this view is not a table, so it cannot be downloaded as CSV")
    safe = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in name)
    headers = [(b"content-disposition", f'attachment; filename="{safe}.csv"'.encode()), NO_STORE]
    return HttpReply(answer.as_csv(), content_type=b"text/csv; charset=utf-8", headers=headers)
