"""Generated code in the sandbox, for operators that run some."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from toolwright.workflow.run import CodeRun

if TYPE_CHECKING:
    from toolwright.sandbox.client import Client, ExecutionResult

_LINES = 12  # of an error that the model is told
_LONGEST = 1 << 18  # characters of code; more is nobody's solution
_OUTPUT = 10_000


class CodeSandbox:
    """A client of the server at `url`; without one, of a server that starts with the first run."""

    def __init__(self, url: str | None = None, *, timeout_s: float = 10.0, memory_mb: int = 512) -> None:
        self._url, self._wishes = url, {"timeout_s": timeout_s, "memory_mb": memory_mb}
        self._client: Client | None = None
        self._own = contextlib.ExitStack()

    async def run(self, code: str) -> CodeRun:
        if len(code) > _LONGEST:
            return CodeRun(False, trouble=f"the code is longer than {_LONGEST} characters")
        if self._client is None:
            from toolwright.sandbox.client import Client  # here: it brings aiohttp, half a second
            from toolwright.sandbox.local import local_server

            if self._url is None:
                self._url = self._own.enter_context(local_server())
            self._client = Client(self._url)
        sendable = code.encode("utf-8", "replace").decode()
        return understood(await self._client.run(sendable, **self._wishes))

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()
            self._client = None
        self._own.close()


def understood(result: ExecutionResult) -> CodeRun:
    if result.ok:
        return CodeRun(True, result.stdout[:_OUTPUT])
    lines = result.stderr.strip().splitlines()[-_LINES:]
    return CodeRun(False, result.stdout[:_OUTPUT], "\n".join(lines) or f"{result.status}: {result.reason}")
