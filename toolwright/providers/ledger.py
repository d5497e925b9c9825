"""The ledger: a line of JSON for each call, with its tokens and what it cost, to be summed by anyone."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Unpack

from toolwright.failures import UserError
from toolwright.providers import ChatModel, ChatReply, CompletionOptions, Wrapper
from toolwright.providers.accounts import Amount
from toolwright.providers.budget import BudgetSpent
from toolwright.providers.failures import Passing


@dataclass(frozen=True)
class Sum:
    """What a ledger comes to."""

    paid: Amount = field(default_factory=Amount)  # by calls that went over the wire
    cached: int = 0  # calls answered from the disk
    failed: int = 0
    seconds: float = 0.0  # that calls took, those side by side counted each


class Recorded(Wrapper):
    """Writes each call down when it is over. Many processes may write into one file: a line is one write."""

    def __init__(self, inner: ChatModel, path: Path, *, provider: str) -> None:
        super().__init__(inner)
        self.path, self.provider = path, provider
        self._file: int | None = None

    async def complete(self, messages: list[dict[str, Any]], **how: Unpack[CompletionOptions]) -> ChatReply:
        file, started = self._opened(), time.monotonic()  # before anything is paid for
        try:
            reply = await self.inner.complete(messages, **how)
        except BudgetSpent:
            raise  # nothing was asked
        except Exception as error:
            told: dict[str, Any] = {"error": f"{type(error).__name__}: {error}"[:300]}
            if isinstance(error, Passing):
                told |= _taken(error.took)
            self._write(file, told, time.monotonic() - started)
            raise
        told = {**_taken(reply), "cached": reply.cached, "finish": reply.finish}
        self._write(file, told, time.monotonic() - started)
        return reply

    async def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
        await super().close()

    def _opened(self) -> int:
        if self._file is None:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            except OSError as error:
                raise UserError(f"{self.path} cannot be written as a ledger: {error}") from None
        return self._file

    def _write(self, file: int, call: dict[str, Any], seconds: float) -> None:
        line = {"time": time.time(), "provider": self.provider, "model": self.name, **call}
        os.write(file, json.dumps({**line, "seconds": round(seconds, 4)}).encode() + b"\n")


def _taken(reply: ChatReply) -> dict[str, Any]:
    return {
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.completion_tokens,
        "cost": reply.cost,
    }


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Its calls; half a line at the end, of a process that was killed, is none."""
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


def total(path: Path) -> dict[str, Sum]:
    """By model, and over all under ""; an empty ledger comes to nothing."""
    sums: dict[str, Sum] = {"": Sum()}
    for call in read(path):
        for name in ("", call.get("model", "")):
            sums[name] = _added(sums.get(name, Sum()), call)
    return sums


def _added(to: Sum, call: dict[str, Any]) -> Sum:
    seconds = to.seconds + call.get("seconds", 0.0)
    if call.get("cached"):
        return Sum(to.paid, to.cached + 1, to.failed, seconds)
    tokens = call.get("prompt_tokens", 0) + call.get("completion_tokens", 0)  # of a failure seldom known
    paid = to.paid + Amount(call.get("cost") or 0.0, tokens, 1)
    return Sum(paid, to.cached, to.failed + ("error" in call), seconds)
