"""The sandbox without HTTP, as the server and single runs use it."""

from __future__ import annotations

import asyncio
import hashlib
import time
from base64 import b64encode
from collections import Counter, OrderedDict
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

import orjson
from pydantic import ValidationError

from toolwright.sandbox import layers
from toolwright.sandbox.expressions import ExpressionSessions
from toolwright.sandbox.jobs import BINARY, Jobs, Language, Languages
from toolwright.sandbox.pool import Pool, refusal
from toolwright.sandbox.queue import Flow
from toolwright.sandbox.requests import BadRequest, Program, RunRequest
from toolwright.sandbox.sessions import Sessions
from toolwright.sandbox.settings import SandboxSettings

_COMPILED_KEPT = 256
_COMPILED_KEPT_BYTES = 64 << 20
_MOST_EXPLAINED = 1000
_SLICE_S = 0.001

T = TypeVar("T")


class SandboxService:
    """A pool of workers, and runs, sessions and compiled programs on top of it."""

    def __init__(self, settings: SandboxSettings) -> None:
        self.settings = settings
        self.layers = layers.choose(settings.isolation)
        self.languages = Languages()
        self.pool = Pool(settings, self.layers, self.languages.tools)
        self.jobs = Jobs(settings.limits, settings.preload, limited="limits" in self.layers)
        self.sessions = Sessions(self.pool, self.jobs, settings)
        self.expressions = ExpressionSessions(self.pool, self.jobs, settings.worker_count)
        self._compiled: OrderedDict[str, str] = OrderedDict()
        self._compiling: dict[str, asyncio.Task[dict[str, Any]]] = {}
        self._waiting: Counter[str] = Counter()  # number of callers, by the program that they wait for

    async def start(self) -> None:
        await self.pool.start()
        self.sessions.start()

    async def close(self) -> None:
        await self.sessions.close()
        await self.pool.close()

    async def run(self, request: RunRequest, flow: Flow) -> bytes:
        """Runs a request and gives the result as JSON."""
        options: dict[str, Any] = {"fetch": request.fetch}
        return await self.execute(request, request.stdin, flow, options)

    async def execute(self, program: Program, stdin: str, flow: Flow, options: dict[str, Any]) -> bytes:
        """Runs a program of any language on one input."""
        language, tool = self.languages.find(program.language)
        deadline_s, entered = program.deadline_s, time.monotonic()
        options = {
            "stdin": stdin,
            "timeout_s": program.timeout_s,
            "memory_mb": program.memory_mb,
            "files": program.files,
            **options,
        }
        if language is None:
            job = self.jobs.python(program.code, **options)
        elif language.compiled:
            compiled = await self._compile(language, tool, program.code, flow, deadline_s)
            if deadline_s is not None:
                deadline_s = max(0.001, deadline_s - (time.monotonic() - entered))
            if "program" not in compiled:
                return orjson.dumps(compiled["result"])
            job = self.jobs.binary(compiled["program"], **options)
        else:
            job = self.jobs.script(language, tool, program.code, **options)
        return await self.pool.submit(job, flow, deadline_s, alone=program.alone)

    def run_or_refuse(self, item: object, flow: Flow) -> bytes | Coroutine[Any, Any, bytes]:
        """Runs an item of a batch. One that cannot run becomes an answer in its place."""
        try:
            return self._run_or_refuse(RunRequest.model_validate(item), flow)
        except ValidationError as error:
            return _refused(explain(error))

    async def _run_or_refuse(self, request: RunRequest, flow: Flow) -> bytes:
        try:
            return await self.run(request, flow)
        except BadRequest as error:
            return _refused(str(error))

    async def _compile(
        self, language: Language, tool: str, code: str, flow: Flow, deadline_s: float | None
    ) -> dict[str, Any]:
        """Compiles the same source once, however many runs need it at the same time.

        The compiler is ended when nobody waits for it any more.
        """
        key = hashlib.sha256(f"{language.name}\0{code}".encode()).hexdigest()
        if key in self._compiled:
            self._compiled.move_to_end(key)
            return {"program": self._compiled[key]}
        task = self._compiling.get(key)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._compile_now(key, language, tool, code, flow))
            self._compiling[key] = task
            task.add_done_callback(lambda _: self._compiling.pop(key, None))
        self._waiting[key] += 1
        try:
            done, _ = await asyncio.wait([task], timeout=deadline_s)
            if done:
                return task.result()
            reason = "compile: the deadline of the call passed before the program was compiled"
            return {"result": refusal("timeout", reason)}
        finally:
            self._waiting[key] -= 1
            if not self._waiting[key]:
                del self._waiting[key]
                task.cancel()

    async def _compile_now(
        self, key: str, language: Language, tool: str, code: str, flow: Flow
    ) -> dict[str, Any]:
        job = self.jobs.script(
            language, tool, code, timeout_s=self.settings.compile_timeout_s, memory_mb=1024, fetch=[BINARY]
        )
        result = orjson.loads(await self.pool.submit(job, flow))
        program = result.pop("files", {}).get(BINARY)
        if result["exit_code"] is None:
            return {"result": result}  # the compiler never ran to its end
        if result["status"] != "ok" or program is None:
            result["reason"] = f"compile: {result.get('reason') or 'the compiler refused the code'}"
            return {"result": result}
        encoded = program["base64"] if isinstance(program, dict) else b64encode(program.encode()).decode()
        self._keep(key, encoded)
        return {"program": encoded}

    def _keep(self, key: str, program: str) -> None:
        self._compiled[key] = program
        held = sum(len(kept) for kept in self._compiled.values())
        while len(self._compiled) > 1 and (
            len(self._compiled) > _COMPILED_KEPT or held > _COMPILED_KEPT_BYTES
        ):
            held -= len(self._compiled.popitem(last=False)[1])

    def status(self) -> dict[str, Any]:
        pool = self.pool
        absent = sorted(set(layers.KNOWN) - self.layers)
        return {
            "queue": len(pool.queue),
            "num_workers": sum(link.is_alive() for link in pool.links),
            "running": sum(len(link.running) for link in pool.links),
            "capacity": self.settings.worker_count * self.settings.runs_per_worker,
            "queue_limit": self.settings.queue_limit,
            "answers": pool.answers,
            "worker_restarts": pool.restarts,
            "sessions": len(self.sessions),
            "isolation": {"in_force": sorted(self.layers), "absent": absent},
            "languages": self.languages.status(),
            "preloaded": next((link.preloaded for link in pool.links if link.is_alive()), []),
        }


