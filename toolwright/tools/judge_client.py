"""The sandbox's client in code-judge's words, so that a code-judge server can stand in for ours."""

from __future__ import annotations

from typing import Any

from toolwright.failures import InfrastructureFailure
from toolwright.sandbox.balance import Server
from toolwright.sandbox.client import Client

# A long batch waits for its turn as long as its caller does; a short one is given up after seconds.
_PATH = "/run/long-batch"
_STATUS = {"worker_timeout": "timeout", "queue_timeout": "killed", "internal_error": "killed"}
_OURS = {"queue_timeout": "queue: no worker was free in time", "internal_error": "worker: internal error"}


class JudgeClient(Client):
    """Batches, balances and tries again as ever; only the bodies differ. Limits are the server's own."""

    async def _post(
        self, path: str, body: Any, deadline: float, chosen: list[Server] | None = None
    ) -> dict[str, Any]:
        if path not in ("/run", "/run/batch"):
            return await super()._post(path, body, deadline, chosen)
        runs = body["runs"] if path == "/run/batch" else [body]
        told = await super()._post(_PATH, _submission(runs), deadline, chosen)
        if not isinstance(told.get("results"), list):
            raise InfrastructureFailure(f"{_PATH}: the answer has no results; is this a code-judge server?")
        results = [_result(one) for one in told["results"]]
        return {"results": results} if path == "/run/batch" else results[0]


def _submission(runs: list[dict[str, Any]]) -> dict[str, Any]:
    each = [{"type": "python", "solution": run["code"], "input": run.get("stdin", "")} for run in runs]
    return {"type": "batch", "submissions": each}


def _result(told: dict[str, Any]) -> dict[str, Any]:
    why = told.get("reason") or ""
    ran = bool(told.get("run_success"))
    return {
        "status": "ok" if ran else _STATUS.get(why, "error"),
        "stdout": told.get("stdout") or "",
        "stderr": told.get("stderr") or "",
        "exit_code": 0 if ran else None if why in _OURS else 1,
        "duration_s": float(told.get("cost") or 0.0),
        "queued_s": 0.0,
        "truncated": False,
        "reason": _OURS.get(why, ""),
    }
