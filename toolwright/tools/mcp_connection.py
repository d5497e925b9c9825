"""A connection to an MCP server: opened on first use, opened again when the server died, and closed."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import tempfile
import time
from collections.abc import Awaitable, Callable
from typing import IO, TYPE_CHECKING, Any, TypeVar

from toolwright.failures import InfrastructureFailure, UserError
from toolwright.tools.thread import in_thread

if TYPE_CHECKING:
    from mcp import Client

T = TypeVar("T")

_AGAIN_S = 0.5
_CLOSING_S = 8.0


class ServerDied(Exception):
    """The connection ended under a request."""


class McpConnection:
    """Held by a task of its own: the SDK's contexts have to be left in the task that entered them."""

    def __init__(
        self, transport: Callable[[IO[str]], Any], *, server: str, restarts: bool, start_s: float
    ) -> None:
        self.server = server
        self._transport = transport
        self._patient = (
            not restarts
        )  # a process that we start fails for good, a server elsewhere may come back
        self._start_s = start_s
        self._client: Client | None = None
        self._holder: asyncio.Task[None] | None = None
        self._leave = asyncio.Event()
        self._opening = asyncio.Lock()
        self._said: IO[str] | None = None

    async def ask(self, request: Callable[[Client], Awaitable[T]]) -> T:
        """The answer; a server found dead is opened again, and the request sent once more."""
        try:
            return await self._ask(request)
        except ServerDied:
            pass
        try:
            return await self._ask(request)
        except ServerDied:
            raise InfrastructureFailure(
                f"the MCP server {self.server} died twice under the same request{self._last_words()}"
            ) from None

    async def close(self) -> None:
        if self._holder is not None:
            self._leave.set()
            await asyncio.wait({self._holder}, timeout=_CLOSING_S)
            self._holder.cancel()
        self._holder, self._client = None, None
        if self._said is not None:
            self._said.close()
            self._said = None

    async def _ask(self, request: Callable[[Client], Awaitable[T]]) -> T:
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED

        client, holder = await self._open()
        asked = asyncio.ensure_future(request(client))
        try:
            # The SDK does not always tell those who wait that the connection is gone.
            await asyncio.wait({asked, holder}, return_when=asyncio.FIRST_COMPLETED)
            if not asked.done():
                raise ServerDied
            return asked.result()
        except MCPError as error:
            if error.code != CONNECTION_CLOSED:
                raise
            await self._forget(holder)
            raise ServerDied from None
        finally:
            asked.cancel()

    async def _open(self) -> tuple[Client, asyncio.Task[None]]:
        async with self._opening:
            if self._holder is None or self._holder.done() or self._client is None:
                await self._connect()
            assert self._client is not None
            assert self._holder is not None
            return self._client, self._holder

    async def _connect(self) -> None:
        # The SDK takes seconds to import, which are not the server's.
        await in_thread("mcp", lambda: importlib.import_module("mcp"))
        until = time.monotonic() + self._start_s
        reason = "did not answer"
        while True:
            self._leave = asyncio.Event()
            ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
            ready.add_done_callback(lambda opened: opened.exception())  # seen, even if nobody waits
            self._holder = asyncio.create_task(self._hold(ready, self._leave), name=f"mcp {self.server}")
            await asyncio.wait({ready}, timeout=max(0.1, until - time.monotonic()))
            if ready.done() and ready.exception() is None:
                self._client = ready.result()
                return
            self._holder.cancel()
            if ready.done():
                reason = f"cannot be reached: {_root(ready.exception())}"
            if not self._patient or time.monotonic() + _AGAIN_S > until:
                raise InfrastructureFailure(
                    f"the MCP server {self.server} {reason} (within {self._start_s:g} s){self._last_words()}"
                )
            await asyncio.sleep(_AGAIN_S)

    async def _hold(self, ready: asyncio.Future[Client], leave: asyncio.Event) -> None:
        from mcp import Client

        if self._said is None:
            # Closed by `close`: what the process writes is wanted when it is gone.
            self._said = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        try:
            async with Client(self._transport(self._said)) as client:
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

    def _last_words(self) -> str:
        """The end of what a process that we started wrote on its standard error."""
        if self._said is None:
            return ""
        with contextlib.suppress(OSError, ValueError):
            self._said.seek(0)
            lines = self._said.read()[-500:].strip().splitlines()[-3:]
            return "; it said: " + " / ".join(lines) if lines else ""
        return ""


def stdio(command: str, args: list[str], env: dict[str, str], cwd: str | None) -> Callable[[IO[str]], Any]:
    """A process of ours, talked to over its standard input and output."""
    import shutil

    if shutil.which(command) is None:
        raise UserError(f"the command {command!r} of an MCP server is not installed, or not in PATH")

    def transport(said: IO[str]) -> Any:
        from mcp import StdioServerParameters, stdio_client

        given = StdioServerParameters(command=command, args=args, env=env or None, cwd=cwd)
        return stdio_client(given, errlog=said)  # type: ignore[arg-type]

    return transport


def http(url: str, headers: dict[str, str]) -> Callable[[IO[str]], Any]:
    """A server elsewhere, over streamable HTTP."""

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
