"""Every answer kept on disk by what was asked, so that nothing is paid for twice, also after kill -9."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar, Unpack

from toolwright.providers import ChatModel, ChatReply, CompletionOptions, Wrapper
from toolwright.providers.shared_file import opened
from toolwright.tools.call import Malformed, ToolRequest

T = TypeVar("T")


class Answers:
    """A file of answers, for any number of processes. The first answer to a question stays."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="answers")
        self._opened: sqlite3.Connection | None = None

    async def get(self, key: str) -> str | None:
        return await self._in_thread(lambda: self._get(key))

    async def keep(self, key: str, answer: str) -> str:
        """What is kept from now on: this one, or another process's that was first."""
        return await self._in_thread(lambda: self._keep(key, answer))

    async def close(self) -> None:
        await self._in_thread(self._close)
        self._thread.shutdown()

    async def _in_thread(self, work: Callable[[], T]) -> T:
        # A file that another process writes to may be waited for; nobody else should wait with us.
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _get(self, key: str) -> str | None:
        row = self._file().execute("SELECT answer FROM answers WHERE key = ?", (key,)).fetchone()
        return row[0] if row else None

    def _keep(self, key: str, answer: str) -> str:
        self._file().execute("INSERT OR IGNORE INTO answers VALUES (?, ?)", (key, answer))
        return self._get(key) or answer

    def _file(self) -> sqlite3.Connection:
        if self._opened is None:
            columns = "key TEXT PRIMARY KEY, answer TEXT NOT NULL"
            self._opened = opened(self.path, f"answers ({columns})", as_what="a file of answers")
            self._opened.execute("PRAGMA synchronous = NORMAL")
        return self._opened

    def _close(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None


class Cached(Wrapper):
    """Asks only what has never been answered.

    A question is everything that shapes its answer, and which sample of it is wanted: its seed, or, where it
    has none and is not greedy, how often this chat was asked the same before. So a search that is started
    again finds its first sample, its second, and so on, and none of them twice.
    """

    def __init__(self, inner: ChatModel, path: Path, *, identity: Mapping[str, Any]) -> None:
        """`identity` tells the models apart that share the file."""
        super().__init__(inner)
        self.answers, self.identity = Answers(path), dict(identity)
        self._asked: Counter[str] = Counter()
        self._under_way: dict[str, asyncio.Task[ChatReply]] = {}

    async def complete(self, messages: list[dict[str, Any]], **how: Unpack[CompletionOptions]) -> ChatReply:
        key = self._key(messages, how)
        under_way = self._under_way.get(key)
        if under_way is not None:
            return replace(await asyncio.shield(under_way), cached=True)
        task = asyncio.create_task(self._answered(key, messages, how))
        self._under_way[key] = task
        task.add_done_callback(lambda _: self._over(key))
        # Shielded: what is under way will be paid for, and is kept even if nobody waits for it any more.
        return await asyncio.shield(task)

    async def close(self) -> None:
        for task in (left := list(self._under_way.values())):
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await self.answers.close()
        await super().close()

    def _over(self, key: str) -> None:
        task = self._under_way.pop(key)
        if not task.cancelled():
            task.exception()  # heard by those who wait; asyncio complains where nobody does

    async def _answered(self, key: str, messages: list[dict[str, Any]], how: CompletionOptions) -> ChatReply:
        found = await self.answers.get(key)
        if found is not None:
            return replace(_read(found), cached=True)
        reply = await self.inner.complete(messages, **how)
        return _read(await self.answers.keep(key, _written(reply)))

    def _key(self, messages: list[dict[str, Any]], how: CompletionOptions) -> str:
        question = {
            **self.identity,
            "messages": messages,
            "temperature": float(how["temperature"]),
            "max_tokens": how["max_tokens"],
            "stop": list(how.get("stop") or ()),
            "tools": list(how.get("tools") or ()),
        }
        sample: int | str | None = how.get("seed")
        if sample is None and how["temperature"] > 0:
            same = _digest(question)
            sample = f"number {self._asked[same]}"
            self._asked[same] += 1
        return _digest({**question, "sample": sample})


def _digest(question: Mapping[str, Any]) -> str:
    text = json.dumps(question, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


_KINDS: dict[str, type[ToolRequest] | type[Malformed]] = {"Call": ToolRequest, "Malformed": Malformed}
_NAMES = {kind: name for name, kind in _KINDS.items()}  # in the file: they stay when a class is renamed


def _written(reply: ChatReply) -> str:
    calls = [{"kind": _NAMES[type(one)], **asdict(one)} for one in reply.calls]
    return json.dumps({**asdict(reply), "calls": calls})


def _read(text: str) -> ChatReply:
    fields = json.loads(text)
    calls = tuple(_KINDS[one.pop("kind")](**one) for one in fields.pop("calls"))
    return ChatReply(**fields, calls=calls)
