"""Nothing is paid for twice: not by another process, not after kill -9; and samples are not collapsed."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from toolwright.failures import InfrastructureFailure, UserError
from toolwright.providers import ChatModel, ChatReply, close
from toolwright.providers.cache import Cached
from toolwright.tools.call import Malformed, ToolRequest

from .chats import ASK, Simulated, said

WHO = {"provider": "simulated", "model": "m"}


def asked(path: Path, inner: ChatModel, work: Callable[[Cached], Awaitable[Any]]) -> Any:
    async def whole() -> Any:
        chat = Cached(inner, path, identity=WHO)
        try:
            return await work(chat)
        finally:
            await close(chat)

    return asyncio.run(whole())


def once(text: str = "x", **how: Any) -> Callable[[Cached], Awaitable[ChatReply]]:
    return lambda chat: chat.complete(said(text), **{**ASK, **how})


def test_the_same_question_is_asked_once(tmp_path: Path) -> None:
    inner = Simulated(
        lambda n: ChatReply("yes", (ToolRequest("f", {"a": [1]}, id="i"), Malformed("no")), 5, 7, 0.25, 1.5)
    )
    first = asked(tmp_path / "c", inner, once(seed=1))
    again = asked(tmp_path / "c", inner, once(seed=1))
    assert len(inner.asked) == 1
    assert (first.cached, again.cached) == (False, True)
    assert again == ChatReply(**{**vars(first), "cached": True})  # its cost is what it cost then


@pytest.mark.parametrize(
    "other", [{"seed": 2}, {"temperature": 0.5}, {"max_tokens": 11}, {"stop": ["."]}, {"text": "y"},
              {"tools": [{"type": "function", "function": {"name": "f"}}]}],
)  # fmt: skip
def test_another_question_is_another(tmp_path: Path, other: dict[str, Any]) -> None:
    inner = Simulated()
    asked(tmp_path / "c", inner, once(seed=1))
    asked(tmp_path / "c", inner, once(**{"seed": 1, **other}))
    assert len(inner.asked) == 2


def test_another_model_is_another(tmp_path: Path) -> None:
    inner = Simulated()

    async def both() -> None:
        for model in ("a", "b"):
            chat = Cached(inner, tmp_path / "c", identity={"model": model})
            await chat.complete(said("x"), seed=1, **ASK)
            await close(chat)

    asyncio.run(both())
    assert len(inner.asked) == 2


def test_samples_without_seeds_are_numbered_and_found_again(tmp_path: Path) -> None:
    inner = Simulated()

    async def three(chat: Cached) -> list[str]:
        return [(await chat.complete(said("x"), **ASK)).text for _ in range(3)]

    first = asked(tmp_path / "c", inner, three)
    assert first == ["answer 0", "answer 1", "answer 2"]
    assert asked(tmp_path / "c", inner, three) == first
    assert len(inner.asked) == 3


def test_a_greedy_question_has_one_answer(tmp_path: Path) -> None:
    inner = Simulated()

    async def twice(chat: Cached) -> list[bool]:
        return [(await chat.complete(said("x"), temperature=0, max_tokens=5)).cached for _ in range(2)]

    assert asked(tmp_path / "c", inner, twice) == [False, True]


def test_at_the_same_time_it_is_asked_once(tmp_path: Path) -> None:
    inner = Simulated(pause_s=0.02)

    async def together(chat: Cached) -> list[ChatReply]:
        return await asyncio.gather(*(once(seed=1)(chat) for _ in range(8)))

    answers = asked(tmp_path / "c", inner, together)
    assert len(inner.asked) == 1
    assert sorted(answer.cached for answer in answers) == [False] + [True] * 7


def test_a_cancelled_call_keeps_the_reply_that_was_paid_for(tmp_path: Path) -> None:
    inner = Simulated(pause_s=0.05)

    async def give_up_and_ask_again(chat: Cached) -> ChatReply:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(once(seed=1)(chat), 0.01)
        return await once(seed=1)(chat)

    assert asked(tmp_path / "c", inner, give_up_and_ask_again).text == "answer 0"
    assert len(inner.asked) == 1


def test_a_failure_is_not_kept(tmp_path: Path) -> None:
    inner = Simulated(lambda n: InfrastructureFailure("gone") if n == 0 else ChatReply("yes"))
    with pytest.raises(InfrastructureFailure):
        asked(tmp_path / "c", inner, once(seed=1))
    assert asked(tmp_path / "c", inner, once(seed=1)).text == "yes"


CHILD = """
import asyncio, sys
from pathlib import Path
from tests.providers.chats import ASK, Simulated, said
from toolwright.providers import ChatReply
from toolwright.providers.cache import Cached

