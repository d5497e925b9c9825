"""Faults that were found by reading, each with what it did before it was mended."""

from __future__ import annotations

import json
import re
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.waiting import wait_until
from toolwright.failures import UserError
from toolwright.sandbox.execution import Execution
from toolwright.sandbox.limits import RunLimits
from toolwright.sandbox.servers import Servers
from toolwright.sandbox.settings import SandboxSettings

from .attack import served_without
from .conftest import needs_isolation
from .served import Server


def test_a_run_that_ends_before_it_has_read_its_input_hurts_nobody(server: Server) -> None:
    """The rest of the input was sent to a socket already closed, and the worker died of it."""
    before = server.status()["worker_restarts"]
    runs = [{"code": "1", "stdin": "x" * (4 << 20), "timeout_s": 0.001}] * 8
    assert {result["status"] for result in server.post("/run/batch", {"runs": runs})["results"]} == {
        "timeout"
    }
    assert server.status()["worker_restarts"] == before


@needs_isolation
def test_code_that_names_a_package_which_is_not_installed_hurts_nobody() -> None:
    """It was sent to a zygote that did not exist."""
    with served_without(frozenset(), "--workers", "1", "--preload", "nosuchpackage,no.such") as server:
        assert "ModuleNotFoundError" in server.run("import nosuchpackage")["stderr"]
        assert server.status()["worker_restarts"] == 0
        assert server.status()["preloaded"] == []


@pytest.mark.parametrize(("cpu_s", "status"), [(0.1, "killed"), (11.2, "timeout")])
def test_more_cpu_time_than_the_timeout_is_a_timeout(cpu_s: float, status: str) -> None:
    """Found on a second core, where the kernel ends it before the clock does, it was called a kill."""
    child: Any = SimpleNamespace(stdout=-1, stderr=-1)
    job = {"timeout_s": 10.0, "wall_s": 100.0, "wall_is_deadline": False, "output_bytes": 100}
    run = Execution(child, job, done=lambda _: None)
    assert run._verdict(-9, cpu_s)[0] == status


def test_files_of_a_request_that_cannot_be_written_are_its_own_error(server: Server) -> None:
    result = server.run("print(1)", files={"a": "x", "a/b": "y"})
    assert (result["status"], result["exit_code"]) == ("error", 1)
    assert "a/b could not be written" in result["stderr"]
    assert server.run("print(open('.stdin').read())", stdin="in", files={".stdin": "f"})["stdout"] == "f\n"


@pytest.mark.parametrize(
    "body",
    [
        b'{"code": "1", "timeout_s": NaN}',
        b'{"code": "1", "timeout_s": Infinity}',
        b'{"code": "1", "timeout_s": 1e999}',
        b'{"code": "1", "timeout_s": 0}',
        b'{"code": "1", "memory_mb": 0}',
        b'{"code": "1", "memory_mb": 1.5}',
        b'{"code": "1", "deadline_s": -1}',
        b'{"code": "\\ud800"}',
        b"\xff",
        b"[" * 100_000,
    ],
)
def test_malformed_request_bodies_are_refused(server: Server, body: bytes) -> None:
    assert server.ask("POST", "/run", body)[0] == 422


def test_a_body_too_large_is_refused_before_it_is_sent(server: Server) -> None:
    import socket

    place = urlsplit(server.url)
    with socket.create_connection((place.hostname, place.port), 10) as connection:
        connection.sendall(
            b"POST /run HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"content-length: 99999999999\r\n\r\n{"
        )
        assert b" 413 " in connection.recv(100)


def test_a_body_too_large_without_a_length_is_cut_off(server: Server) -> None:
    import http.client

    place = urlsplit(server.url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=30)
    piece = b"x" * (1 << 20)
    try:
        headers = {"transfer-encoding": "chunked", "content-type": "application/json"}
        connection.request("POST", "/run", body=iter([piece] * 70), encode_chunked=True, headers=headers)
        assert connection.getresponse().status == 413
    except (BrokenPipeError, ConnectionResetError):
        pass  # the server hung up while we were still sending
    finally:
        connection.close()
    assert server.run("print(1)")["stdout"] == "1\n"


@pytest.mark.parametrize(
    "wrong", [{"workers": -1}, {"runs_per_worker": 0}, {"queue_timeout_s": float("nan")}]
)
def test_settings_that_cannot_work_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UserError, match=next(iter(wrong))):
        SandboxSettings(**wrong)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="memory_mb"):
        SandboxSettings(limits=RunLimits(memory_mb=0))


