"""A connection to an MCP server, opened on first use and again if the server died."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import tempfile
import time
from collections.abc import Awaitable, Callable
from typing import IO, TYPE_CHECKING, Any, TypeVar

from toolwright.failures import InfrastructureFailure, UserError
from toolwright.tasks.worker_thread import in_thread

if TYPE_CHECKING:
    from mcp import Client

T = TypeVar("T")

_AGAIN_S = 0.5
_CLOSING_S = 8.0


class ServerDied(Exception):
    """The connection ended during a request."""


class McpConnection:
    """Held by a task of its own: the SDK's contexts must be left in the task that entered them."""

    def __init__(
        self, transport: Callable[[IO[str]], Any], *, server: str, restarts: bool, start_s: float
    ) -> None:
        self.server = server
        self._transport = transport
        # A process that we start fails for good; a server elsewhere may come back.
        self._retries = not restarts
        self._start_s = start_s
        self._client: Client | None = None
        self._holder: asyncio.Task[None] | None = None
        self._leave = asyncio.Event()
        self._opening = asyncio.Lock()
        self._stderr: IO[str] | None = None

    async def ask(self, request: Callable[[Client], Awaitable[T]]) -> T:
        """The answer. If the server has died, it is opened again and the request is sent once more."""
        try:
            return await self._ask(request)
        except ServerDied:
            pass
        try:
            return await self._ask(request)
        except ServerDied:
            raise InfrastructureFailure(
                f"the MCP server {self.server} died twice during the same request{self._stderr_tail()}"
            ) from None

    async def close(self) -> None:
        if self._holder is not None:
            self._leave.set()
            await asyncio.wait({self._holder}, timeout=_CLOSING_S)
            self._holder.cancel()
        self._holder, self._client = None, None
        if self._stderr is not None:
            self._stderr.close()
            self._stderr = None

    async def _ask(self, request: Callable[[Client], Awaitable[T]]) -> T:
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED

        client, holder = await self._open()
        asking = asyncio.ensure_future(request(client))
        try:
            # The SDK does not always end requests when the connection is gone.
            await asyncio.wait({asking, holder}, return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                raise ServerDied
            return asking.result()
        except MCPError as error:
            if error.code != CONNECTION_CLOSED:
                raise
            await self._forget(holder)
            raise ServerDied from None
        finally:
            asking.cancel()

    async def _open(self) -> tuple[Client, asyncio.Task[None]]:
        async with self._opening:
            if self._holder is None or self._holder.done() or self._client is None:
                await self._connect()
            assert self._client is not None
            assert self._holder is not None
            return self._client, self._holder

    async def _connect(self) -> None:
        # The SDK takes seconds to import, which do not count for the server.
        await in_thread("mcp", lambda: importlib.import_module("mcp"))
        until = time.monotonic() + self._start_s
        reason = "did not answer"
        while True:
            self._leave = asyncio.Event()
            ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
            ready.add_done_callback(lambda opened: opened.exception())  # retrieved, even if nobody waits
            self._holder = asyncio.create_task(self._hold(ready, self._leave), name=f"mcp {self.server}")
            await asyncio.wait({ready}, timeout=max(0.1, until - time.monotonic()))
            if ready.done() and ready.exception() is None:
                self._client = ready.result()
                return
            self._holder.cancel()
            if ready.done():
                reason = f"cannot be reached: {_root(ready.exception())}"
            if not self._retries or time.monotonic() + _AGAIN_S > until:
                raise InfrastructureFailure(
                    f"the MCP server {self.server} {reason} (within {self._start_s:g} s){self._stderr_tail()}"
                )
            await asyncio.sleep(_AGAIN_S)

    async def _hold(self, ready: asyncio.Future[Client], leave: asyncio.Event) -> None:
        from mcp import Client

        if self._stderr is None:
            # Closed by `close`: the output of the process is needed after its end.
            self._stderr = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        try:
            async with Client(self._transport(self._stderr)) as client:
                ready.set_result(client)
                await leave.wait()
        except Exception as error:
            if not ready.done():
                ready.set_exception(error)
        except asyncio.CancelledError:
            if not ready.done():
                ready.set_exception(ConnectionError("given up"))
            raise

    async def _forget(self, holder: asyncio.Task[None]) -> None:
        if holder is self._holder:
            self._leave.set()
            self._client = None
            await asyncio.wait({holder}, timeout=_CLOSING_S)

    def _stderr_tail(self) -> str:
        """The last lines of standard error of a process that we started."""
        if self._stderr is None:
            return ""
        with contextlib.suppress(OSError, ValueError):
            self._stderr.seek(0)
            lines = self._stderr.read()[-500:].strip().splitlines()[-3:]
            return "; it said: " + " / ".join(lines) if lines else ""
        return ""


def stdio(command: str, args: list[str], env: dict[str, str], cwd: str | None) -> Callable[[IO[str]], Any]:
    """Starts a process and talks to it over standard input and output."""
    import shutil

    if shutil.which(command) is None:
        raise UserError(f"the command {command!r} of an MCP server is not installed, or not in PATH")

    def transport(stderr: IO[str]) -> Any:
        from mcp import StdioServerParameters, stdio_client

        parameters = StdioServerParameters(command=command, args=args, env=env or None, cwd=cwd)
        return stdio_client(parameters, errlog=stderr)  # type: ignore[arg-type]

    return transport


def http(url: str, headers: dict[str, str]) -> Callable[[IO[str]], Any]:
    """Connects to a running server over streamable HTTP."""

    def transport(_: IO[str]) -> Any:
        from mcp.client.streamable_http import streamable_http_client
        from mcp.shared._httpx_utils import create_mcp_http_client

        return streamable_http_client(url, http_client=create_mcp_http_client(headers=headers or None))

    return transport


def _root(error: BaseException | None) -> str:
    """The exception inside the groups that task groups wrap it in."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}" if error else "no reason given"
