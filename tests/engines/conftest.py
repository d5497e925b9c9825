"""The engines that keep the contract, and how a test asks one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import pytest
import torch

from toolwright import engines
from toolwright.config import schema
from toolwright.engines import Completion, Engine, Sampling
from toolwright.models.decoder import Decoder
from toolwright.models.tokenizer import Tokenizer

# (decoder, tokenizer, *, slots, timeout_s, dtype) -> engine
Build = Callable[..., Engine]
# A prompt, how to sample after it, whose it is.
Request = tuple[Sequence[int], Sampling, str]

ENGINES = ["native"]


@pytest.fixture(params=ENGINES)
def build(request: pytest.FixtureRequest) -> Build:
    return partial(make, request.param)


def make(
    name: str,
    decoder: Decoder,
    tokenizer: Tokenizer,
    *,
    slots: int = 8,
    timeout_s: float = 60.0,
    dtype: torch.dtype = torch.float32,
) -> Any:
    config = schema.Engine(name=name, slots=slots, timeout_s=timeout_s)
    return engines.registry.get(name).target(config, decoder=decoder, tokenizer=tokenizer, dtype=dtype)


def ask(engine: Engine, requests: Iterable[Request]) -> list[Completion]:
    """All at once; answers in the order of the requests. Nothing is kept for a next turn."""

    async def all_of_them() -> list[Completion]:
        wanted = list(requests)
        try:
            return await asyncio.gather(*(engine.generate(p, s, attempt=name) for p, s, name in wanted))
        finally:
            for _, _, name in wanted:
                engine.release(name)

    return asyncio.run(all_of_them())


def ask_one(engine: Engine, prompt: Sequence[int], sampling: Sampling) -> Completion:
    return ask(engine, [(prompt, sampling, "one")])[0]
