"""The client for code without an event loop: the same calls, in a thread that runs one."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from toolwright.sandbox.client import Client, ExecutionResult, SandboxSession
from toolwright.web.loop_thread import LoopThread


class BlockingClient:
    """Takes the arguments of `Client`. Threads may share it: their calls travel in the same batches."""

    def __init__(self, urls: str | list[str], **options: Any) -> None:
        self._arguments = (urls, options)
        self._loop = LoopThread("sandbox-client")
        self._lock = threading.Lock()
        self._client: Client | None = None

    def __enter__(self) -> BlockingClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, code: str, **options: Any) -> ExecutionResult:
        return self._loop.run(self._opened().run(code, **options))

    def run_many(self, codes: list[str], **options: Any) -> list[ExecutionResult]:
        """Results in the order of the codes."""
        client = self._opened()

        async def run_all() -> list[ExecutionResult]:
            return await asyncio.gather(*(client.run(code, **options) for code in codes))

        return self._loop.run(run_all())

    def judge(self, code: str, **options: Any) -> dict[str, Any]:
        return self._loop.run(self._opened().judge(code, **options))

    def open_session(self, **options: Any) -> BlockingSession:
        return BlockingSession(self._loop, self._loop.run(self._opened().open_session(**options)))

    def close(self) -> None:
        """Closes the client. Calls of other threads that are under way are cancelled."""
        with self._lock:
            client, self._client = self._client, None
            if client is not None:
                self._loop.run(client.close())
                self._loop.close()

    def _opened(self) -> Client:
        with self._lock:
            if self._client is None:
                urls, options = self._arguments
                self._client = Client(urls, **options)
            return self._client


class BlockingSession:
    """A session of a blocking client."""

    def __init__(self, loop: LoopThread, session: SandboxSession) -> None:
        self._loop = loop
        self._session = session
        self.name = session.name

    def __enter__(self) -> BlockingSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, code: str, **options: Any) -> ExecutionResult:
        return self._loop.run(self._session.run(code, **options))

    def close(self) -> None:
        self._loop.run(self._session.close())
