"""An engine that says what it is told to say, and remembers what it was asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from toolwright.engines import Completion, Sampling
from toolwright.models.tokenizer import Tokenizer

Script = Callable[[str, int], Sequence[int]]  # (attempt, which turn of it) -> tokens


class ScriptedEngine:
    """Stops as engines do: at an end token, behind a stop string, or where the limit is."""

    exact = True
    takes_weights = True
    weights_version = 0

    def __init__(self, tokenizer: Tokenizer, script: Script, *, context: int = 100_000) -> None:
        self.tokenizer, self.script, self.context = tokenizer, script, context
        self.seen: dict[str, list[tuple[list[int], list[int]]]] = {}

    async def generate(self, prompt: Sequence[int], sampling: Sampling, *, attempt: str) -> Completion:
        assert len(prompt) < self.context
        await asyncio.sleep(0)
        turns = self.seen.setdefault(attempt, [])
        given: list[int] = []
        stop = "length"
        for token in self.script(attempt, len(turns)):
            given.append(token)
            if token in self.tokenizer.end_tokens:
                stop = "eos"
                break
            tail = self.tokenizer.decode(given[-64:]) if sampling.stop else ""
            if any(text in tail for text in sampling.stop):
                stop = "stop"
                break
            if len(given) == sampling.max_tokens:
                break
        turns.append((list(prompt), given))
        return Completion(given, [-0.5] * len(given), self.tokenizer.decode(given), stop, 0)

    def release(self, attempt: str) -> None: ...

    def rest(self) -> None: ...

    def publish(self, version: int) -> None: ...

    async def close(self) -> None: ...


def saying(tokenizer: Tokenizer, *turns: str) -> Script:
    """Each turn as text, special tokens in it meant; the last one again and again."""
    written = [tokenizer.encode(text) for text in turns]
    return lambda attempt, turn: written[min(turn, len(written) - 1)]
