"""One scorer of a reward: in this process, in processes of its own, or over the network."""

from __future__ import annotations

import asyncio
import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

from toolwright.failures import InfrastructureFailure, TaskFailure, UserError
from toolwright.rewards.function import ScoringFunction, Verdict, failed, verdict_of
from toolwright.rewards.item import Item, final_turn
from toolwright.rewards.process import FunctionProcess
from toolwright.tasks.worker_thread import WorkerThread
from toolwright.web.loop_thread import LoopThread


class RewardPart(ABC):
    reads_truth: bool  # whether its score says right or wrong, as `acc` does
    columns: Sequence[str] = ()  # that its function takes and every task must have in its extra_info
    last_turn_only = False  # what a tool printed is not the policy's answer
    only_if_right = False  # earns nothing where the other parts of a sum say that the answer is wrong

    async def score(self, items: Sequence[Item]) -> list[Verdict]:
        """Verdicts in the order of the items, each with the turns that this part may see."""
        return await self.judge([final_turn(item) for item in items] if self.last_turn_only else items)

    @abstractmethod
    def check(self, items: Sequence[Item]) -> None:
        """Raises UserError for the first ground truth that cannot be used."""

    @abstractmethod
    async def judge(self, items: Sequence[Item]) -> list[Verdict]:
        """Verdicts in the order of the items."""

    @abstractmethod
    def close(self) -> None:
        """Ends the processes and threads of the part."""


class RemoteScorer(Protocol):
    """A scorer that waits for a server. All its calls run on one event loop."""

    def check(self, item: Item) -> None:
        """Raises TaskFailure if the ground truth cannot be used."""

    async def open(self) -> None:
        """Finds or starts its server. Called before the first score, and perhaps again."""

    async def judge(self, item: Item) -> Any:
        """A number, or a dict with `score`. Raises a failure of the kind that fits."""

    async def close(self) -> None: ...


class DirectCall(RewardPart):
    """A pure and quick function, called in this process."""

    def __init__(self, function: ScoringFunction) -> None:
        self._function = function
        self.reads_truth = function.reads_truth

    def check(self, items: Sequence[Item]) -> None:
        for item in items:
            try:
                self._function.dry_run(item)
            except (UserError, TaskFailure) as error:
                raise UserError(f"task {item['id']}: {error}") from None

    async def judge(self, items: Sequence[Item]) -> list[Verdict]:
        return self._function.judge(items)

    def close(self) -> None:
        """Nothing was started."""


class InProcesses(RewardPart):
    """A function that may hang, or is a user's: called in processes that can be killed, one a worker."""

    def __init__(
        self, new_process: Callable[[], FunctionProcess], *, workers: int, tries_truths: bool
    ) -> None:
        """Starts the first process at once, so that a mistake shows; the others when there is work.

        `tries_truths`: it is asked about every ground truth before the first attempt. Of a user's function
        only its author knows what it takes, and a model takes any."""
        self._processes, self._tries_truths = [new_process() for _ in range(workers)], tries_truths
        self._form = self._processes[0].start()
        self.reads_truth, self.columns = self._form.reads_truth, self._form.columns
        self._idle = self._processes[::-1]  # taken from the end: first those that run already
        self._lock, self._closed = threading.Lock(), False
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="reward")

    def check(self, items: Sequence[Item]) -> None:
        if not self._tries_truths:
            return
        different: dict[str, Item] = {}
        for item in items:
            truth = json.dumps(item["ground_truth"], sort_keys=True) if self.reads_truth else ""
            different.setdefault(truth, item)
        tried = list(different.values())
        verdicts = [verdict for call in self._calls(tried) for verdict in call.result()]
        for item, verdict in zip(tried, verdicts, strict=True):
            if verdict.score is None:
                raise UserError(f"task {item['id']}: {verdict.message}")

    async def judge(self, items: Sequence[Item]) -> list[Verdict]:
        """Verdicts in order. Each item is a call of its own, unless the function takes whole batches."""
        calls = [asyncio.wrap_future(call) for call in self._calls(items)]
        return [verdict for verdicts in await asyncio.gather(*calls) for verdict in verdicts]

    def close(self) -> None:
        """Ends all processes. Waiting calls get a verdict that says so."""
        with self._lock:
            self._closed = True
        for process in self._processes:
            process.close()
        self._threads.shutdown()

    def _calls(self, items: Sequence[Item]) -> list[Future[list[Verdict]]]:
        calls = [list(items)] if self._form.whole_batch else [[item] for item in items]
        with self._lock:
            if not self._closed:
                return [self._threads.submit(self._call, call) for call in calls]
        answered = [Future[list[Verdict]]() for _ in calls]
        for future, call in zip(answered, calls, strict=True):
            future.set_result(self._processes[0].judge(call))
        return answered

    def _call(self, items: list[Item]) -> list[Verdict]:
        with self._lock:
            process = self._idle.pop()  # there are as many threads as processes
        try:
            return process.judge(items)
        finally:
            with self._lock:
                self._idle.append(process)