@needs_isolation
def test_two_servers_on_one_machine_do_not_affect_each_other() -> None:
    options = ("--workers", "1", "--preload", "")
    with served_without(frozenset(), *options) as one, served_without(frozenset(), *options) as other:
        bomb = "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass"
        fork = "import os; os.wait() if os.fork() else os._exit(0); print(1)"
        with one.busy(bomb):
            assert [other.run(fork, timeout_s=60)["stdout"] for _ in range(5)] == ["1\n"] * 5
        with one.session() as session:
            assert other.ask("POST", f"/sessions/{session.name}/run", {"code": "1"})[0] == 404


def test_closing_a_blocking_client_ends_the_calls_of_its_threads(server: Server) -> None:
    """Calls of other threads waited for an event loop that had stopped."""
    from toolwright.sandbox import BlockingClient

    client = BlockingClient(server.url, batch_size=1)
    ended = threading.Event()

    def call() -> None:
        try:
            client.run("import time; time.sleep(500)", timeout=600, timeout_s=600)
        except BaseException:
            ended.set()

    threading.Thread(target=call, daemon=True).start()
    wait_until(lambda: server.status()["running"], "the call is under way")
    client.close()
    assert ended.wait(120)
    wait_until(lambda: not server.status()["running"], "its run has ended with it")


def test_only_a_session_can_be_a_lost_session() -> None:
    """A wrong path under another server's URL was reported as one."""
    from toolwright.sandbox.servers import Server as Known

    asked = Servers(["http://x"], token=None, concurrency=1, interval_s=0)
    with pytest.raises(UserError, match="404"):
        asked._parse(Known("http://x"), "/run/batch", 404, {}, b'{"error": "nothing here"}')


@pytest.mark.parametrize("byte", [b"\0", b"\x1b", b"\xff"])
def test_output_that_grows_when_it_is_answered_is_cut_to_fit(server: Server, byte: bytes) -> None:
    """A NUL is six bytes of JSON: an answer was six times as large as the output it was allowed."""
    result = server.run(f"import os\nfor _ in range(16): os.write(1, {byte!r} * 65536)", timeout_s=60)
    assert (result["status"], result["truncated"]) == ("ok", True)
    assert 0.9 * (1 << 20) < len(json.dumps(result["stdout"], ensure_ascii=False).encode()) <= (1 << 20) + 2


def test_answers_to_many_runs_that_print_nuls_do_not_fill_the_server(server: Server) -> None:
    """They took it to more than a gigabyte."""
    status, peak = Path(f"/proc/{server.pid}/status"), re.compile(r"VmHWM:\s+(\d+)")

    def peak_mb() -> float:
        return int(peak.findall(status.read_text())[0]) / 1024

    Path(f"/proc/{server.pid}/clear_refs").write_text("5")  # from now on
    before = peak_mb()
    code = "import os\nfor stream in (1, 2):\n  for _ in range(16): os.write(stream, bytes(65536))"
    results = server.post("/run/batch", {"runs": [{"code": code, "timeout_s": 60}] * 32})["results"]
    assert {result["status"] for result in results} == {"ok"}
    assert peak_mb() - before < 400


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
def test_a_deadline_holds_while_a_program_is_compiled(server: Server) -> None:
    """It was counted from the moment when the compiler had ended."""
    endless = """
template<int depth, int at> struct Tree : Tree<depth - 1, 2 * at>, Tree<depth - 1, 2 * at + 1> {};
template<int at> struct Tree<0, at> {};
int main() { Tree<24, 0> tree; }
"""
    result = server.run(endless, language="cpp", deadline_s=1)
    assert (result["status"], result["exit_code"]) == ("timeout", None)
    assert result["reason"].startswith("compile:")
    wait_until(lambda: not server.status()["running"], "the compiler has ended with its only caller", 15)
