"""Checks of a turn that every engine makes: its prompt, where it ends, and how long it may take."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Collection, Sequence
from typing import Protocol, TypeVar

from toolwright.failures import InfrastructureFailure, TaskFailure

T = TypeVar("T")


class Decodes(Protocol):
    def decode(self, tokens: Sequence[int]) -> str: ...


def stopped(tokenizer: Decodes, tokens: Sequence[int], stop: Sequence[str]) -> bool:
    """True if the last of these tokens completes a stop string."""
    reach = 2 * max(map(len, stop)) + 8  # tokens that surely cover one at the end
    tail = tokenizer.decode(tokens[-reach:])
    return any(text in tail for text in stop)


def ending(
    tokenizer: Decodes, tokens: Sequence[int], *, ends: Collection[int], stop: Sequence[str]
) -> tuple[int, str]:
    """The number of tokens that belong to the turn, and why it ends: `eos`, `stop` or `length`."""
    for count in range(1, len(tokens) + 1):
        if tokens[count - 1] in ends:
            return count, "eos"
        if stop and stopped(tokenizer, tokens[:count], stop):
            return count, "stop"
    return len(tokens), "length"


def check_prompt(prompt: Sequence[int], *, context: int, attempt: str) -> None:
    if not prompt:
        raise ValueError(f"{attempt} asks for tokens without a prompt; start with a prompt")
    if len(prompt) >= context:
        raise TaskFailure(f"{len(prompt)} tokens leave no room in a context of {context}")


def seed_at(seed: int, place: int) -> int:
    """The seed of the turn that begins at this place: an attempt's turns must not draw the same numbers."""
    digest = hashlib.blake2b(f"{seed}/{place}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 2


async def turn_of(attempt: str, answer: Awaitable[T], *, who: str, limit_s: float) -> T:
    """Wait for a turn's answer, no longer than `limit_s`."""
    try:
        async with asyncio.timeout(limit_s):  # Python 3.11's `wait_for` loses a cancellation to an answer
            return await answer
    except TimeoutError:
        message = f"{who} did not finish a turn of {attempt} within {limit_s:g} s"
        raise InfrastructureFailure(message) from None
