"""A cache of replies on disk: no prompt is paid for twice, also after `kill -9`."""

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

from toolwright.providers.chat import ChatModel, ChatReply, ChatWrapper, CompletionOptions
from toolwright.providers.sqlite_file import open_sqlite
from toolwright.tools.call import Malformed, ToolRequest

T = TypeVar("T")
# Names in the file, which stay when a class is renamed.
_CALL_TYPES: dict[str, type[ToolRequest] | type[Malformed]] = {"Call": ToolRequest, "Malformed": Malformed}
_CALL_NAMES = {kind: name for name, kind in _CALL_TYPES.items()}


class ReplyFile:
    """Replies by key in an SQLite file, for any number of processes. The first reply to a key stays."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # Another process may hold the file: its lock is awaited in a thread, not in the event loop.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="replies")
        self._connection: sqlite3.Connection | None = None

    async def get(self, key: str) -> str | None:
        return await self._in_thread(lambda: self._get(key))

    async def keep(self, key: str, reply: str) -> str:
        """Store a reply. Returns the stored one, which is another process's if that was first."""

        def insert() -> str:
            self._file().execute("INSERT OR IGNORE INTO answers VALUES (?, ?)", (key, reply))
            return self._get(key) or reply

        return await self._in_thread(insert)

    async def close(self) -> None:
        if self._connection is not None:
            await self._in_thread(self._connection.close)
        self._thread.shutdown()

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _get(self, key: str) -> str | None:
        row = self._file().execute("SELECT answer FROM answers WHERE key = ?", (key,)).fetchone()
        return row[0] if row else None

    def _file(self) -> sqlite3.Connection:
        if self._connection is None:
            columns = "key TEXT PRIMARY KEY, answer TEXT NOT NULL"
            self._connection = open_sqlite(self.path, f"answers ({columns})", purpose="a file of answers")
            self._connection.execute("PRAGMA synchronous = NORMAL")
        return self._connection


class Cached(ChatWrapper):
    """Requests only what has never been answered.

    The key is everything that shapes a reply, and which sample of it is requested: the seed, or, without a
    seed and at a temperature above 0, how often this chat model had the same request before. So a search
    that is started again finds its first sample, its second, and so on, and none of them twice.
    """

    def __init__(self, inner: ChatModel, path: Path, *, identity: Mapping[str, Any]) -> None:
        """`identity` distinguishes the models that share the file."""
        super().__init__(inner)
        self.replies, self.identity = ReplyFile(path), dict(identity)
        self._repeats: Counter[str] = Counter()
        self._running: dict[str, asyncio.Task[ChatReply]] = {}

    async def complete(
        self, messages: list[dict[str, Any]], **options: Unpack[CompletionOptions]
    ) -> ChatReply:
        key = self._key(messages, options)
        running = self._running.get(key)
        if running is not None:
            return replace(await asyncio.shield(running), cached=True)
        task = asyncio.create_task(self._look_up(key, messages, options))
        self._running[key] = task
        task.add_done_callback(lambda _: self._forget(key))
        # Shielded: a call under way will be paid for, so its reply is kept even if nobody waits any more.
        return await asyncio.shield(task)

    async def close(self) -> None:
        for task in (left := list(self._running.values())):
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await self.replies.close()
        await super().close()

    def _forget(self, key: str) -> None:
        task = self._running.pop(key)
        if not task.cancelled():
            task.exception()  # asyncio logs an exception that nobody retrieves

    async def _look_up(
        self, key: str, messages: list[dict[str, Any]], options: CompletionOptions
    ) -> ChatReply:
        found = await self.replies.get(key)
        if found is not None:
            return replace(_from_json(found), cached=True)
        reply = await self.inner.complete(messages, **options)
        return _from_json(await self.replies.keep(key, _to_json(reply)))

    def _key(self, messages: list[dict[str, Any]], options: CompletionOptions) -> str:
        request = {
            **self.identity,
            "messages": messages,
            "temperature": float(options["temperature"]),
            "max_tokens": options["max_tokens"],
            "stop": list(options.get("stop") or ()),
            "tools": list(options.get("tools") or ()),
        }
        sample: int | str | None = options.get("seed")
        if sample is None and options["temperature"] > 0:
            same = _digest(request)
            sample = f"number {self._repeats[same]}"
            self._repeats[same] += 1
        return _digest({**request, "sample": sample})


def _digest(request: Mapping[str, Any]) -> str:
    text = json.dumps(request, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _to_json(reply: ChatReply) -> str:
    calls = [{"kind": _CALL_NAMES[type(call)], **asdict(call)} for call in reply.calls]
    return json.dumps({**asdict(reply), "calls": calls})


def _from_json(text: str) -> ChatReply:
    fields = json.loads(text)
    calls = tuple(_CALL_TYPES[call.pop("kind")](**call) for call in fields.pop("calls"))
    return ChatReply(**fields, calls=calls)
