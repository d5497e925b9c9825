"""SandboxFusion's `/run_code`, for the clients written for it."""

from __future__ import annotations

import base64
from typing import Any, Literal

import orjson
from pydantic import BaseModel, Field, ValidationError

from toolwright.sandbox.queue import Flow
from toolwright.sandbox.requests import MOST_FILES, BadRequest, Base64, FileName, RunRequest, Seconds
from toolwright.sandbox.service import SandboxService, explain


class RunCodeRequest(BaseModel):
    """Files come and go in base64."""

    code: str
    language: str
    compile_timeout: Seconds = 10
    run_timeout: Seconds = 10
    memory_limit_MB: int = -1
    stdin: str | None = None
    files: dict[FileName, str | None] = Field(default_factory=dict, max_length=MOST_FILES)
    fetch_files: list[FileName] = Field(default_factory=list, max_length=1000)


class CommandResult(BaseModel):
    status: Literal["Finished", "Error", "TimeLimitExceeded"]
    execution_time: float | None = None
    return_code: int | None = None
    stdout: str | None = None
    stderr: str | None = None


_COMPILED = CommandResult(status="Finished", execution_time=0.0, return_code=0, stdout="", stderr="")


class RunCodeResponse(BaseModel):
    status: Literal["Success", "Failed", "SandboxError"]
    message: str = ""
    compile_result: CommandResult | None = None
    run_result: CommandResult | None = None
    executor_pod_name: str | None = None
    files: dict[str, str] = Field(default_factory=dict)


async def run_code(service: SandboxService, request: RunCodeRequest) -> RunCodeResponse:
    service.pool.queue.reserve(1)
    memory = request.memory_limit_MB
    try:
        files: dict[str, str | Base64] = {
            name: Base64(base64=content) for name, content in request.files.items() if content is not None
        }
        run = RunRequest(
            code=request.code,
            language=request.language,
            stdin=request.stdin or "",
            timeout_s=min(request.run_timeout, service.settings.limits.timeout_max_s),
            memory_mb=memory if memory > 0 else None,
            files=files,
            fetch=request.fetch_files,
        )
        result = orjson.loads(await service.run(run, Flow()))
    except BadRequest as error:
        return RunCodeResponse(status="SandboxError", message=str(error))
    except ValidationError as error:
        raise BadRequest(explain(error)) from None
    reason = result.get("reason") or ""
    if result["exit_code"] is None:
        return RunCodeResponse(status="SandboxError", message=reason)
    command = _command(result)
    if reason.startswith("compile:"):
        return RunCodeResponse(status="Failed", compile_result=command)
    return RunCodeResponse(
        status="Success" if result["status"] == "ok" else "Failed",
        compile_result=_COMPILED if request.language == "cpp" else None,
        run_result=command,
        files={name: _base64(content) for name, content in result.get("files", {}).items()},
    )


def _command(result: dict[str, Any]) -> CommandResult:
    overran = result["status"] == "timeout"
    return CommandResult(
        status="TimeLimitExceeded" if overran else "Finished",
        execution_time=result["duration_s"],
        return_code=None if overran else result["exit_code"],
        stdout=result["stdout"],
        stderr=result["stderr"],
    )


def _base64(content: str | dict[str, str]) -> str:
    if isinstance(content, dict):
        return content["base64"]
    return base64.b64encode(content.encode()).decode()
