"""The requests and answers of code-judge, so that its clients work unchanged."""

from __future__ import annotations

import uuid
from typing import Annotated, Any, Literal

import orjson
from pydantic import BaseModel, FailFast, Field

from toolwright.sandbox.judge import enough_to_compare
from toolwright.sandbox.pool import refusal
from toolwright.sandbox.queue import Flow
from toolwright.sandbox.requests import MOST_IN_A_BATCH, BadRequest, RunRequest
from toolwright.sandbox.service import SandboxService, in_slices

# `get_status` of its clients accepts a status of exactly two keys, and their requests look like any other.
# A client whose URL ends in this prefix gets that status.
PREFIX = "/code-judge"
PATHS = ("/run", "/run/batch", "/run/long-batch", "/judge", "/judge/batch", "/judge/long-batch")


class Submission(BaseModel):
    """A program, or a mathematical answer."""

    type: Literal["python", "cpp", "math"]
    solution: str
    input: str | None = None
    expected_output: str | None = None
    sub_id: str | None = None
    options: dict[str, object] | None = None


class BatchSubmission(BaseModel):
    type: Literal["batch"] = "batch"
    submissions: Annotated[list[Submission], FailFast()] = Field(min_length=1, max_length=MOST_IN_A_BATCH)
    sub_id: str | None = None


class Judged(BaseModel):
    sub_id: str
    success: bool
    run_success: bool
    cost: float
    reason: Literal["", "internal_error", "worker_timeout", "queue_timeout"] = ""


class BatchJudged(BaseModel):
    sub_id: str
    results: list[Judged]


class SubmissionResult(Judged):
    stdout: str | None = None
    stderr: str | None = None


class BatchSubmissionResult(BaseModel):
    sub_id: str
    results: list[SubmissionResult]


async def run(
    service: SandboxService, submission: Submission, flow: Flow, queue_s: float | None = None
) -> dict[str, Any]:
    """Runs a submission. `run_success`: it ran; `success`: it also printed the expected output."""
    deadline = None if queue_s is None else queue_s + service.settings.limits.timeout_s
    expected = submission.expected_output
    try:
        if submission.type == "math":
            timeout_s = service.settings.limits.timeout_s
            result = await service.expressions.compare(
                expected or "", submission.solution, timeout_s=timeout_s, deadline_s=deadline
            )
            expected = "True"
        else:
            request = RunRequest(code=submission.solution, language=submission.type, deadline_s=deadline)
            kept = {"output_bytes": enough_to_compare(service, expected or "")}
            result = orjson.loads(await service.execute(request, submission.input or "", flow, kept))
    except BadRequest as error:
        result = {**refusal("error", str(error)), "stderr": str(error)}
    run_success = result["status"] == "ok"
    success = run_success and (
        expected is None or (not result["truncated"] and result["stdout"].strip() == expected.strip())
    )
    return {
        "sub_id": submission.sub_id or str(uuid.uuid4()),
        "success": success,
        "run_success": run_success,
        "cost": result["duration_s"],
        "stdout": result["stdout"],
        "stderr": result["stderr"],
        "reason": _reason(result),
    }


def _reason(result: dict[str, Any]) -> str:
    if result["status"] == "timeout":
        return "queue_timeout" if (result.get("reason") or "").startswith("queue:") else "worker_timeout"
    return "internal_error" if result["status"] == "killed" and result["exit_code"] is None else ""


async def run_batch(service: SandboxService, batch: BatchSubmission, *, long: bool) -> dict[str, Any]:
    """A long batch may wait an hour for its turn, as its clients expect."""
    service.pool.queue.reserve(len(batch.submissions))
    flow = Flow()
    queue_s = 3600.0 if long else None
    calls = (run(service, item, flow, queue_s) for item in batch.submissions)
    results: list[dict[str, Any]] = await in_slices(calls)
    return {"sub_id": batch.sub_id or str(uuid.uuid4()), "results": results}


def status(service: SandboxService) -> dict[str, int]:
    status = service.status()
    return {key: status[key] for key in ("queue", "num_workers")}


def without_output(result: dict[str, Any]) -> dict[str, Any]:
    """The answer of the judging endpoints: the same without the output."""
    if "results" in result:
        return {**result, "results": [without_output(item) for item in result["results"]]}
    return {name: value for name, value in result.items() if name not in ("stdout", "stderr")}