class OverNetwork(RewardPart):
    """A scorer that waits for a server: all items at once, on an event loop that outlives the caller's."""

    reads_truth = True

    def __init__(self, name: str, scorer: RemoteScorer) -> None:
        self._name, self._scorer = name, scorer
        self._loop = LoopThread("rewards")
        self._closed = False

    def check(self, items: Sequence[Item]) -> None:
        for item in items:
            try:
                self._scorer.check(item)
            except TaskFailure as error:
                raise UserError(f"task {item['id']}: {error}") from None
        try:
            self._loop.run(self._scorer.open())
        except InfrastructureFailure as error:
            raise UserError(f"scorer {self._name!r} cannot work: {error}") from None

    async def judge(self, items: Sequence[Item]) -> list[Verdict]:
        if self._closed:
            return [self._closed_verdict] * len(items)
        work = self._loop.submit(self._judge_all(items))
        try:
            return await asyncio.wrap_future(work)
        except asyncio.CancelledError:
            if not self._closed:
                raise
            return [self._closed_verdict] * len(items)  # the scorer was closed meanwhile; the caller goes on

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._loop.cancel_all()
            self._loop.run(self._scorer.close())
            self._loop.close()

    async def _judge_all(self, items: Sequence[Item]) -> list[Verdict]:
        return await asyncio.gather(*(self._judge(item) for item in items))

    async def _judge(self, item: Item) -> Verdict:
        try:
            answer = await self._scorer.judge(item)
        except UserError:
            raise
        except InfrastructureFailure as error:
            return Verdict(kind="infrastructure", message=f"{self._name}: {error}")
        except Exception as error:
            return failed(self._name, error)
        return verdict_of(self._name, answer)

    @property
    def _closed_verdict(self) -> Verdict:
        return Verdict(kind="infrastructure", message=f"{self._name} was called after it was closed")


class InThisProcess(RewardPart):
    """Scores call by call, each in a thread that is given up when it takes too long.

    No other process can import the function, so one that hangs cannot be killed; its thread is left behind.
    """

    def __init__(self, function: ScoringFunction, *, limit_s: float) -> None:
        self._function, self._limit_s = function, limit_s
        self.reads_truth, self.columns = function.reads_truth, function.columns
        self._thread = WorkerThread(f"reward {function.name}")

    def check(self, items: Sequence[Item]) -> None:
        """Accepts everything: only the author knows which ground truths the function takes."""

    async def judge(self, items: Sequence[Item]) -> list[Verdict]:
        calls = [list(items)] if self._function.whole_batch else [[item] for item in items]
        return [verdict for call in calls for verdict in await self._thread.run(self._limited, call)]

    def close(self) -> None:
        self._thread.end()

    def _limited(self, items: list[Item]) -> list[Verdict]:
        name, verdicts = self._function.name, list[Verdict]()

        def score() -> None:
            try:
                verdicts.extend(self._function.judge(items))
            except UserError as error:
                verdicts.extend([Verdict(message=str(error))] * len(items))

        thread = threading.Thread(target=score, name=f"reward {name}", daemon=True)
        thread.start()
        thread.join(self._limit_s)
        late = Verdict(message=f"{name} did not return within reward.timeout_s={self._limit_s:g} s")
        return verdicts or [late] * len(items)
