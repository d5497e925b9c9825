"""A page in somebody's browser cannot use the sandbox on their machine."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.waiting import wait_until

from .conftest import needs_isolation
from .served import Server

pytestmark = needs_isolation
JSON = "application/json"
# What a page of another site can send without asking: a form, or fetch() in the mode "no-cors".
FROM_A_PAGE = {"origin": "https://evil.example", "content-type": "text/plain", "sec-fetch-site": "cross-site"}


def ask(server: Server, method: str, path: str, body: object, **headers: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=60)
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, json.dumps(body), given)
    answer = connection.getresponse()
    told = json.loads(answer.read())
    connection.close()
    return answer.status, told


@pytest.mark.parametrize(
    "path", ["/run", "/run/batch", "/judge", "/run_code", "/sessions", "/code-judge/run"]
)
def test_a_page_of_another_site_can_do_nothing(server: Server, path: str) -> None:
    before = server.status()
    body = {"code": "1", "language": "python", "runs": [{"code": "1"}]}
    code, told = ask(server, "POST", path, body, **{k.replace("-", "_"): v for k, v in FROM_A_PAGE.items()})
    assert code == 403
    assert "--allow-origin https://evil.example" in told["error"]
    after = server.status()
    assert (after["answers"], after["sessions"]) == (before["answers"], before["sessions"])


def test_a_form_post_gets_an_error_that_asks_for_json(server: Server) -> None:
    code, told = ask(server, "POST", "/run", {"code": "1"}, content_type="application/x-www-form-urlencoded")
    assert code == 415
    assert "content-type: application/json" in told["error"]


def test_a_page_whose_name_was_pointed_at_us_reads_nothing(server: Server) -> None:
    for method, path in (
        ("GET", "/status"),
        ("POST", "/run"),
        ("GET", "/openapi.json"),
        ("DELETE", "/sessions/x"),
    ):
        code, told = ask(server, method, path, {"code": "1"}, host="evil.example:8010", content_type=JSON)
        assert code == 421
        assert "--allow-host" in told["error"]
    wait_until(lambda: server.status()["running"] == 0, "nothing runs")
