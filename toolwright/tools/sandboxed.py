"""The base of tools that run code: their sandbox, and the text of a result."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from toolwright.failures import InfrastructureFailure, UserError
from toolwright.tools.call import SandboxUse, ToolResult, Trouble
from toolwright.tools.offer import ToolError
from toolwright.tools.plain_server import PlainServer, is_ours

if TYPE_CHECKING:
    from toolwright.sandbox.client import Client, ExecutionResult

T = TypeVar("T")

_PATIENCE_S = 60.0  # beyond the code's own time: for the queue of a busy server, or its restart
_LINGER_S = 0.01
_LONGEST_CODE = 1 << 18  # characters; a whole batch stays far below the limit of a server
_LONGEST_INPUT = 1 << 20
NOTHING_PRINTED = "(no output; print what you want to see)"
_ERROR_LINES = 30  # of an error
_KILLED = ("timeout", "memory", "killed")  # a status of a run that the sandbox ended


class SandboxTool:
    """Calls a sandbox server. Created in the loop that uses it."""

    speaks_plain = False  # whether a server that is not ours will do
    keeps_time = True  # the server ends slow code; a late server is not the code's fault

    def __init__(
        self,
        *,
        url: str | None = None,
        urls: list[str] | None = None,
        host_addr: str | None = None,
        host_port: PositiveInt | None = None,
        token: str | None = None,
        batch_size: PositiveInt = 32,
        concurrency: PositiveInt = 64,
        batch_timeout_seconds: NonNegativeFloat = 0.005,
        request_interval: NonNegativeFloat = 0.0,
        timeout: PositiveFloat | None = None,
        max_retries: NonNegativeInt = 8,
        retry_delay_s: NonNegativeFloat | None = None,
        memory_mb: PositiveInt | None = None,
        timeout_s: PositiveFloat = 30.0,
        request: Any = None,
        response: str | None = None,
    ) -> None:
        """`request` and `response` are of a server that is not ours: the body of a POST, with `{code}`,
        `{stdin}` and `{timeout_s}` in it, and where the answer has its text, such as `result.stdout`."""
        foreign = request is not None or response is not None
        if foreign and not self.speaks_plain:
            raise UserError("request and response are settings of the tool `python` alone")
        self._is_foreign: bool | None = True if foreign else None
        self._plain: PlainServer | None = None
        self._plain_settings: dict[str, Any] = {
            "request": request,
            "response": response,
            "concurrency": concurrency,
            "request_interval": request_interval,
            "timeout_s": timeout_s,
            "max_retries": max_retries,
            "retry_delay_s": retry_delay_s,
        }
        self._urls = _servers(url, urls, host_addr, host_port)
        self._code_s = timeout_s
        self._memory_mb = memory_mb
        self._client = self._client_class()(
            self._urls,
            token=token,
            batch_size=batch_size,
            # Attempts that call at the same moment share a batch. No call needs to wait for seconds.
            batch_timeout_seconds=min(batch_timeout_seconds, _LINGER_S),
            concurrency=concurrency,
            request_interval=request_interval,
            timeout=timeout or timeout_s + _PATIENCE_S,
            max_retries=max_retries,
            retry_delay_s=retry_delay_s,
        )

    def _client_class(self) -> type[Client]:
        from toolwright.sandbox.client import Client

        return Client

    async def close(self) -> None:
        await self._client.close()
        if self._plain is not None:
            await self._plain.close()

    async def _plain_server(self) -> PlainServer | None:
        """The server if it is not ours: it has no `/health`, or its protocol is configured."""
        if not self.speaks_plain:
            return None  # a code-judge has no health to tell either, and is spoken to in its own words
        if self._is_foreign is None:
            self._is_foreign = not await is_ours(self._urls[0])
        if self._is_foreign and self._plain is None:
            self._plain = PlainServer(self._urls[0], **self._plain_settings)
        return self._plain

    async def _run(self, code: str, stdin: str) -> ToolResult:
        """Runs a program that leaves nothing behind."""
        if (plain := await self._plain_server()) is not None:
            printed = await plain.run(sendable(code, "code", _LONGEST_CODE), stdin)
            return ToolResult(printed or NOTHING_PRINTED)
        options: dict[str, Any] = {
            "stdin": sendable(stdin, "input", _LONGEST_INPUT),
            "timeout_s": self._code_s,
        }
        if self._memory_mb is not None:
            options["memory_mb"] = self._memory_mb
        result = await self._with_server_name(
            self._client.run(sendable(code, "code", _LONGEST_CODE), **options)
        )
        if result.status == "error" and result.exit_code is None and result.reason:
            # Refused before it ran, because of its limits.
            raise UserError(f"the sandbox ({self._server_names}) refuses the run: {result.reason}")
        return self._answer(result, silent=NOTHING_PRINTED)

    async def _with_server_name(self, call: Awaitable[T]) -> T:
        """Adds the name of the server to an infrastructure failure."""
        try:
            return await call
        except InfrastructureFailure as error:
            if any(url in str(error) for url in self._urls):
                raise
            raise type(error)(f"sandbox {self._server_names}: {error}") from error

    @property
    def _server_names(self) -> str:
        return ", ".join(self._urls)

    def _answer(self, result: ExecutionResult, *, silent: str, note: str = "") -> ToolResult:
        """The result as a notebook shows it, and what it took of the sandbox."""
        parts = [result.stdout.rstrip("\n"), result.value or "", _last_lines(result.stderr)]
        parts.append("(some of the output was too long and is left out)" if result.truncated else "")
        if result.status == "timeout":
            # The server's limit may be lower.
            taken = min(self._code_s, round(result.duration_s) or self._code_s)
            parts.append(f"TimeoutError: the code took longer than {taken:g} s and was stopped")
        elif result.status == "memory":
            limit = f"the {self._memory_mb} MB" if self._memory_mb else "the memory"
            parts.append(f"the code needed more than {limit} that it may use")
        elif result.status == "killed" and not note:
            parts.append(f"the code was stopped: {result.reason or f'exit code {result.exit_code}'}")
        elif result.status == "error" and not result.stderr.strip():
            parts.append(f"the code ended with exit code {result.exit_code}")
        text = "\n".join(part for part in [*parts, note] if part)
        trouble: Trouble = "" if result.ok else "timeout" if result.status == "timeout" else "raised"
        use = SandboxUse(result.duration_s, result.queued_s, result.status in _KILLED)
        return ToolResult(text if text or trouble else silent, trouble, sandbox=use)


def sendable(text: str, what: str, longest: int) -> str:
    """The text, if a request can carry it: a larger one would fail the batch that it shares."""
    if len(text) > longest:
        raise ToolError(f"the {what} is too long: {len(text)} characters, at most {longest} are taken")
    return text


def _servers(
    url: str | None, urls: list[str] | None, host_addr: str | None, host_port: int | None
) -> list[str]:
    named = [*(urls or []), *([url] if url else [])]
    if host_addr or host_port:
        host = host_addr or "localhost"
        base = host if "://" in host else f"http://{host}"
        named.append(f"{base}:{host_port}" if host_port else base)
    if not named:
        raise UserError(
            "a tool that runs code needs a sandbox server: set its url, or host_addr and host_port; "
            "`toolwright sandbox serve` starts one"
        )
    return named


def _last_lines(stderr: str) -> str:
    lines = stderr.rstrip("\n").splitlines()
    kept = lines[-_ERROR_LINES:]
    return "\n".join(["…", *kept] if len(kept) < len(lines) else kept)
