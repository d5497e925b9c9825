"""Requests and results as types, for validation and for the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

MOST_IN_A_BATCH = 50_000
MOST_FILES = 10_000
Status = Literal["ok", "error", "timeout", "memory", "killed"]


class BadRequest(ValueError):
    """The request asks for what this server does not have or does not allow. The caller sees the text."""


def _relative_name(name: str) -> str:
    """Checks that a file name stays in the working directory of its run."""
    parts = name.split("/")
    if not name or len(name) > 512 or "\0" in name or any(part in ("", ".", "..") for part in parts):
        raise ValueError("a file name is relative, without . or .. in it, and at most 512 characters long")
    if any(len(part.encode("utf-8", "replace")) > 255 for part in parts):
        raise ValueError("a part of a file name is at most 255 bytes long")
    return name


FileName = Annotated[str, AfterValidator(_relative_name)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Base64(_Body):
    """The content of a file that is not text."""

    base64: str = Field(pattern=r"^[A-Za-z0-9+/]*={0,2}$")


class Program(_Body):
    """Code and what it may use."""

    code: str
    language: str = "python"
    timeout_s: Seconds | None = Field(
        default=None, description="limit of the run's own time: processor time of all its processes and sleep"
    )
    memory_mb: int | None = Field(default=None, gt=0, le=1 << 20)
    deadline_s: Seconds | None = Field(
        default=None, description="limit of the whole call, waiting in the queue included"
    )
    files: dict[FileName, str | Base64] = Field(default_factory=dict, max_length=MOST_FILES)
    alone: bool = Field(
        default=False,
        description="no other run shares its worker; if the worker dies, this run counts as the cause",
    )


class RunRequest(Program):
    """The request of a run."""

    stdin: str = ""
    fetch: list[FileName] = Field(default_factory=list, max_length=1000)


class RunResult(BaseModel):
    """The result of a run. `error` means that the exit code is not 0; that is an answer about the code."""

    status: Status
    stdout: str
    stderr: str
    exit_code: int | None = Field(
        description="negative: the number of the signal; null: it did not run to its end"
    )
    duration_s: float
    queued_s: float
    truncated: bool
    cpu_s: float | None = None
    reason: str | None = None
    files: dict[str, str | Base64] | None = None


class BatchRequest(_Body):
    """Many runs. Each item is checked alone, so a bad one does not fail the others."""

    runs: list[object] = Field(
        max_length=MOST_IN_A_BATCH, json_schema_extra={"items": {"$ref": "#/components/schemas/RunRequest"}}
    )


class BatchResult(BaseModel):
    results: list[RunResult]


class SessionRequest(_Body):
    """A live interpreter."""

    memory_mb: int | None = Field(default=None, gt=0, le=1 << 20)
    idle_s: Seconds | None = Field(default=None, description="the session ends after this long without use")
    files: dict[FileName, str | Base64] = Field(default_factory=dict, max_length=MOST_FILES)


class SessionOpened(BaseModel):
    id: str
    idle_s: float


class CellRequest(_Body):
    """The request of a cell of a session."""

    code: str
    timeout_s: Seconds | None = None
    deadline_s: Seconds | None = Field(
        default=None, description="limit of the whole call, waiting in the queue included"
    )


class CellResult(RunResult):
    value: str | None = Field(description="the value of a last expression, as a notebook shows it")


class TestCase(_Body):
    """An input and its expected output."""

    stdin: str = ""
    expected_output: str


class JudgeRequest(Program):
    """A program with its expected output, for one input or several; or code that checks its functions."""

    stdin: str = ""
    expected_output: str | None = None
    tests: list[TestCase] | None = Field(default=None, min_length=1, max_length=1000)
    checks: list[str] | None = Field(
        default=None,
        min_length=1,
        max_length=1000,
        description="Python that calls the program and raises if it is wrong; "
        "run in another process, which the program cannot reach",
    )
    setup: str = Field(default="", description="Python run before each check, in the process of the checks")
    entry_point: str = Field(
        default="", description="a name that belongs to the program even if setup defines it"
    )


Verdict = Literal[
    "accepted", "wrong_answer", "runtime_error", "time_limit", "memory_limit", "compile_error", "killed",
    "unsupported",
]  # fmt: skip


class TestVerdict(BaseModel):
    verdict: Verdict
    stdout: str
    stderr: str
    duration_s: float
    reason: str | None = None


class JudgeResult(BaseModel):
    passed: bool
    verdicts: list[TestVerdict]


class RefusedRequest(BaseModel):
    """Why a request was refused."""

    error: str
