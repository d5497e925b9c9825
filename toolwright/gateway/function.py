"""A Python function as an agent: called in processes that are kept, one attempt in each at a time."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import orjson

from toolwright.agents.attempt import Attempt
from toolwright.config import schema
from toolwright.failures import InfrastructureFailure
from toolwright.gateway import function_main
from toolwright.gateway.processes import ChildProcess
from toolwright.gateway.program import ProgramAgent, ProgramEnd, task_data, variables
from toolwright.gateway.server import AttemptAddress
from toolwright.gateway.session import Session
from toolwright.models.tokenizer import Tokenizer
from toolwright.registry import load_object

START_S = 120.0  # for the imports of a user's module


class FunctionAgent(ProgramAgent):
    """`rollout.agent=my_agent.py:run`: `run(task)` or `run(task, policy)`, synchronous or not. What it
    returns is its answer. The environment tells the SDKs where the policy is, as it does a command."""

    kind = "function"
    usual_concurrency = max(4, 2 * (os.cpu_count() or 1))

    def __init__(self, config: schema.RolloutConfig, tokenizer: Tokenizer) -> None:
        super().__init__(config, tokenizer)
        self.reference = self.program.function or ""
        load_object(self.reference)  # a mistake in its name is heard of before the start
        self._idle: list[ChildProcess] = []

    @property
    def label(self) -> str:
        return f"the function {self.reference!r}"

    async def run(self, attempt: Attempt, address: AttemptAddress, session: Session) -> ProgramEnd:
        worker = self._idle.pop() if self._idle else await self._start()
        policy = {"base_url": f"{address.url}/v1", "api_key": address.key, "model": self.program.model}
        request = {
            "task": task_data(attempt.task),
            "policy": policy,
            "env": {**variables(address, self.program.model), **self.program.env},
        }
        try:
            reply = await _asked(worker, request)
        except BaseException:
            await worker.end()
            raise
        self._idle.append(worker)
        if "error" in reply:
            return ProgramEnd(trouble=f"raised {reply['error']}", facts={"error": reply["error"]})
        returned = reply["returned"]
        text = "" if returned is None else returned if isinstance(returned, str) else _json(returned)
        return ProgramEnd(text, facts={"returned": returned})

    async def close(self) -> None:
        await super().close()
        for worker in self._idle:
            await worker.end()
        self._idle.clear()

    async def _start(self) -> ChildProcess:
        file, _, name = self.reference.rpartition(":")
        where = str(Path(file).expanduser().absolute()) if file.endswith(".py") else file
        path = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), *sys.path]))
        words = [sys.executable, function_main.__file__, f"{where}:{name}"]
        env = {**os.environ, "PYTHONPATH": path}
        worker = await ChildProcess.start(words, cwd=tempfile.gettempdir(), env=env)
        worker.read_errors()
        try:
            async with asyncio.timeout(START_S):
                await _line(worker)  # it has imported what it needs
        except TimeoutError:
            await worker.end()
            raise InfrastructureFailure(f"{self.label} was not imported within {START_S:g} s") from None
        except BaseException:
            await worker.end()
            raise
        return worker


async def _asked(worker: ChildProcess, request: Mapping[str, object]) -> dict[str, object]:
    assert worker.process.stdin is not None
    with suppress(OSError):  # then there is no answer either
        worker.process.stdin.write(orjson.dumps(request) + b"\n")
        await worker.process.stdin.drain()
    found: dict[str, object] = orjson.loads(await _line(worker))
    return found


async def _line(worker: ChildProcess) -> bytes:
    assert worker.process.stdout is not None
    line = await worker.process.stdout.readline()
    if not line.endswith(b"\n"):
        raise InfrastructureFailure("a process that calls the agent's function has ended")
    return line


def _json(value: object) -> str:
    return orjson.dumps(value).decode()
