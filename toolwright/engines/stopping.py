"""Where a turn may begin and where it ends, for every engine."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from typing import Protocol

from toolwright.failures import TaskFailure


class Decodes(Protocol):
    def decode(self, tokens: Sequence[int]) -> str: ...


def stopped(tokenizer: Decodes, tokens: Sequence[int], stop: Sequence[str]) -> bool:
    """Whether the last of these tokens has completed a stop string."""
    reach = 2 * max(map(len, stop)) + 8  # tokens that surely cover one at the end
    tail = tokenizer.decode(tokens[-reach:])
    return any(text in tail for text in stop)


def ending(
    tokenizer: Decodes, tokens: Sequence[int], *, ends: Collection[int], stop: Sequence[str]
) -> tuple[int, str]:
    """How many of these tokens the turn has, and why it ends there: `eos`, `stop` or `length`."""
    for count in range(1, len(tokens) + 1):
        if tokens[count - 1] in ends:
            return count, "eos"
        if stop and stopped(tokenizer, tokens[:count], stop):
            return count, "stop"
    return len(tokens), "length"


def check_prompt(prompt: Sequence[int], *, context: int, attempt: str) -> None:
    if not prompt:
        raise ValueError(f"{attempt} asks for tokens without any to go on from; open with a prompt")
    if len(prompt) >= context:
        raise TaskFailure(f"{len(prompt)} tokens leave no room in a context of {context}")


def seed_at(seed: int, place: int) -> int:
    """The seed of the turn that begins at this place: an attempt's turns must not draw the same numbers."""
    digest = hashlib.blake2b(f"{seed}/{place}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 2
