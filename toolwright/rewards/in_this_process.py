"""A scoring function of the user's own script or notebook: called in this process, where it exists."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from toolwright.failures import UserError
from toolwright.rewards.function import ScoringFunction, Verdict
from toolwright.rewards.item import Item
from toolwright.rewards.part import RewardPart
from toolwright.tasks.worker_thread import WorkerThread


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
