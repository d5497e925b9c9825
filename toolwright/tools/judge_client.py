"""A client that speaks code-judge's protocol, for code-judge servers and for our own."""

from __future__ import annotations

from typing import Any

from toolwright.failures import InfrastructureFailure
from toolwright.sandbox.client import Client
from toolwright.sandbox.servers import Server

# A long batch waits as long as its caller does; a short one gives up after seconds.
_PATH = "/run/long-batch"
_STATUS = {"worker_timeout": "timeout", "queue_timeout": "killed", "internal_error": "killed"}
_REASONS = {"queue_timeout": "queue: no worker was free in time", "internal_error": "worker: internal error"}


class JudgeClient(Client):
    """Batches, balances and retries like `Client`; only the bodies differ. The limits are the server's."""

    async def _post(self, path: str, body: Any, deadline: float) -> tuple[dict[str, Any], Server]:
        if path not in ("/run", "/run/batch"):
            return await super()._post(path, body, deadline)
        runs = body["runs"] if path == "/run/batch" else [body]
        result, server = await super()._post(_PATH, _submission(runs), deadline)
        if not isinstance(result.get("results"), list):
            raise InfrastructureFailure(f"{_PATH}: the answer has no results; is this a code-judge server?")
        results = [_result(one) for one in result["results"]]
        return ({"results": results} if path == "/run/batch" else results[0]), server


def _submission(runs: list[dict[str, Any]]) -> dict[str, Any]:
    each = [{"type": "python", "solution": run["code"], "input": run.get("stdin", "")} for run in runs]
    return {"type": "batch", "submissions": each}


def _result(result: dict[str, Any]) -> dict[str, Any]:
    reason = result.get("reason") or ""
    ran = bool(result.get("run_success"))
    return {
        "status": "ok" if ran else _STATUS.get(reason, "error"),
        "stdout": result.get("stdout") or "",
        "stderr": result.get("stderr") or "",
        "exit_code": 0 if ran else None if reason in _REASONS else 1,
        "duration_s": float(result.get("cost") or 0.0),
        "queued_s": 0.0,
        "truncated": False,
        "reason": _REASONS.get(reason, ""),
    }
