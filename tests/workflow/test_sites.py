"""A executor is opened once for all repeats, and closed whole."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from toolwright.providers.settings import ChatSettings
from toolwright.trajectory import Task
from toolwright.workflow.executors import ChatExecutor
from toolwright.workflow.program import single_call
from toolwright.workflow.runners import LocalRunner
from toolwright.workflow.tree import schedule

CHAT = """\
from pathlib import Path

from toolwright.providers import ChatReply


class Chat:
    def __init__(self, settings):
        self.name, self.said = settings.model, Path(__file__).with_name("said.txt")

    async def complete(self, messages, **how):
        self._say("asked")
        return ChatReply("2", prompt_tokens=1, completion_tokens=1)

    async def close(self):
        self._say("closed")

    def _say(self, what):
        with self.said.open("a") as file:
            file.write(what + "\\n")
"""


@pytest.fixture
def executor(tmp_path: Path) -> ChatExecutor:
    (tmp_path / "own.py").write_text(CHAT)
    task = Task("t", [{"role": "user", "content": "1+1?"}], "2", "numeric")
    return ChatExecutor(
        setting="own",
        kind="math",
        tasks=[task],
        operators=(),
        prompts={},
        offers=frozenset(),
        scorer="numeric",
        chat=ChatSettings(provider=f"{tmp_path}/own.py:Chat", model="m", price=0).model_dump_json(),  # type: ignore[arg-type]
        temperature=0.0,
        max_tokens=8,
    )


async def twice(bench: LocalRunner) -> None:
    made = await bench.run(single_call(), schedule(["t"], 2))
    assert [payment.score for payment in made.values()] == [1.0, 1.0]


def test_its_chat_is_closed_when_the_search_is_done_with_it(executor: ChatExecutor, tmp_path: Path) -> None:
    async def go() -> None:
        bench = LocalRunner(executor, None)
        await twice(bench)
        await bench.close()

    asyncio.run(go())
    assert (tmp_path / "said.txt").read_text().split() == ["asked", "asked", "closed"]


def test_also_where_its_sandbox_cannot_be(executor: ChatExecutor, tmp_path: Path) -> None:
    async def stuck() -> None:
        raise RuntimeError("the sandbox would not go")

    async def go() -> None:
        bench = LocalRunner(executor, None)
        await twice(bench)
        bench._opened.runner.close = stuck  # type: ignore[method-assign]
        with pytest.raises(RuntimeError, match="would not go"):
            await bench.close()

    asyncio.run(go())
    assert (tmp_path / "said.txt").read_text().split()[-1] == "closed"
