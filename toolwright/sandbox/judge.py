"""Programs judged by what they print."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson

from toolwright.sandbox.jobs import BadRequest
from toolwright.sandbox.queue import Flow
from toolwright.sandbox.requests import JudgeRequest, Test
from toolwright.sandbox.service import Service

_BY_STATUS = {
    "error": "runtime_error",
    "timeout": "time_limit",
    "memory": "memory_limit",
    "killed": "killed",
}


def same_output(found: str, expected: str) -> bool:
    """Equal but for blanks at the ends of lines and empty lines at the end."""

    def lines(text: str) -> list[str]:
        return [line.rstrip() for line in text.strip().splitlines()]

    return lines(found) == lines(expected)


async def judge(service: Service, request: JudgeRequest) -> dict[str, Any]:
    """A verdict for each test; the tests run side by side."""
    if (request.tests is None) == (request.expected_output is None):
        raise BadRequest("give either expected_output (with stdin) or tests")
    tests = request.tests or [Test(stdin=request.stdin, expected_output=request.expected_output or "")]
    service.pool.queue.reserve(len(tests))
    flow = Flow()
    verdicts = await asyncio.gather(*(_verdict(service, request, test, flow) for test in tests))
    return {"passed": all(verdict["verdict"] == "accepted" for verdict in verdicts), "verdicts": verdicts}


async def _verdict(service: Service, request: JudgeRequest, test: Test, flow: Flow) -> dict[str, Any]:
    result = orjson.loads(await service.execute(request, test.stdin, flow, {}))
    reason = result.get("reason")
    if result["status"] == "ok":
        verdict = "accepted" if same_output(result["stdout"], test.expected_output) else "wrong_answer"
    elif reason and reason.startswith("compile:"):
        verdict = "compile_error"
    else:
        verdict = _BY_STATUS[result["status"]]
    kept = {name: result[name] for name in ("stdout", "stderr", "duration_s")}
    return {"verdict": verdict, **kept, **({"reason": reason} if reason else {})}
