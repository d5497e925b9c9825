"""Our own server as the http engine's: tokens and log-probabilities are those of the engine behind it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch

from toolwright.config import schema
from toolwright.engines import Completion, Engine, Sampling
from toolwright.engines.http import HttpEngine
from toolwright.engines.native.engine import NativeEngine
from toolwright.models import huggingface
from toolwright.models.tokenizer import Tokenizer

from .conftest import Served

pytestmark = pytest.mark.xdist_group("serve")


def test_what_is_served_can_be_sampled_from(served: Served, taught: Path) -> None:
    decoder, tokenizer = huggingface.load(taught), Tokenizer.load(taught)
    far = HttpEngine(
        schema.EngineConfig(name="http", url=served.url),
        decoder=decoder,
        tokenizer=tokenizer,
        dtype=torch.float32,
    )
    near = NativeEngine(
        schema.EngineConfig(slots=2), decoder=decoder, tokenizer=tokenizer, dtype=torch.float32
    )

    async def both() -> list[Completion]:
        prompt = tokenizer.encode("<|user|>hello<|end|><|assistant|>")
        engines: list[Engine] = [far, near]
        sampling = Sampling(max_tokens=40, temperature=0.0)
        try:
            return [await engine.generate(prompt, sampling, attempt="a") for engine in engines]
        finally:
            for engine in engines:
                await engine.close()

    over_the_wire, here = asyncio.run(both())
    assert (over_the_wire.text, over_the_wire.stop) == ("hello, world", "eos")
    assert over_the_wire.tokens == here.tokens
    assert over_the_wire.log_probs == pytest.approx(here.log_probs, abs=1e-6)
