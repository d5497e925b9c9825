"""The ledger: a line of JSON for each call, with its tokens and its cost."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Unpack

from toolwright.failures import UserError
from toolwright.providers.budget import Amount, BudgetSpent
from toolwright.providers.chat import ChatModel, ChatReply, ChatWrapper, CompletionOptions, TransientError


@dataclass(frozen=True)
class LedgerTotal:
    """The sum of a ledger's calls."""

    paid: Amount = field(default_factory=Amount)  # by calls that went over the network
    cached: int = 0  # calls answered from disk
    failed: int = 0
    seconds: float = 0.0  # of all calls, also of those that ran side by side


class Recorded(ChatWrapper):
    """Records each call when it is over. Many processes may write into one file: a line is one write."""

    def __init__(self, inner: ChatModel, path: Path, *, provider: str) -> None:
        super().__init__(inner)
        self.path, self.provider = path, provider
        self._descriptor: int | None = None

    async def complete(
        self, messages: list[dict[str, Any]], **options: Unpack[CompletionOptions]
    ) -> ChatReply:
        file, started = self._file(), time.monotonic()  # opened before anything is paid for
        try:
            reply = await self.inner.complete(messages, **options)
        except BudgetSpent:
            raise  # no request was made
        except Exception as error:
            call: dict[str, Any] = {"error": f"{type(error).__name__}: {error}"[:300]}
            if isinstance(error, TransientError):
                call |= _usage(error.usage)
            self._write(file, call, time.monotonic() - started)
            raise
        call = {**_usage(reply), "cached": reply.cached, "finish": reply.finish}
        self._write(file, call, time.monotonic() - started)
        return reply

    async def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        await super().close()

    def _file(self) -> int:
        if self._descriptor is None:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            except OSError as error:
                raise UserError(f"{self.path} cannot be written as a ledger: {error}") from None
        return self._descriptor

    def _write(self, file: int, call: dict[str, Any], seconds: float) -> None:
        line = {"time": time.time(), "provider": self.provider, "model": self.name, **call}
        os.write(file, json.dumps({**line, "seconds": round(seconds, 4)}).encode() + b"\n")


def _usage(reply: ChatReply) -> dict[str, Any]:
    return {
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.completion_tokens,
        "cost": reply.cost,
    }


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Read the calls of a ledger. Half a line at the end, of a process that was killed, is skipped."""
    if not path.is_file():
        return
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                call = json.loads(line)
            except ValueError:
                continue
            if isinstance(call, dict):
                yield call


def total(path: Path) -> dict[str, LedgerTotal]:
    """Sum a ledger by model, and over all models under ""."""
    totals: dict[str, LedgerTotal] = {"": LedgerTotal()}
    for call in read(path):
        for name in ("", call.get("model", "")):
            totals[name] = _add(totals.get(name, LedgerTotal()), call)
    return totals


def _add(total: LedgerTotal, call: dict[str, Any]) -> LedgerTotal:
    seconds = total.seconds + call.get("seconds", 0.0)
    if call.get("cached"):
        return LedgerTotal(total.paid, total.cached + 1, total.failed, seconds)
    tokens = call.get("prompt_tokens", 0) + call.get("completion_tokens", 0)  # missing for most failures
    paid = total.paid + Amount(call.get("cost") or 0.0, tokens, 1)
    return LedgerTotal(paid, total.cached, total.failed + ("error" in call), seconds)