async def main(path, who):
    chat = Cached(Simulated(lambda n: ChatReply(f"{who} {n}")), Path(path), identity={"model": "m"})
    for seed in range(100_000 if who == "killed" else 60):
        reply = await chat.complete(said("x"), seed=seed, **ASK)
        print(seed, reply.text, flush=True)
asyncio.run(main(*sys.argv[1:]))
"""


def child(path: Path, who: str) -> subprocess.Popen[str]:
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(path), who], stdout=subprocess.PIPE, text=True, env=environment
    )


def test_many_processes_agree_on_one_answer(tmp_path: Path) -> None:
    children = [child(tmp_path / "c", str(n)) for n in range(3)]
    heard = [running.communicate(timeout=400)[0] for running in children]
    assert [running.returncode for running in children] == [0, 0, 0]
    assert heard[0] == heard[1] == heard[2]
    assert len(heard[0].splitlines()) == 60


def test_a_file_that_another_process_is_about_to_create_is_awaited(tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "c", isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")  # SQLite refuses a write-ahead log then, without any wait
    other.execute("CREATE TABLE answers (key TEXT PRIMARY KEY, answer TEXT NOT NULL)")
    commit = threading.Timer(0.1, other.execute, ["COMMIT"])
    commit.start()
    assert asked(tmp_path / "c", Simulated(lambda n: ChatReply("yes")), once(seed=1)).text == "yes"
    commit.join()


def test_a_stored_reply_survives_kill_9(tmp_path: Path) -> None:
    running = child(tmp_path / "c", "killed")
    assert running.stdout is not None
    lines = [running.stdout.readline() for _ in range(40)]
    running.send_signal(signal.SIGKILL)
    lines += running.communicate(timeout=400)[0].splitlines(keepends=True)
    known = [line.split(maxsplit=1) for line in lines if line.endswith("\n")]
    inner = Simulated()

    async def read_all() -> list[str]:
        chat = Cached(inner, tmp_path / "c", identity={"model": "m"})
        try:
            return [(await chat.complete(said("x"), seed=int(seed), **ASK)).text for seed, _ in known]
        finally:
            await close(chat)

    assert asyncio.run(read_all()) == [text.strip() for _, text in known]
    assert inner.asked == []


def test_a_file_that_is_no_cache_is_reported(tmp_path: Path) -> None:
    (tmp_path / "c").write_text("something else entirely, and long enough to be looked at " * 20)
    with pytest.raises(UserError, match="cannot be used as a file of answers"):
        asked(tmp_path / "c", Simulated(), once(seed=1))


def test_an_unusable_cache_file_is_refused_on_every_call(tmp_path: Path) -> None:
    (tmp_path / "c").write_text("something else entirely, and long enough to be looked at " * 20)

    async def twice() -> None:
        chat = Cached(Simulated(), tmp_path / "c", identity={"model": "m"})
        for _ in range(2):
            with pytest.raises(UserError, match="cannot be used as a file of answers"):
                await chat.complete(said("x"), seed=1, **ASK)
        await close(chat)

    asyncio.run(twice())
