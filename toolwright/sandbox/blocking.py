"""The client for code without an event loop: the same calls, one thread that runs them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from toolwright.sandbox.client import Client, ExecutionResult, SandboxSession

T = TypeVar("T")


class BlockingClient:
    """Takes the arguments of `Client`. Threads may share it: their calls travel in the same batches."""

    def __init__(self, urls: str | list[str], **options: Any) -> None:
        self._urls = urls
        self._options = options
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._client: Client | None = None

    def __enter__(self) -> BlockingClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, code: str, **wishes: Any) -> ExecutionResult:
        return self._wait(self._started().run(code, **wishes))

    def run_many(self, codes: list[str], **wishes: Any) -> list[ExecutionResult]:
        """Results in the order of the codes."""
        client = self._started()

        async def all_of_them() -> list[ExecutionResult]:
            return await asyncio.gather(*(client.run(code, **wishes) for code in codes))

        return self._wait(all_of_them())

    def judge(self, code: str, **wishes: Any) -> dict[str, Any]:
        return self._wait(self._started().judge(code, **wishes))

    def open_session(self, **wishes: Any) -> BlockingSession:
        return BlockingSession(self, self._wait(self._started().open_session(**wishes)))

    def close(self) -> None:
        with self._lock:
            if self._loop is None or self._client is None or self._thread is None:
                return
            self._wait(self._client.close())
            self._wait(_cancel_the_others())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            self._loop = self._client = self._thread = None

    def _started(self) -> Client:
        with self._lock:
            if self._client is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._loop.run_forever, name="sandbox-client", daemon=True
                )
                self._thread.start()
                self._client = Client(self._urls, **self._options)
            return self._client

    def _wait(self, call: Coroutine[Any, Any, T]) -> T:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()


async def _cancel_the_others() -> None:
    """Calls of other threads that are under way: they are told, and do not wait for a loop that is gone."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


class BlockingSession:
    """A session of a blocking client."""

    def __init__(self, client: BlockingClient, session: SandboxSession) -> None:
        self._client = client
        self._session = session
        self.name = session.name

    def __enter__(self) -> BlockingSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, code: str, **wishes: Any) -> ExecutionResult:
        return self._client._wait(self._session.run(code, **wishes))

    def close(self) -> None:
        self._client._wait(self._session.close())
