"""Who may call: names, pages of other sites, and forms sent as bodies are told apart over real HTTP."""

from __future__ import annotations

import asyncio
import http.client
from typing import Any
from urllib.parse import urlsplit

import pytest

from toolwright.web.asgi import HttpReply, send_reply
from toolwright.web.callers import Callers, RequestRefused
from toolwright.web.serving import serve_in_background

HERE = "127.0.0.1:8010"
JSON = {"content-type": "application/json"}
PAGE = "https://evil.example"


def status(callers: Callers, *, method: str = "GET", path: str = "/run", **headers: str) -> int:
    """What a request with these headers is refused with; 200: it may go on."""
    given = {"host": HERE, **{name.replace("_", "-"): value for name, value in headers.items()}}
    raw = [(name.encode(), value.encode()) for name, value in given.items()]
    try:
        callers.check({"method": method, "path": path, "headers": raw})
    except RequestRefused as error:
        return error.status
    return 200


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8010", "localhost:8010", "LOCALHOST", "localhost.", "[::1]:8010", "127.9.9.9:1"]
)
def test_loopback_is_called_by_its_own_names(host: str) -> None:
    assert status(Callers(), host=host) == 200


@pytest.mark.parametrize(
    "host", ["evil.example:8010", "evil.example", "", "127.0.0.1.evil.example", "localhost.evil", "10.0.0.1"]
)
def test_a_name_pointed_at_the_loopback_is_refused(host: str) -> None:
    assert status(Callers(), host=host) == 421


def test_a_server_that_others_reach_is_called_by_any_address_but_not_by_any_name() -> None:
    for bound in ("0.0.0.0", "10.0.0.1", "::"):
        assert status(Callers(bound), host="10.0.0.1:8010") == 200
        assert status(Callers(bound), host="[fe80::1]:8010") == 200
        assert status(Callers(bound), host="evil.example") == 421
    assert status(Callers("Box.lan"), host="box.lan:8010") == 200


def test_the_operator_names_further_hosts_and_pages() -> None:
    callers = Callers(hosts=("sandbox.lan",), origins=(PAGE,))
    assert status(callers, host="sandbox.lan:80") == 200
    assert status(callers, origin=PAGE) == 200
    assert status(callers, origin=PAGE + ".org") == 403


@pytest.mark.parametrize(
    "origin", [PAGE, "null", "http://127.0.0.1:9999", "http://localhost:8010", "file://", "http://["]
)
def test_pages_of_other_origins_are_refused(origin: str) -> None:
    assert status(Callers(), origin=origin) == 403


def test_pages_of_the_server_itself_may_call_it() -> None:
    own = {"origin": f"http://{HERE}", "sec_fetch_site": "same-origin"}
    assert status(Callers(), method="POST", content_type="application/json", **own) == 200


def test_sec_fetch_site_decides_for_requests_without_an_origin() -> None:
    """An image or a script of another site; a link that somebody follows is not one of those."""
    assert status(Callers(), sec_fetch_site="cross-site", sec_fetch_mode="no-cors") == 403
    assert status(Callers(), sec_fetch_site="same-site") == 403
    assert status(Callers(), sec_fetch_site="cross-site", sec_fetch_mode="navigate") == 200
    assert status(Callers(), sec_fetch_site="none") == 200


@pytest.mark.parametrize(
    "kind", ["", "text/plain", "application/x-www-form-urlencoded", "text/plain;application/json"]
)
def test_a_body_without_the_json_content_type_is_refused(kind: str) -> None:
    assert status(Callers(), method="POST", content_type=kind) == 415
    assert status(Callers(), method="POST", content_type="Application/JSON; charset=utf-8") == 200


def test_a_token_is_accepted_in_either_header() -> None:
    callers = Callers(token="s3cret")
    assert status(callers) == 401
    assert status(callers, authorization="Bearer s3cret") == status(callers, x_api_key="s3cret") == 200
    assert status(callers, authorization="Basic s3cret") == status(callers, x_api_key="guess") == 401


def test_health_is_open_to_all() -> None:
    """A probe knows neither names nor tokens, and there is nothing in it to steal."""
    assert status(Callers(token="s3cret"), path="/health", host="evil.example", origin=PAGE) == 200


class Echo:
    """An application that may be called by pages of one other site."""

    draining = False

    def __init__(self, callers: Callers) -> None:
        self._callers = callers

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            reply = self._callers.check(scope) or HttpReply(b"{}")
        except RequestRefused as error:
            reply = HttpReply(str(error).encode(), error.status)
        await send_reply(self._callers.with_cors(scope, send), reply)


def test_a_page_of_an_allowed_origin_may_call_and_read() -> None:
    def ask(url: str, method: str, origin: str) -> tuple[int, str | None]:
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
        wanted = {"access-control-request-method": "POST"} if method == "OPTIONS" else JSON
        connection.request(method, "/run", b"{}" if method == "POST" else None, {"origin": origin, **wanted})
        answer = connection.getresponse()
        answer.read()
        connection.close()
        return answer.status, answer.headers["access-control-allow-origin"]

    async def main() -> None:
        async with serve_in_background(Echo(Callers(origins=(PAGE,), token=None))) as url:
            for method in ("OPTIONS", "POST"):
                assert await asyncio.to_thread(ask, url, method, PAGE) == (200, PAGE)
                assert await asyncio.to_thread(ask, url, method, "null") == (403, None)

    asyncio.run(main())
