"""An engine in a thread of its own, so that its callers' event loops go on while it computes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from toolwright.engines import Completion, Engine, Sampling, TokenCallback, generate_streamed
from toolwright.web.loop_thread import LoopThread


class InThread:
    """An engine that any event loop of any thread may call. The engine itself sees one loop, its own."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.exact, self.context, self.takes_weights = engine.exact, engine.context, engine.takes_weights
        self.takes_schemas = getattr(engine, "takes_schemas", False)
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
        """Cancelling this cancels the engine's work."""
        own = asyncio.get_running_loop()
        tell: Any = None if on_token is None else partial(own.call_soon_threadsafe, on_token)  # type: ignore[arg-type]
        work = generate_streamed(self.engine, prompt, sampling, attempt=attempt, on_token=tell)
        return await asyncio.wrap_future(self._thread.submit(work))

    def release(self, attempt: str) -> None:
        self._soon(self.engine.release, attempt)

    def rest(self) -> None:
        self._soon(self.engine.rest)

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
