"""A Python function as an agent: called in processes that are kept, one attempt in each at a time."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import orjson

from toolwright.agents.attempt import Attempt
from toolwright.config import schema
from toolwright.failures import InfrastructureFailure
from toolwright.gateway import function_main
from toolwright.gateway.processes import LINE_BYTES, ChildProcess, kill
from toolwright.gateway.program import ProgramAgent, ProgramEnd, task_data, variables, working_folder
from toolwright.gateway.server import AttemptAddress
from toolwright.gateway.session import Session
from toolwright.models.tokenizer import Tokenizer
from toolwright.registry import load_object

START_S = 120.0  # for the imports of a user's module


class FunctionAgent(ProgramAgent):
    """`rollout.agent=my_agent.py:run`: `run(task)` or `run(task, policy)`, synchronous or not. What it
    returns is its answer. The environment tells the SDKs where the policy is, as it does a command.

    One process imports the function; the others are forked from it. So there may be as many as an engine has
    rows to fill: with fewer, it would decode many small batches in place of one large one."""

    kind = "function"
    usual_concurrency = 64

    def __init__(self, config: schema.RolloutConfig, tokenizer: Tokenizer) -> None:
        super().__init__(config, tokenizer)
        self.reference = self.program.function or ""
        load_object(self.reference)  # a mistake in its name fails before the run starts
        self._source: WorkerSource | None = None
        self._starting = asyncio.Lock()
        self._idle: list[FunctionWorker] = []

    @property
    def label(self) -> str:
        return f"the function {self.reference!r}"

    async def run(self, attempt: Attempt, address: AttemptAddress, session: Session) -> ProgramEnd:
        worker = self._idle.pop() if self._idle else await self._start()
        policy = {"base_url": f"{address.url}/v1", "api_key": address.key, "model": self.program.model}
        async with working_folder() as folder:
            request = {
                "task": task_data(attempt.task),
                "policy": policy,
                "env": {**variables(address, self.program.model), **self.program.env},
                "folder": folder,
            }
            try:
                reply = await worker.asked(request)
            except BaseException:
                worker.end()
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
            worker.end()
        self._idle.clear()
        if self._source is not None:
            await self._source.end()

    async def _start(self) -> FunctionWorker:
        async with self._starting:
            if self._source is None or self._source.process.exited.is_set():
                self._source = await WorkerSource.start(self.reference, self.label)
        return await self._source.fork()


@dataclass
class FunctionWorker:
    """A process that calls the function."""

    pid: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def asked(self, request: Mapping[str, object]) -> dict[str, object]:
        with suppress(OSError):  # then there is no answer either
            self.writer.write(_json(request).encode() + b"\n")
            await self.writer.drain()
        found: dict[str, object] = orjson.loads(await _line(self.reader))
        return found

    def end(self) -> None:
        kill(self.pid)
        self.writer.close()


@dataclass
class WorkerSource:
    """The process that has imported the function, which workers are forked from."""

    process: ChildProcess
    control: socket.socket

    @classmethod
    async def start(cls, reference: str, label: str) -> WorkerSource:
        file, _, name = reference.rpartition(":")
        where = str(Path(file).expanduser().absolute()) if file.endswith(".py") else file
        path = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), *sys.path]))
        words = [sys.executable, function_main.__file__, f"{where}:{name}"]
        env = {**os.environ, "PYTHONPATH": path}
        control, theirs = socket.socketpair()
        with theirs:
            process = await ChildProcess.start(
                words, cwd=tempfile.gettempdir(), env=env, stdin=theirs.fileno()
            )
        process.read_errors()
        control.setblocking(False)
        source = cls(process, control)
        try:
            async with asyncio.timeout(START_S):  # until it has imported what it needs
                if not await asyncio.get_running_loop().sock_recv(control, 1):
                    raise InfrastructureFailure(f"{label} could not be imported")
        except TimeoutError:
            await source.end()
            raise InfrastructureFailure(f"{label} was not imported within {START_S:g} s") from None
        except BaseException:
            await source.end()
            raise
        return source

    async def fork(self) -> FunctionWorker:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self.control, [b"\n"], [theirs.fileno()])
            except OSError as error:
                ours.close()
                raise InfrastructureFailure(
                    f"cannot start a process for the agent's function: {error}"
                ) from None
        reader, writer = await asyncio.open_connection(sock=ours, limit=LINE_BYTES)
        return FunctionWorker(int(await _line(reader)), reader, writer)

    async def end(self) -> None:
        self.control.close()
        await self.process.end()


async def _line(reader: asyncio.StreamReader) -> bytes:
    line = await reader.readline()
    if not line.endswith(b"\n"):
        raise InfrastructureFailure("a process that calls the agent's function has ended")
    return line


def _json(value: object) -> str:
    return orjson.dumps(value).decode()
