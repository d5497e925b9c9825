"""The tools that run code, against a real sandbox."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable

import pytest

from toolwright.failures import InfrastructureFailure
from toolwright.sandbox.client import SessionLost
from toolwright.sandbox.local import command
from toolwright.tools.call import ToolRequest
from toolwright.tools.settings import served
from toolwright.tools.toolbox import Toolbox

from .conftest import Box

Make = Callable[..., Box]


def test_python_answers_as_a_notebook_would(box: Make, sandbox: str) -> None:
    made = box({"python": {"url": sandbox, "timeout_s": 3, "memory_mb": 256}})
    assert made.call("python", code="print(int(input()) * 2)", stdin="21").text == "42"
    assert made.call("python", code="x = 1").text == "(no output; print what you want to see)"
    wrong = made.call("python", code="print('before'); 1/0")
    assert wrong.trouble == "raised"
    assert wrong.text.startswith("before\nTraceback")
    assert wrong.text.endswith("ZeroDivisionError: division by zero")
    slow = made.call("python", code="print('a', flush=True)\nwhile True: pass")
    assert (slow.trouble, slow.text) == (
        "timeout",
        "a\nTimeoutError: the code took longer than 3 s and was stopped",
    )
    large = made.call("python", code="x = bytearray(1 << 30)")
    assert "more than the 256 MB" in large.text
    uses = [answer.sandbox for answer in (wrong, slow, large)]
    assert [use.killed for use in uses if use] == [False, True, True]
    assert all(use.ran_s > 0 <= use.queued_s for use in uses if use)
    assert made.call("python", code="raise SystemExit(3)").text == "the code ended with exit code 3"
    assert made.call("python", code="#" * 2_000_000).text.startswith("the code is too long")
    assert made.call("python", code="print('\ud800')").text == "?"


def test_calls_of_many_attempts_share_batches(sandbox: str) -> None:
    box = Toolbox({"python": {"url": sandbox}})

    async def many() -> list[str]:
        calls = [box.call(ToolRequest("python", {"code": f"print({i})"}), attempt=str(i)) for i in range(40)]
        try:
            return [answer.text for answer in await asyncio.gather(*calls)]
        finally:
            await box.close()

    assert asyncio.run(many()) == [str(i) for i in range(40)]


def test_a_session_lives_as_long_as_its_attempt(box: Make, sandbox: str) -> None:
    made = box({"python_session": {"url": sandbox, "timeout_s": 3}})
    assert made.call("python_session", code="x = 41").text == "(no output)"
    assert made.call("python_session", code="print('so'); x + 1").text == "so\n42"
    assert made.call("python_session", attempt="b", code="x").trouble == "raised"
    assert made.call("python_session", code="while True: pass").trouble == "timeout"
    assert made.call("python_session", code="x").text == "41"
    made.end("a")
    assert "NameError" in made.call("python_session", code="x").text


def test_the_policy_learns_that_its_code_ended_the_session(box: Make, sandbox: str) -> None:
    made = box({"python_session": {"url": sandbox}})
    made.call("python_session", code="x = 1")
    gone = made.call("python_session", code="import os; os._exit(7)")
    assert gone.trouble == "raised"
    assert "exit code 7; its variables are gone; the next call starts a new one" in gone.text
    assert "NameError" in made.call("python_session", code="x").text


def test_two_calls_of_one_turn_share_a_session(sandbox: str) -> None:
    box = Toolbox({"python_session": {"url": sandbox}})

    async def both() -> str:
        codes = ["x = 1", "y = 2", "x + y"]
        calls = [box.call(ToolRequest("python_session", {"code": code}), attempt="a") for code in codes]
        answers = await asyncio.gather(*calls)
        await box.close()
        return answers[-1].text

    assert asyncio.run(both()) == "3"


def test_a_tools_block_of_rstar2_works_unchanged(box: Make, sandbox: str) -> None:
    port = int(sandbox.rpartition(":")[2])
    block = {
        "host_addr": "localhost",
        "host_port": port,
        "batch_size": 4,
        "concurrency": 2,
        "batch_timeout_seconds": 30.0,
        "enable_jupyter": False,
    }
    made = box({"code_judge": block})
    began = time.monotonic()
    assert made.call("code_judge", code="print(input())", input="hello").text == "hello"
    assert time.monotonic() - began < 25, "a lone call does not wait for its batch to fill"
    assert "ZeroDivisionError" in made.call("code_judge", code="1/0").text
    live = box({"code_judge": {**block, "enable_jupyter": True, "name": "jupyter_code"}})
    assert live.call("jupyter_code", code="x = 2").text == "(no output)"
    assert live.call("jupyter_code", code="x").text == "2"


def test_a_sandbox_is_started_where_none_is_named(sandbox: str) -> None:
    with served({"python": {}, "calculator": {}, "python_session": {"url": sandbox}}) as settings:
        url = settings["python"]["url"]
        assert settings["python_session"]["url"] == sandbox
        assert "url" not in settings["calculator"]
        answer = asyncio.run(Toolbox(settings).call(ToolRequest("python", {"code": "print(1)"}), attempt="a"))
        assert answer.text == "1"
    with socket.socket() as door:
        assert door.connect_ex(("127.0.0.1", int(url.rpartition(":")[2]))) != 0


class OwnServer:
    """A sandbox that a test may kill, and start again on the same port."""

    def __init__(self) -> None:
        self.port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        options = ("serve", "--port", str(self.port), "--workers", "1", "--preload", "")
        self.process = subprocess.Popen(command(*options), stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline().strip().rpartition(":")[2])

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def test_a_killed_server_is_named_and_waited_for(box: Make, sandbox: str) -> None:
    server = OwnServer()
    settings = {"url": server.url, "max_retries": 2}
    made = box({"python": settings, "python_session": settings})
    try:
        assert made.call("python", code="print(1)").text == "1"
        made.call("python_session", code="x = 1")
        server.kill()
        with pytest.raises(InfrastructureFailure, match=server.url):
            made.call("python", code="print(1)")
        with pytest.raises(InfrastructureFailure, match=server.url):
            made.call("python_session", code="x")
        server.start()
        assert made.call("python", code="print(1)").text == "1"
        with pytest.raises(SessionLost, match=server.url):
            made.call("python_session", code="x")
    finally:
        server.kill()


def test_a_server_that_never_answers_is_named_within_its_limit(box: Make) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        made = box({"python": {"host_port": port, "timeout": 1.0}})
        with pytest.raises(InfrastructureFailure, match=f"localhost:{port}"):
            made.call("python", code="print(1)")
