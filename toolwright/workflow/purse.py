"""What a search may spend in money: asked before every call, by every process that makes calls for it."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from toolwright.providers.budget import Amount, Spending, SpendingBudget


@dataclass(frozen=True)
class Purse:
    """Data alone, opened in the process that spends. `file` remembers what was spent, so that a search that
    goes on has what is left; `actor` keeps it for a cluster, where a file is out of reach."""

    dollars: float
    file: str
    actor: Any = None

    def open(self) -> Spending:
        if self.actor is not None:
            return _Asked(self.actor)
        return SpendingBudget(dollars=self.dollars, file=Path(self.file))

    def serve(self) -> Purse:
        """The same for all workers of a Ray cluster: an actor on this node keeps the books."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        made: Any = ray.remote(Keeper)
        keeper = made.options(num_cpus=0, max_restarts=-1, scheduling_strategy=here)
        return replace(self, actor=keeper.remote(self.dollars, self.file))


class Keeper:
    """Holds what workers have under way. A worker that died comes back under its name, and what its calls
    might have cost counts as spent: nobody knows how far they had come."""

    def __init__(self, dollars: float, file: str) -> None:
        self.budget = SpendingBudget(dollars=dollars, file=Path(file))
        self._life: dict[str, int] = {}
        self._held: dict[str, dict[int, Amount]] = {}

    async def join(self, worker: str, life: int) -> None:
        if self._life.get(worker) == life:
            return  # what it holds is under way
        self._life[worker] = life
        for number, most in self._held.pop(worker, {}).items():
            self.budget.settle(number, most)

    async def reserve(self, worker: str, life: int, most: Amount) -> int:
        number = await self.budget.reserve(most)
        if self._life.setdefault(worker, life) != life:  # it died while it waited
            self.budget.settle(number, Amount())
        else:
            self._held.setdefault(worker, {})[number] = most
        return number

    async def settle(self, worker: str, number: int, used: Amount) -> None:
        if self._held.get(worker, {}).pop(number, None) is not None:
            self.budget.settle(number, used)


class _Asked:
    """The keeper, as a worker sees it."""

    def __init__(self, keeper: Any) -> None:
        import ray

        self.keeper = keeper
        self.me, self.life = ray.get_runtime_context().get_actor_id() or "driver", os.getpid()
        self.joined = self.keeper.join.remote(self.me, self.life)

    async def reserve(self, most: Amount) -> int:
        await self.joined  # calls of an actor that answers many at once may overtake each other
        return int(await self.keeper.reserve.remote(self.me, self.life, most))

    def settle(self, number: int, used: Amount) -> None:
        self.keeper.settle.remote(self.me, number, used)
