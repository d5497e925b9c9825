"""Clients written for other servers."""

from __future__ import annotations

import asyncio
import base64
import shutil
from functools import partial
from typing import Any

import pytest

from toolwright.sandbox.service import SandboxService
from toolwright.sandbox.settings import SandboxSettings

from .conftest import needs_isolation
from .served import Server

KEYS = {"sub_id", "success", "run_success", "cost", "stdout", "stderr", "reason"}


def submission(solution: str, **more: object) -> dict[str, object]:
    return {"type": "python", "solution": solution, "input": None, "expected_output": None, **more}


def test_code_judge_runs_one(server: Server) -> None:
    result = server.post("/run", submission("print(input())", input="a", expected_output="a", sub_id="s1"))
    assert result.keys() == KEYS
    assert (result["sub_id"], result["success"], result["run_success"], result["reason"]) == (
        "s1",
        True,
        True,
        "",
    )
    wrong = server.post("/run", submission("print(input())", input="a", expected_output="b"))
    assert (wrong["success"], wrong["run_success"]) == (False, True)
    failed = server.post("/run", submission("1/0"))
    assert (failed["success"], failed["run_success"]) == (False, False)
    assert "ZeroDivisionError" in failed["stderr"]


@pytest.mark.parametrize("path", ["/run/batch", "/run/long-batch", "/judge/batch", "/judge/long-batch"])
def test_code_judge_runs_many(server: Server, path: str) -> None:
    items = [submission(f"print({n})", expected_output=str(n % 3), sub_id=str(n)) for n in range(5)]
    result = server.post(path, {"type": "batch", "submissions": items})
    assert [item["sub_id"] for item in result["results"]] == [str(n) for n in range(5)]
    assert [item["success"] for item in result["results"]] == [True, True, True, False, False]
    assert ("stdout" in result["results"][0]) == path.startswith("/run")


def test_code_judge_judges_one(server: Server) -> None:
    result = server.post("/judge", submission("print(1)", expected_output="1"))
    assert result["success"]
    assert "stdout" not in result


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
def test_code_judge_runs_cpp(server: Server) -> None:
    source = '#include <cstdio>\nint main(){printf("a");return 0;}'
    assert server.post("/run", {**submission(source, expected_output="a"), "type": "cpp"})["success"]


def test_code_judge_compares_mathematics(server: Server) -> None:
    pytest.importorskip("math_verify")
    told = {"type": "math", "solution": "$\\frac{1}{2}$", "expected_output": "$0.5$"}
    assert server.post("/judge", told)["success"]
    assert not server.post("/judge", {**told, "expected_output": "$0.6$"})["success"]


@needs_isolation
def test_expressions_that_never_end_cost_their_time_and_no_more() -> None:
    pytest.importorskip("math_verify")
    settings = SandboxSettings(workers=1, preload=("sympy",))

    async def compare() -> list[dict[str, Any]]:
        service = SandboxService(settings)
        await service.start()
        try:
            ask = partial(service.expressions.compare, timeout_s=1.0)
            pairs = [("$9^{9^{9^{9}}}$", "$1$"), ("$\\frac{4}{6}$", "$\\frac{2}{3}$"), ("1", "2")]
            results = await asyncio.gather(*(ask(*pair) for pair in pairs))
            (slot,) = [session.slot for session in service.expressions._sessions]
            service.pool.close_session(slot)
            return [*results, await ask("$x$", "$x$")]
        finally:
            await service.close()

    endless, same, other, after_a_loss = asyncio.run(compare())
    assert (endless["status"], endless["stdout"]) == ("timeout", "")
    assert (same["status"], same["stdout"]) == ("ok", "True\n")
    assert (other["status"], other["stdout"]) == ("ok", "False\n")
    assert after_a_loss["stdout"] == "True\n"


def test_code_judge_gets_a_status_of_two_keys(server: Server) -> None:
    """Its client makes a dataclass of exactly those, and would refuse more."""
    assert server.ask("GET", "/code-judge/status")[1] == {"queue": 0, "num_workers": 2}
    assert {"queue", "num_workers"} < server.status().keys()


def test_code_judge_under_its_prefix(server: Server) -> None:
    items = [submission("print(1)", expected_output="1", sub_id="a")]
    result = server.post("/code-judge/run/long-batch", {"type": "batch", "submissions": items})
    assert [item["success"] for item in result["results"]] == [True]
    assert server.ask("GET", "/code-judge/run")[0] == 405


def test_the_client_of_sandbox_fusion_works_unchanged(server: Server) -> None:
    fusion = pytest.importorskip("sandbox_fusion")
    request = fusion.RunCodeRequest(
        code="import sys, shutil\nprint(input())\nsys.stderr.write('e')\nshutil.copy('i.txt', 'o.txt')",
        language="python",
        stdin="hello",
        files={"i.txt": base64.b64encode(b"data").decode()},
        fetch_files=["o.txt"],
    )
    response = fusion.run_code(request, endpoint=server.url, max_attempts=1)
    assert response.status == fusion.RunStatus.Success
    assert (response.run_result.stdout, response.run_result.stderr, response.run_result.return_code) == (
        "hello\n",
        "e",
        0,
    )
    assert base64.b64decode(response.files["o.txt"]) == b"data"


def test_sandbox_fusion_sees_failures_and_timeouts(server: Server) -> None:
    fusion = pytest.importorskip("sandbox_fusion")

    def run(code: str, **more: object) -> object:
        return fusion.run_code(
            fusion.RunCodeRequest(code=code, language="python", **more), endpoint=server.url, max_attempts=1
        )

    failed = run("raise ValueError(3)")
    assert failed.status == fusion.RunStatus.Failed
    assert failed.run_result.return_code == 1
    late = run("while True: pass", run_timeout=0.3)
    assert late.status == fusion.RunStatus.Failed
    assert late.run_result.status == fusion.CommandRunStatus.TimeLimitExceeded


def test_sandbox_fusion_gets_an_error_for_missing_languages(server: Server) -> None:
    told = server.post("/run_code", {"code": "x", "language": "verilog"})
    assert told["status"] == "SandboxError"
    assert "verilog" in told["message"]


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
def test_sandbox_fusion_compiles(server: Server) -> None:
    fusion = pytest.importorskip("sandbox_fusion")
    good = fusion.RunCodeRequest(code='#include <cstdio>\nint main(){puts("hi");}', language="cpp")
    response = fusion.run_code(good, endpoint=server.url, max_attempts=1)
    assert response.compile_result.return_code == 0
    assert response.run_result.stdout == "hi\n"
    bad = fusion.run_code(
        fusion.RunCodeRequest(code="int main( {", language="cpp"), endpoint=server.url, max_attempts=1
    )
    assert bad.status == fusion.RunStatus.Failed
    assert bad.run_result is None
    assert bad.compile_result.return_code != 0
