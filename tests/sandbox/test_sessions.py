"""Sessions: a live interpreter that keeps what it was told."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.waiting import wait_until
from toolwright.sandbox.local import local_server

from .conftest import needs_isolation
from .served import Server


@pytest.fixture
def session(server: Server) -> Iterator[str]:
    name = server.post("/sessions", {"files": {"word.py": "text = 'hello'"}})["id"]
    yield name
    server.ask("DELETE", f"/sessions/{name}")


def cell(server: Server, name: str, code: str, **options: object) -> dict[str, object]:
    return server.post(f"/sessions/{name}/run", {"code": code, **options})


def test_variables_stay_and_the_last_expression_is_shown(server: Server, session: str) -> None:
    assert cell(server, session, "x = 20\ndef double(n): return 2 * n")["value"] is None
    result = cell(server, session, "print('shown'); double(x) + 2")
    assert (result["status"], result["stdout"], result["value"]) == ("ok", "shown\n", "42")
    assert cell(server, session, "_ + 1")["value"] == "43"
    assert cell(server, session, "None")["value"] is None
    assert cell(server, session, "import word; word.text")["value"] == "'hello'"


def test_an_error_in_a_cell_does_not_end_the_session(server: Server, session: str) -> None:
    cell(server, session, "x = 1")
    failed = cell(server, session, "y = 2\nx / 0")
    assert failed["status"] == "error"
    assert "ZeroDivisionError" in str(failed["stderr"])
    assert 'File "cell 2", line 2' in str(failed["stderr"])
    assert "toolwright" not in str(failed["stderr"])
    assert cell(server, session, "x + y")["value"] == "3"
    assert "SyntaxError" in str(cell(server, session, "def")["stderr"])


def test_a_cell_that_takes_too_long_is_interrupted_and_the_session_kept(server: Server, session: str) -> None:
    cell(server, session, "kept = 7")
    overran = cell(server, session, "print('a', flush=True)\nwhile True: pass", timeout_s=2)
    assert overran["status"] == "timeout"
    assert overran["stdout"] == "a\n"
    assert "KeyboardInterrupt" in str(overran["stderr"])
    assert cell(server, session, "kept")["value"] == "7"


def test_a_cell_that_cannot_be_interrupted_ends_its_session(server: Server) -> None:
    name = server.post("/sessions", {})["id"]
    stubborn = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass"
    overran = cell(server, name, stubborn, timeout_s=0.3)
    assert overran["status"] == "timeout"
    code, told = server.ask("POST", f"/sessions/{name}/run", {"code": "1"})
    assert code == 410
    assert "lost" in told["error"]
    assert "could not be interrupted" in told["error"]


def test_leaving_the_interpreter_ends_it(server: Server) -> None:
    name = server.post("/sessions", {})["id"]
    left = cell(server, name, "print('bye'); exit(3)")
    assert (left["status"], left["exit_code"], left["stdout"]) == ("error", 3, "bye\n")
    assert server.ask("POST", f"/sessions/{name}/run", {"code": "1"})[0] == 410


def test_a_closed_session_answers_410_and_an_unknown_one_404(server: Server) -> None:
    name = server.post("/sessions", {})["id"]
    assert server.ask("DELETE", f"/sessions/{name}") == (200, {"closed": True})
    assert server.ask("POST", f"/sessions/{name}/run", {"code": "1"})[0] == 410
    assert server.ask("POST", "/sessions/nobody/run", {"code": "1"})[0] == 404
    assert server.ask("DELETE", "/sessions/nobody")[0] == 404


def test_memory_is_limited_and_survived(server: Server, session: str) -> None:
    assert cell(server, session, "big = bytearray(3 << 30)")["status"] == "memory"
    assert cell(server, session, "1 + 1")["value"] == "2"


@needs_isolation
def test_idle_sessions_end_and_there_are_only_so_many() -> None:
    options = ("--workers", "1", "--preload", "", "--session-idle-s", "3", "--sessions-max", "2")
    with local_server(*options) as url:
        server = Server(url)
        names = [server.post("/sessions", {})["id"] for _ in range(2)]
        assert server.ask("POST", "/sessions", {})[0] == 429
        wait_until(lambda: server.status()["sessions"] == 0, "both have ended")
        code, told = server.ask("POST", f"/sessions/{names[0]}/run", {"code": "1"})
        assert code == 410
        assert "not used" in told["error"]
        assert server.ask("POST", "/sessions", {})[0] == 200
