"""Runners make a candidate's runs: in this process, or in workers of a Ray cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from toolwright.failures import InfrastructureFailure
from toolwright.providers.budget import BudgetSpent
from toolwright.workflow.executors import Executor
from toolwright.workflow.pool import ExperiencePool, Payment
from toolwright.workflow.program import Workflow
from toolwright.workflow.tree import Run

RETRIES, PAUSE_S = 2, 0.5  # of a run that failed for reasons of infrastructure
CHUNK = 8  # runs that a worker gets at once, and makes concurrently


class LocalRunner:
    """Runs workflows in this process. A run that is in the pool is read, not paid for again."""

    def __init__(self, executor: Executor, pool: ExperiencePool | None) -> None:
        self.setting, self.pool = executor.setting, pool
        self.tasks = {task.id: task for task in executor.tasks}
        self._opened = executor.open()
        self._places = asyncio.Semaphore(executor.parallel)
        self._unpaid: list[Payment] = []

    async def run(self, workflow: Workflow, runs: Sequence[Run]) -> dict[Run, Payment]:
        paid = self.pool.paid(self.setting, workflow.fingerprint) if self.pool is not None else {}
        missing = [run for run in runs if run not in paid]
        made = await asyncio.gather(*(self._made(workflow, run) for run in missing))
        self._settle()
        new = {run: payment for run, payment in zip(missing, made, strict=True) if payment is not None}
        return {**{run: paid[run] for run in runs if run in paid}, **new}

    async def _made(self, workflow: Workflow, run: Run) -> Payment | None:
        """Make one run. Infrastructure failures are retried: they say nothing about the workflow. None: the
        cost limit left no money for it."""
        task, repeat = run
        for again in range(RETRIES + 1):
            async with self._places:
                try:
                    found = await self._opened.run(workflow, self.tasks[task], repeat)
                except BudgetSpent:
                    return None
            if found.counts:
                own = (found.score, found.cost, found.calls, found.failure)
                payment = Payment(self.setting, workflow.fingerprint, task, repeat, *own)
                if found.calls or not found.failure:  # one that failed before any answer cost nothing
                    self._pay(payment)
                return payment
            await asyncio.sleep(PAUSE_S * 2**again)
        raise InfrastructureFailure(
            f"task {task} was lost {RETRIES + 1} times: {found.failure}; what was paid for is in the pool: "
            "set run.resume=true to continue"
        )

    def _pay(self, payment: Payment) -> None:
        """Write a run to the pool; runs that end in the same turn of the event loop are written together."""
        self._unpaid.append(payment)
        if len(self._unpaid) == 1:
            asyncio.get_running_loop().call_soon(self._settle)

    def _settle(self) -> None:
        unpaid, self._unpaid = self._unpaid, []
        if self.pool is not None:
            self.pool.pay(unpaid)

    async def close(self) -> None:
        self._settle()
        await self._opened.close()


class RunnerWorker(LocalRunner):
    """A runner in a Ray worker."""

    async def chunk(self, program: dict[str, Any], runs: Sequence[Run]) -> list[Payment]:
        return list((await self.run(Workflow.from_json(program), runs)).values())


class RayRunner:
    """Runs workflows in Ray workers: idle workers take chunks of runs; one that dies is restarted."""

    def __init__(
        self, executor: Executor, pool: ExperiencePool, *, count: int, timeout_s: float = 3600.0
    ) -> None:
        import ray

        self.executor, self.pool = executor, pool  # they hold the handles that keep their actors alive
        self.timeout_s = timeout_s
        made: Any = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(RunnerWorker)
        self.actors: list[Any] = [made.remote(executor, pool) for _ in range(count)]
        self.idle: asyncio.Queue[Any] = asyncio.Queue()
        for actor in self.actors:
            self.idle.put_nowait(actor)

    async def run(self, workflow: Workflow, runs: Sequence[Run]) -> dict[Run, Payment]:
        program = workflow.to_json()
        chunks = [runs[start : start + CHUNK] for start in range(0, len(runs), CHUNK)]
        parts = await asyncio.gather(*(self._chunk(program, chunk) for chunk in chunks))
        return {(one.task, one.repeat): one for part in parts for one in part}

    async def _chunk(self, program: dict[str, Any], runs: Sequence[Run]) -> list[Payment]:
        from ray.exceptions import RayError, RayTaskError

        actor = await self.idle.get()
        try:
            return list(await asyncio.wait_for(actor.chunk.remote(program, list(runs)), self.timeout_s))
        except TimeoutError:
            raise InfrastructureFailure(
                f"a worker did not finish {len(runs)} runs within {self.timeout_s:g} s"
            ) from None
        except RayTaskError as error:
            raise error.cause from None  # without the worker's traceback in its text
        except RayError as error:
            raise InfrastructureFailure(f"a worker was lost: {str(error).splitlines()[0]}") from None
        finally:
            self.idle.put_nowait(actor)

    async def close(self) -> None:
        import ray

        for actor in self.actors:
            ray.kill(actor)
