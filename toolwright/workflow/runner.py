"""Who makes the runs: this process, or workers in a Ray cluster. Every run is in the pool before it is told of."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from toolwright.failures import InfrastructureFailure
from toolwright.trajectory import Task
from toolwright.workflow.evaluate import Evaluator
from toolwright.workflow.pool import ExperiencePool, Payment
from toolwright.workflow.program import Workflow
from toolwright.workflow.tree import Run


class Site(Protocol):
    """Where runs are made: data alone, opened in the process that makes them."""

    setting: str  # what a score depends on, in words

    def tasks(self) -> Sequence[Task]: ...

    def open(self) -> Callable[[int], Evaluator]:
        """The evaluator of each repeat; the same run made again in another repeat is another draw."""
        ...


RETRIES = 2
CHUNK = 8  # runs that a worker is given at once, and makes side by side


class Bench:
    """Runs workflows in this process. What is in the pool is not paid for again."""

    def __init__(self, site: Site, pool: ExperiencePool | None) -> None:
        self.setting, self.pool = site.setting, pool
        self.tasks = {task.id: task for task in site.tasks()}
        self._evaluator = site.open()
        self._opened: dict[int, Evaluator] = {}

    async def run(self, workflow: Workflow, runs: Sequence[Run]) -> dict[Run, Payment]:
        paid = self.pool.paid(self.setting, workflow.meaning) if self.pool is not None else {}
        missing = [run for run in runs if run not in paid]
        for repeat in sorted({repeat for _, repeat in missing}):
            asked = [self.tasks[task] for task, again in missing if again == repeat]
            for one in await self._evaluated(workflow, asked, repeat):
                paid[one.task, one.repeat] = one
        return {run: paid[run] for run in runs}

    async def _evaluated(self, workflow: Workflow, tasks: Sequence[Task], repeat: int) -> list[Payment]:
        """What the machines are to blame for is tried again, and says nothing about the workflow."""
        if repeat not in self._opened:
            self._opened[repeat] = self._evaluator(repeat)
        done: list[Payment] = []
        for again in range(RETRIES + 1):
            outcomes = await self._opened[repeat].evaluate(workflow, tasks)
            fresh = [
                Payment(
                    self.setting, workflow.meaning, o.task_id, repeat, o.score, o.cost, o.calls, o.failure
                )
                for o in outcomes
                if o.counts
            ]
            if self.pool is not None:
                self.pool.pay(fresh)
            done += fresh
            lost = {o.task_id: o.failure for o in outcomes if not o.counts}
            tasks = [task for task in tasks if task.id in lost]
            if not tasks:
                return done
            await asyncio.sleep(0.5 * 2**again)
        raise InfrastructureFailure(
            f"{len(tasks)} runs were lost {RETRIES + 1} times: {next(iter(lost.values()))}; what was paid for "
            "is in the pool: set run.resume=true to go on"
        )

    async def close(self) -> None:
        for evaluator in self._opened.values():
            await evaluator.close()


class Worker(Bench):
    """A bench in a process of its own."""

    async def chunk(self, program: dict[str, Any], runs: Sequence[Run]) -> list[Payment]:
        return list((await self.run(Workflow.from_json(program), runs)).values())


class Workers:
    """A bench over Ray: chunks of runs go to whoever is idle, a worker that dies is made again."""

    def __init__(
        self, site: Site, pool: ExperiencePool, *, count: int, timeout_s: float = 3600.0
    ) -> None:
        import ray

        self.timeout_s = timeout_s
        made = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(Worker)
        self.actors = [made.remote(site, pool) for _ in range(count)]
        self.idle: asyncio.Queue[Any] | None = None

    async def run(self, workflow: Workflow, runs: Sequence[Run]) -> dict[Run, Payment]:
        if self.idle is None:
            self.idle = asyncio.Queue()
            for actor in self.actors:
                self.idle.put_nowait(actor)
        program = workflow.to_json()
        chunks = [runs[start : start + CHUNK] for start in range(0, len(runs), CHUNK)]
        parts = await asyncio.gather(*(self._chunk(program, chunk) for chunk in chunks))
        return {(one.task, one.repeat): one for part in parts for one in part}

    async def _chunk(self, program: dict[str, Any], runs: Sequence[Run]) -> list[Payment]:
        assert self.idle is not None
        actor = await self.idle.get()
        try:
            return list(await asyncio.wait_for(actor.chunk.remote(program, list(runs)), self.timeout_s))
        except TimeoutError:
            raise InfrastructureFailure(
                f"a worker did not finish {len(runs)} runs within {self.timeout_s:g} s"
            ) from None
        finally:
            self.idle.put_nowait(actor)

    async def close(self) -> None:
        import ray

        for actor in self.actors:
            ray.kill(actor)