def _refused(reason: str) -> bytes:
    return orjson.dumps(refusal("error", f"refused: {reason}"))


def explain(error: ValidationError) -> str:
    """The first errors of a body, each with its field."""
    if error.error_count() > _MOST_EXPLAINED:  # to list them all would make others wait
        return f"the body has {error.error_count()} errors"
    faults = []
    for fault in error.errors(include_url=False, include_input=False, include_context=False)[:5]:
        place = ".".join(str(part) for part in fault["loc"]) or "the body"
        faults.append(f"{place}: {fault['msg']}")
    return "; ".join(faults)


async def in_slices(calls: Iterable[T | Coroutine[Any, Any, T]]) -> list[T]:
    """The results of many calls, in order; some may be results already.

    `asyncio.gather` would start and finish them all at once and block everybody else meanwhile. This lets
    others run after each millisecond.
    """
    tasks: list[T | asyncio.Task[T]] = []
    results: list[T] = []
    slice_ends = time.perf_counter() + _SLICE_S
    try:
        for call in calls:
            tasks.append(asyncio.ensure_future(call) if asyncio.iscoroutine(call) else call)
            if time.perf_counter() > slice_ends:
                await asyncio.sleep(0)
                slice_ends = time.perf_counter() + _SLICE_S
        for task in tasks:
            results.append(await task if isinstance(task, asyncio.Task) else task)
            if time.perf_counter() > slice_ends:
                await asyncio.sleep(0)
                slice_ends = time.perf_counter() + _SLICE_S
    finally:
        for task in tasks[len(results) :]:
            if isinstance(task, asyncio.Task):
                task.cancel()
    return results
