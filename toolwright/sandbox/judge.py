"""Judges programs by their output, or by what their functions return."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any

import orjson

from toolwright.sandbox.jobs import PYTHON
from toolwright.sandbox.queue import Flow
from toolwright.sandbox.requests import BadRequest, JudgeRequest, TestCase
from toolwright.sandbox.service import SandboxService

_BY_STATUS = {
    "error": "runtime_error",
    "timeout": "time_limit",
    "memory": "memory_limit",
    "killed": "killed",
}
_BY_OUTCOME = {"passed": "accepted", "failed": "wrong_answer", "unsupported": "unsupported"}
_SHOWN = 2048  # characters of output with each verdict of a check; there may be a thousand
_MOST_TIME_LIMITS = 2
_BLANKS = " \t\r\n"  # no other white space: a form feed is not a new line
_BEYOND_EXPECTED = 1 << 16  # extra bytes that a right output may have: blanks at the ends of lines


def same_output(found: str, expected: str) -> bool:
    """Compare two outputs, apart from blanks at the ends of lines and around the whole."""

    def lines(text: str) -> list[str]:
        return [line.rstrip(_BLANKS) for line in text.strip(_BLANKS).split("\n")]

    return lines(found) == lines(expected)


def enough_to_compare(service: SandboxService, expected: str) -> int:
    """Choose how many bytes of output to keep, so that a correct output is never cut off."""
    return max(service.settings.limits.output_kb << 10, len(expected.encode()) + _BEYOND_EXPECTED)


async def judge(service: SandboxService, request: JudgeRequest) -> dict[str, Any]:
    """A verdict for each test."""
    if sum(form is not None for form in (request.tests, request.expected_output, request.checks)) != 1:
        raise BadRequest("give exactly one of expected_output (with stdin), tests and checks")
    if request.checks is not None:
        verdicts = await _judge_checks(service, request, request.checks)
    else:
        tests = request.tests or [
            TestCase(stdin=request.stdin, expected_output=request.expected_output or "")
        ]
        service.pool.queue.reserve(len(tests))
        flow = Flow()
        verdicts = await _in_order(_judge_output(service, request, test, flow) for test in tests)
    return {"passed": all(verdict["verdict"] == "accepted" for verdict in verdicts), "verdicts": verdicts}


async def _in_order(
    calls: Iterable[Coroutine[Any, Any, dict[str, Any]]], known: Sequence[dict[str, Any]] = ()
) -> list[dict[str, Any]]:
    """The verdicts of tests that run side by side, after those that are `known`.

    After two time limits the remaining tests are not run. An endless program with many tests would outlast
    its caller and never be judged.
    """
    tasks = [asyncio.ensure_future(call) for call in calls]
    verdicts = list(known)
    too_slow = sum(verdict["verdict"] == "time_limit" for verdict in known)
    try:
        for task in tasks:
            if too_slow < _MOST_TIME_LIMITS:
                verdicts.append(await task)
                too_slow += verdicts[-1]["verdict"] == "time_limit"
            else:
                verdicts.append(_verdict("time_limit", "not run: earlier tests passed the time limit"))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return verdicts


async def _judge_output(
    service: SandboxService, request: JudgeRequest, test: TestCase, flow: Flow
) -> dict[str, Any]:
    limit = service.settings.limits.output_kb << 10
    kept = enough_to_compare(service, test.expected_output)
    result = orjson.loads(await service.execute(request, test.stdin, flow, {"output_bytes": kept}))
    reason = result.get("reason")
    if result["status"] == "ok":
        right = not result["truncated"] and same_output(result["stdout"], test.expected_output)
        verdict = "accepted" if right else "wrong_answer"
        if result["truncated"]:
            reason = f"the program wrote more than {kept} bytes"
    elif reason and reason.startswith("compile:"):
        verdict = "compile_error"
    else:
        verdict = _BY_STATUS[result["status"]]
    return _verdict(verdict, reason, result["stdout"][:limit], result["stderr"][:limit], result["duration_s"])


async def _judge_checks(
    service: SandboxService, request: JudgeRequest, checks: list[str]
) -> list[dict[str, Any]]:
    """Runs all checks on one solution process. If it ends early, each remaining check gets another."""
    if service.languages.find(request.language)[0] is not None:
        raise BadRequest(f"checks are for {PYTHON}, not for {request.language}")
    service.pool.queue.reserve(len(checks))
    flow = Flow()

    async def run_checks(some: list[str]) -> tuple[list[dict[str, Any]], bool]:
        job = service.jobs.checked(
            request.code,
            some,
            setup=request.setup,
            entry_point=request.entry_point,
            timeout_s=request.timeout_s,
            memory_mb=request.memory_mb,
            files=request.files,
        )
        answer = await service.pool.submit(job, flow, request.deadline_s, alone=request.alone)
        return _read(orjson.loads(answer), len(some))

    async def run_alone(check: str) -> dict[str, Any]:
        found, _ = await run_checks([check])
        return found[0]

    verdicts, loaded = await run_checks(checks)
    if len(verdicts) == len(checks):
        return verdicts
    if not loaded:
        return verdicts * len(checks)
    # The first check of a process has all of its time and memory. A later one may have had too little.
    kept = max(1, len(verdicts) - 1)
    return await _in_order((run_alone(check) for check in checks[kept:]), verdicts[:kept])


def _read(result: dict[str, Any], count: int) -> tuple[list[dict[str, Any]], bool]:
    """The verdicts of the checks that were begun, and whether the solution was loaded at all.

    The last of these checks may have ended the process.
    """
    if "checker" not in result:  # no worker could run it
        return [_verdict(_BY_STATUS[result["status"]], result.get("reason"))], False
    solution, checker = result["solution"], result["checker"]
    reports = _reports(checker["stdout"])[: count + 1]
    loaded = ("loaded", "") in reports[:1]
    stderr = checker["stderr"][-_SHOWN:]
    verdicts = [
        _verdict(_BY_OUTCOME[outcome], why, stderr=stderr)
        for outcome, why in reports
        if outcome in _BY_OUTCOME
    ]
    # The run that a limit ended, or the machine: then it has no exit code and was not judged.
    ended = next(
        (
            run
            for run in (solution, checker)
            if run["status"] in ("timeout", "memory") or run["exit_code"] is None
        ),
        None,
    )
    if count == 1 and ended:
        verdicts = []  # it passed its limit before anybody checked
    if len(verdicts) < count and "unsupported" not in (outcome for outcome, _ in reports):
        verdict = _BY_STATUS[ended["status"]] if ended else "runtime_error"
        why = ended["reason"] if ended else reports[-1][1] if reports else ""
        stdout, stderr = solution["stdout"][-_SHOWN:], solution["stderr"][-_SHOWN:]
        verdicts.append(_verdict(verdict, why, stdout, stderr, solution["duration_s"]))
    return verdicts, loaded


def _reports(text: str) -> list[tuple[str, str]]:
    """Parse the checker's reports up to the first line that is not one: checks may write anything."""
    reports: list[tuple[str, str]] = []
    for line in text.splitlines():
        try:
            outcome, why = json.loads(line)
            reports.append((str(outcome), str(why).encode("utf-8", "replace").decode()))
        except (ValueError, TypeError, RecursionError):
            break
    return reports


def _verdict(
    verdict: str, reason: str | None, stdout: str = "", stderr: str = "", duration_s: float = 0.0
) -> dict[str, Any]:
    result = {"verdict": verdict, "stdout": stdout, "stderr": stderr, "duration_s": duration_s}
    return {**result, "reason": reason} if reason else result
