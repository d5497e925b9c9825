"""One scorer at work. Where it runs follows from what it is: here, in processes, or over the network."""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from toolwright.failures import InfrastructureFailure, TaskFailure, UserError
from toolwright.rewards.background import Background
from toolwright.rewards.function import ScoringFunction, Verdict, failed, understood
from toolwright.rewards.item import Item
from toolwright.rewards.pool import ProcessPool

if TYPE_CHECKING:
    from toolwright.rewards.builder import ScorerBuilder


class RewardPart(ABC):
    reads_truth: bool  # whether its score speaks about right and wrong, as `acc` does

    @abstractmethod
    def check(self, items: Sequence[Item]) -> None:
        """A UserError for the first ground truth that cannot be used."""

    @abstractmethod
    async def judge(self, items: Sequence[Item]) -> list[Verdict]:
        """One verdict an item, in order."""

    @abstractmethod
    def close(self) -> None:
        """Ends what it started."""

    @classmethod
    def of(cls, builder: ScorerBuilder) -> RewardPart:
        """For a part that is registered itself, and not made for a scorer that is."""
        raise NotImplementedError


class RemoteScorer(Protocol):
    """A scorer that waits for a server. Built once; lives on one event loop, where all its calls run."""

    def check(self, item: Item) -> None:
        """A TaskFailure if the ground truth cannot be used."""

    async def open(self) -> None:
        """Finds its server, or starts one; called before anything is scored, and may be called again."""

    async def judge(self, item: Item) -> Any:
        """A number, or a dict with `score`; what it raises is a failure of its kind."""

    async def close(self) -> None: ...


class Here(RewardPart):
    """Pure and quick: called right here."""

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
    """What may hang, or is not ours: called where it can be killed."""

    def __init__(self, pool: ProcessPool, *, users_own: bool) -> None:
        self._pool = pool
        self._users_own = users_own
        self.reads_truth = pool.form.reads_truth

    def check(self, items: Sequence[Item]) -> None:
        if self._users_own:
            return  # only its author knows what it takes
        different: dict[str, Item] = {}
        for item in items:
            truth = json.dumps(item["ground_truth"], sort_keys=True) if self.reads_truth else ""
            different.setdefault(truth, item)
        tried = list(different.values())
        for item, verdict in zip(tried, self._pool.judge_now(tried), strict=True):
            if verdict.score is None:
                raise UserError(f"task {item['id']}: {verdict.message}")

    async def judge(self, items: Sequence[Item]) -> list[Verdict]:
        return await self._pool.judge(items)

    def close(self) -> None:
        self._pool.close()


class OverNetwork(RewardPart):
    """What waits for a server: every item at once, on an event loop that outlives the caller's."""

    reads_truth = True

    def __init__(self, name: str, scorer: RemoteScorer) -> None:
        self._name, self._scorer = name, scorer
        self._background = Background()
        self._closed = False

    def check(self, items: Sequence[Item]) -> None:
        for item in items:
            try:
                self._scorer.check(item)
            except TaskFailure as error:
                raise UserError(f"task {item['id']}: {error}") from None
        try:
            self._background.submit(self._scorer.open()).result()
        except InfrastructureFailure as error:
            raise UserError(f"scorer {self._name!r} cannot work: {error}") from None

    async def judge(self, items: Sequence[Item]) -> list[Verdict]:
        if self._closed:
            return [self._gone] * len(items)
        work = self._background.submit(self._judge_all(items))
        try:
            return await asyncio.wrap_future(work)
        except asyncio.CancelledError:
            if not self._closed:
                raise
            return [self._gone] * len(items)  # it was closed meanwhile; the caller himself goes on

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._background.cancel_all()
            self._background.submit(self._scorer.close()).result()
            self._background.close()

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
        return understood(self._name, answer)

    @property
    def _gone(self) -> Verdict:
        return Verdict(
            kind="infrastructure", message=f"{self._name} was asked for a score after it was closed"
        )
