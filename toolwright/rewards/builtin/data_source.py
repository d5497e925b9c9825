"""Scores each task by the scorer of its own data source, for files that mix several."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from toolwright.failures import UserError
from toolwright.rewards.builder import SCORERS, ScorerBuilder, scorer_for
from toolwright.rewards.function import Verdict
from toolwright.rewards.item import Item
from toolwright.rewards.part import RewardPart


@SCORERS.register("data_source")
class BySource(RewardPart):
    """Scores each task by the scorer of its data source, which is built for its first task."""

    reads_truth = True

    def __init__(self, builder: ScorerBuilder) -> None:
        self._builder = builder
        self._lock = threading.Lock()
        self._parts: dict[str, RewardPart] = {}
        builder.unused -= set(SCORERS.names())  # the tasks decide which of them are used

    def check(self, items: Sequence[Item]) -> None:
        for source, positions in _by_source(items).items():
            try:
                part = self._part(source)
            except UserError as error:
                raise UserError(f"task {items[positions[0]]['id']}: {error}") from None
            part.check([items[position] for position in positions])

    async def judge(self, items: Sequence[Item]) -> list[Verdict]:
        verdicts: dict[int, Verdict] = {}
        for source, positions in _by_source(items).items():
            found = await self._part(source).score([items[position] for position in positions])
            verdicts |= zip(positions, found, strict=True)
        return [verdicts[position] for position in range(len(items))]

    def close(self) -> None:
        for part in self._parts.values():
            part.close()

    def _part(self, source: str) -> RewardPart:
        with self._lock:
            name = scorer_for(source)
            if name not in self._parts:
                if name not in SCORERS.names():
                    raise UserError(
                        f"no scorer is known for data_source {source!r}; set reward.function to "
                        f"path.py:name, package.module:name or one of {', '.join(SCORERS.names())}"
                    )
                self._parts[name] = self._builder.part(name)
            return self._parts[name]


def _by_source(items: Sequence[Item]) -> dict[str, list[int]]:
    positions: dict[str, list[int]] = {}
    for position, item in enumerate(items):
        positions.setdefault(item["data_source"], []).append(position)
    return positions
