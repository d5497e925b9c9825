"""A real sandbox server killed under attempts that are calling it: waited for, or named; never scored."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest

from toolwright.agents.rollout import Rollout, Wanted
from toolwright.config import schema
from toolwright.sandbox.local import command
from toolwright.trajectory import Task, Trajectory

from .scripted import ScriptedEngine, saying
from .templates import tokenizer

ATTEMPTS = 6
CALL = "<tool>import time; time.sleep(1.5); print(6*7)</tool>"


class Sandbox:
    """A server on a port of its own that can be killed and started again."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            command("serve", "--port", str(self.port), "--workers", "2"),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline().startswith("serving on")

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    server = Sandbox()
    yield server
    if server.process.poll() is None:
        server.kill()


def attempts(url: str, *meanwhile: Any, **tool: Any) -> list[Trajectory]:
    """All attempts at once, while the given coroutine functions do harm."""
    made = tokenizer("chatml")
    config = schema.Rollout(max_tokens=200, retries=0, tool_prompt="", call_format="tags", timeout_s=60)
    engine = ScriptedEngine(made, saying(made, CALL, "42<|im_end|>"))
    rollout = Rollout(config, engine, made, tools={"python": {"url": url, **tool}})
    task = Task("t", [{"role": "user", "content": "?"}])

    async def all_of_them() -> list[Trajectory]:
        harm = [asyncio.create_task(one()) for one in meanwhile]
        try:
            return await rollout.run([Wanted(task, "g", i, i) for i in range(ATTEMPTS)])
        finally:
            await asyncio.gather(*harm)
            await rollout.close()

    return asyncio.run(all_of_them())


def test_attempts_end_right_once_it_is_back(sandbox: Sandbox) -> None:
    async def restart() -> None:
        await asyncio.sleep(0.7)  # in the middle of the first calls
        await asyncio.to_thread(sandbox.kill)
        await asyncio.sleep(0.5)
        await asyncio.to_thread(sandbox.start)

    for attempt in attempts(sandbox.url, restart):
        assert attempt.failure is None, attempt.failure
        assert "<result>42" in attempt.response
        assert attempt.counts.get("tool_errors", 0) == 0


def test_one_that_stays_away_is_named_within_its_limit(sandbox: Sandbox) -> None:
    async def kill() -> None:
        await asyncio.sleep(0.7)
        await asyncio.to_thread(sandbox.kill)

    started = time.monotonic()
    found = attempts(sandbox.url, kill, timeout=4.0, timeout_s=3.0, max_retries=2)
    assert time.monotonic() - started < 40
    for attempt in found:
        assert attempt.failure is not None
        assert attempt.failure.kind == "infrastructure"
        assert sandbox.url in attempt.failure.message
        assert attempt.reward is None
