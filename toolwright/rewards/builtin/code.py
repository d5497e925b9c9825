"""Programs against tests, run by the sandbox: HumanEval's checks, MBPP's assertions, inputs and outputs."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from toolwright.failures import TaskFailure
from toolwright.rewards import SCORERS
from toolwright.rewards.item import Item
from toolwright.rewards.programs import tests_of, with_last_code

if TYPE_CHECKING:
    from toolwright.sandbox.client import Client

LONGEST = 1 << 18  # characters; no answer to these tasks is longer
UNTIL_THE_LIMIT = 1_000_000  # retries: a server that comes back within reward.timeout_s is waited for
OPEN_LIMIT_S = 10.0


@SCORERS.register(
    "code",
    "humaneval",
    "openai/openai_humaneval",
    "mbpp",
    "google-research-datasets/mbpp",
    "codecontests",
    "apps",
    "codeforces",
    "taco",
)
class Code:
    """1 if every test passes, else 0. `passed` is the share of tests passed; with `partial`, the score."""

    def __init__(
        self,
        *,
        limit_s: float,
        sandbox_url: str | None,
        timeout_s: Annotated[float, Field(gt=0)] = 10.0,
        memory_mb: Annotated[int, Field(gt=0)] = 512,
        partial: bool = False,
        concurrency: Annotated[int, Field(gt=0)] = 16,
        token_env: str | None = None,
    ) -> None:
        self._limit_s, self._url = limit_s, sandbox_url
        self._limits = {"timeout_s": timeout_s, "memory_mb": memory_mb}
        self._partial = partial
        self._token = os.environ.get(token_env) if token_env else None
        self._slots = asyncio.Semaphore(concurrency)
        self._own = contextlib.ExitStack()
        self._client: Client | None = None

    def check(self, item: Item) -> None:
        tests_of(item["ground_truth"])

    async def open(self) -> None:
        """Checks that the server answers."""
        await self._connected().run("", timeout=min(self._limit_s, OPEN_LIMIT_S))

    async def judge(self, item: Item) -> dict[str, float]:
        tests, item = tests_of(item["ground_truth"]), with_last_code(item)
        if len(item["solution_str"]) > LONGEST:
            return {"score": 0.0, "acc": 0.0, "passed": 0.0}
        client = self._connected()
        request = tests.request(item)
        async with self._slots:  # the limit is for the run, not for the wait for others
            result = await client.judge(**{**request, **self._limits}, timeout=self._limit_s)
        verdicts: list[dict[str, Any]] = result["verdicts"]
        unable = [v["reason"] for v in verdicts if v["verdict"] == "unsupported"]
        if unable:
            raise TaskFailure(f"scorer 'code' cannot run this test: {unable[0]}")
        passed = sum(v["verdict"] == "accepted" for v in verdicts) / len(verdicts)
        right = float(passed == 1.0)
        return {"score": passed if self._partial else right, "acc": right, "passed": passed}

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()
        self._own.close()

    def _connected(self) -> Client:
        """The client. If no server is named, one is started, which ends with this scorer."""
        if self._client is None:
            from toolwright.sandbox.client import Client  # here: it brings aiohttp, half a second
            from toolwright.sandbox.local import local_server

            if self._url is None:
                # In this thread: the server ends with the thread that started it.
                self._url = self._own.enter_context(local_server())
            self._client = Client(self._url, token=self._token, max_retries=UNTIL_THE_LIMIT, concurrency=1024)
        return self._client
