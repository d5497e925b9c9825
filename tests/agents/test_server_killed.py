"""A real sandbox server killed under attempts that are calling it: waited for, or named; never scored."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.ports import free_port
from tests.waiting import wait_until
from toolwright.agents.rollout import AttemptRequest, Rollout
from toolwright.config import schema
from toolwright.sandbox.local import command
from toolwright.trainer.measures import tool_use
from toolwright.trainer.sampling import SampledStep
from toolwright.trajectory import Task, Trajectory

from .scripted import ScriptedEngine, saying
from .templates import tokenizer

ATTEMPTS = 6
CALL = "<tool>import time; time.sleep({}); print(6*7)</tool>"


class Sandbox:
    """A server on a port of its own that can be killed and started again."""

    def __init__(self) -> None:
        self.port = free_port()
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

    async def called(self) -> None:
        """Until the first calls are under way."""

        def running() -> bool:
            with urllib.request.urlopen(f"{self.url}/status", timeout=60) as status:
                return json.load(status)["running"] > 0

        await asyncio.to_thread(wait_until, running, "code is run")

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


def attempts(url: str, *meanwhile: Any, takes_s: float, **tool: Any) -> list[Trajectory]:
    """All attempts at once, while the given coroutine functions do harm."""
    made = tokenizer("chatml")
    config = schema.RolloutConfig(
        max_tokens=200, retries=0, tool_prompt="", call_format="tags", timeout_s=600, tool_timeout_s=600
    )
    engine = ScriptedEngine(made, saying(made, CALL.format(takes_s), "42<|im_end|>"))
    rollout = Rollout(config, engine, made, tools={"python": {"url": url, **tool}})
    task = Task("t", [{"role": "user", "content": "?"}])

    async def all_of_them() -> list[Trajectory]:
        harm = [asyncio.create_task(one()) for one in meanwhile]
        try:
            return await rollout.run([AttemptRequest(task, "g", i, i) for i in range(ATTEMPTS)])
        finally:
            await asyncio.gather(*harm)
            await rollout.close()

    return asyncio.run(all_of_them())


def test_attempts_succeed_once_the_sandbox_is_back(sandbox: Sandbox) -> None:
    async def restart() -> None:
        await sandbox.called()
        await asyncio.to_thread(sandbox.kill)
        await asyncio.sleep(0.5)
        await asyncio.to_thread(sandbox.start)

    found = attempts(sandbox.url, restart, takes_s=1.5, timeout=600.0, max_retries=100)
    for attempt in found:
        assert attempt.failure is None, attempt.failure
        assert "<result>42" in attempt.response
        assert attempt.counts.get("tool_errors", 0) == 0
        assert attempt.counts["sandbox_kills"] == 0
    use = tool_use(SampledStep(attempts=found), seconds=1.0)
    assert use["use/sandbox_runs"] >= 1.5 * ATTEMPTS  # each ran for so long
    assert use["use/sandbox_queue"] == use["use/sandbox_waited_s"] > 0  # two workers and six runs, in 1 s


def test_one_that_stays_away_is_named_within_its_limit(sandbox: Sandbox) -> None:
    async def kill() -> None:
        await sandbox.called()
        await asyncio.to_thread(sandbox.kill)

    for attempt in attempts(sandbox.url, kill, takes_s=100, timeout=20.0, timeout_s=200.0, max_retries=2):
        assert attempt.failure is not None
        assert attempt.failure.kind == "infrastructure"
        assert sandbox.url in attempt.failure.message
        assert attempt.reward is None
