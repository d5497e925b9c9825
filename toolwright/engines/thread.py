"""An engine in a thread of its own, so that its callers' event loops go on while it computes."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from toolwright.engines import Completion, Engine, Sampling, TokenCallback
from toolwright.web.loop_thread import LoopThread


class InThread:
    """An engine that any event loop of any thread may call. The engine itself sees one loop, its own."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.exact, self.context = engine.exact, engine.context
        self._streams = "on_token" in inspect.signature(engine.generate).parameters
        self._thread = LoopThread("engine")
        self._closed = False

    @property
    def weights_version(self) -> int:
        return self.engine.weights_version

    async def generate(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        *,
        attempt: str,
        on_token: TokenCallback | None = None,
    ) -> Completion:
        """Cancelling this cancels the engine's work. Without a stream, `on_token` runs at the end."""
        own = asyncio.get_running_loop()
        extra: dict[str, Any] = {}
        if on_token is not None and self._streams:
            extra["on_token"] = lambda token: own.call_soon_threadsafe(on_token, token)
        work = self.engine.generate(prompt, sampling, attempt=attempt, **extra)
        answer = await asyncio.wrap_future(self._thread.submit(work))
        if on_token is not None and not self._streams:
            for token in answer.sampled:
                on_token(token)
        return answer

    def release(self, attempt: str) -> None:
        self._soon(self.engine.release, attempt)

    def publish(self, version: int) -> None:
        self._soon(self.engine.publish, version)

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            try:
                await asyncio.wrap_future(self._thread.submit(self.engine.close()))
            finally:
                await asyncio.to_thread(self._thread.close)

    def _soon(self, work: Callable[..., None], *arguments: Any) -> None:
        if not self._closed:
            self._thread.call_soon(work, *arguments)
