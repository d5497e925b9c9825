"""Several processes of one scoring function: scoring is parallel, and a hang holds up only itself."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from toolwright.rewards.function import Verdict
from toolwright.rewards.item import Item
from toolwright.rewards.process import FunctionProcess


class ProcessPool:
    """Starts the first process at once, so that a mistake shows; the others when there is work."""

    def __init__(self, new_process: Callable[[], FunctionProcess], *, workers: int) -> None:
        self._processes = [new_process() for _ in range(workers)]
        self.name = self._processes[0].reference
        self.form = self._processes[0].start()
        self._idle = self._processes[::-1]  # taken from the end: first those that run already
        self._lock = threading.Lock()
        self._closed = False
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="reward")

    async def judge(self, items: Sequence[Item]) -> list[Verdict]:
        """Verdicts in order. Each item is a call of its own, unless the function takes whole batches."""
        calls = [asyncio.wrap_future(call) for call in self._calls(items)]
        return [verdict for verdicts in await asyncio.gather(*calls) for verdict in verdicts]

    def judge_now(self, items: Sequence[Item]) -> list[Verdict]:
        return [verdict for call in self._calls(items) for verdict in call.result()]

    def close(self) -> None:
        """Ends all processes. Waiting calls get a verdict that says so."""
        with self._lock:
            self._closed = True
        for process in self._processes:
            process.close()
        self._threads.shutdown()

    def _calls(self, items: Sequence[Item]) -> list[Future[list[Verdict]]]:
        calls = [list(items)] if self.form.whole_batch else [[item] for item in items]
        with self._lock:
            if not self._closed:
                return [self._threads.submit(self._call, call) for call in calls]
        return [_answered(self._processes[0].judge(call)) for call in calls]

    def _call(self, items: list[Item]) -> list[Verdict]:
        with self._lock:
            process = self._idle.pop()  # there are as many threads as processes
        try:
            return process.judge(items)
        finally:
            with self._lock:
                self._idle.append(process)


def _answered(verdicts: list[Verdict]) -> Future[list[Verdict]]:
    future: Future[list[Verdict]] = Future()
    future.set_result(verdicts)
    return future
