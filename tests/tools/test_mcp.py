"""MCP servers by the official SDK, over standard input and output and over HTTP."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.waiting import wait_until
from toolwright.failures import InfrastructureFailure, UserError
from toolwright.tools.toolbox import Toolbox

from .conftest import Box

pytest.importorskip("mcp")

SCRIPT = str(Path(__file__).with_name("mcp_server.py"))
STDIO = {"command": sys.executable, "args": [SCRIPT], "start_timeout_s": 240}
Make = Callable[..., Box]


class HttpServer:
    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/mcp"
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, SCRIPT, str(self.port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def wait(self) -> None:
        def open_door() -> bool:
            with socket.socket() as door:
                return door.connect_ex(("127.0.0.1", self.port)) == 0

        wait_until(open_door, "the server listens")

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def http_server() -> Iterator[HttpServer]:
    server = HttpServer()
    server.wait()
    yield server
    server.stop()


@pytest.fixture(params=["stdio", "http"])
def settings(request: pytest.FixtureRequest) -> dict[str, object]:
    if request.param == "stdio":
        return STDIO
    return {"url": request.getfixturevalue("http_server").url, "start_timeout_s": 240}


def test_the_tools_of_an_mcp_server_are_listed_and_called_and_their_errors_reach_the_policy(
    box: Make, settings: dict[str, object]
) -> None:
    made = box({"mcp": {**settings, "prefix": "demo_", "timeout_s": 4.0}})
    schemas = made.schemas()
    assert sorted(schemas) == ["demo_add", "demo_die", "demo_fail", "demo_hang", "demo_pid"]
    assert schemas["demo_add"]["description"] == "Add two numbers."
    assert schemas["demo_add"]["parameters"]["required"] == ["a"]
    assert made.call("demo_add", a=1).text == "3"
    assert made.call("demo_add", a="40").text == "42"
    assert made.call("demo_add", a="x").trouble == "arguments"
    assert made.call("demo_add", a="\ud800").trouble == "arguments"
    assert made.call("demo_fail").trouble == "raised"
    slow = made.call("demo_hang")
    assert (slow.trouble, slow.text) == ("timeout", "demo_hang did not answer within 4 s")
    assert made.call("demo_add", a=2).text == "4"


def test_a_server_that_died_is_started_again(box: Make) -> None:
    made = box({"mcp": STDIO})
    first = int(made.call("pid").text)
    os.kill(first, signal.SIGKILL)
    assert int(made.call("pid").text) != first


def test_a_server_that_dies_again_under_the_same_call_is_infrastructure(box: Make) -> None:
    made = box({"mcp": STDIO})
    with pytest.raises(InfrastructureFailure, match=r"mcp_server\.py died twice"):
        made.call("die")


@pytest.mark.slow
def test_an_http_server_that_comes_back_is_found_again(box: Make, http_server: HttpServer) -> None:
    made = box({"mcp": {"url": http_server.url, "start_timeout_s": 240}})
    assert made.call("add", a=1).text == "3"
    http_server.stop()
    http_server.start()
    assert made.call("add", a=1).text == "3"


def test_an_http_server_that_stays_away_is_named(box: Make, http_server: HttpServer) -> None:
    made = box({"mcp": {"url": http_server.url, "start_timeout_s": 5.0}})
    made.schemas()
    http_server.stop()
    with pytest.raises(InfrastructureFailure, match=f"127.0.0.1:{http_server.port}/mcp cannot be reached"):
        made.call("add", a=1)


def test_a_server_that_does_not_start_says_why(box: Make) -> None:
    made = box({"mcp": {"command": sys.executable, "args": ["-c", "raise SystemExit('no licence')"]}})
    with pytest.raises(InfrastructureFailure, match="no licence"):
        made.schemas()


@pytest.mark.slow
def test_two_servers_side_by_side(box: Make) -> None:
    made = box(
        {"one": {"path": "mcp", **STDIO, "prefix": "one_", "only": ["add"]}, "two": {"path": "mcp", **STDIO}}
    )
    assert {"one_add", "add", "pid"} <= set(made.schemas())
    assert "one_pid" not in made.schemas()


def test_invalid_settings_are_an_error() -> None:
    with pytest.raises(UserError, match=r"tools\.mcp: set either `command`.* or `url`"):
        Toolbox({"mcp": {}})
