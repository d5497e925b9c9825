"""vLLM on a GPU beside a learner: weights by handle, memory lent and given back, the contract in bfloat16."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
import tiny
import torch

from toolwright.config import schema
from toolwright.engines import Sampling
from toolwright.engines.vllm import VllmEngine
from toolwright.failures import InfrastructureFailure
from toolwright.models.attention import PackedAttention
from toolwright.models.decoder import Decoder

from .conftest import ask, ask_one
from .test_contract import ENDLESS, PROMPT

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.vllm,
    pytest.mark.xdist_group("vllm gpu"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
]
NEAR = 0.05  # of a log-probability in bfloat16, on average over a turn


@pytest.fixture(scope="module")
def model() -> Decoder:
    made = tiny.decoder(
        width=256, heads=4, kv_heads=2, head_dim=64, ffn=512, layers=4, context=2048, tied=True
    )
    with torch.no_grad():
        made.embedding.weight.mul_(0.2)  # tied: else it is sure to say the last token again
    return made.to("cuda")


@pytest.fixture(scope="module")
def engine(model: Decoder) -> Iterator[VllmEngine]:
    params = {"gpu_memory_utilization": 0.2, "enforce_eager": True}
    config = schema.EngineConfig(name="vllm", slots=64, timeout_s=500, params=params)
    made = VllmEngine(config, decoder=model, tokenizer=ENDLESS, dtype=torch.bfloat16)
    yield made
    asyncio.run(made.close())


@torch.no_grad()
def learned(model: Decoder, tokens: list[int], start: int, temperature: float) -> torch.Tensor:
    attend = PackedAttention([len(tokens)], model.device)
    place = torch.tensor(tokens, device=model.device)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        logits = model.head(model.hidden(place, attend.positions, attend)).float()
    log_probs = (logits / temperature).log_softmax(-1)
    return log_probs[start - 1 : -1].gather(1, place[start:, None])[:, 0].cpu()


def agree(engine: VllmEngine, model: Decoder, **settings: float) -> None:
    requests = [(PROMPT, Sampling(max_tokens=64, seed=s, **settings), str(s)) for s in range(16)]
    for answer in ask(engine, requests):
        wanted = learned(model, [*PROMPT, *answer.tokens], len(PROMPT), settings.get("temperature", 1.0))
        assert float((torch.tensor(answer.log_probs) - wanted).abs().mean()) < NEAR


@torch.no_grad()
def move(model: Decoder) -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    for parameter in model.parameters():
        parameter.add_(0.03 * torch.randn(parameter.shape, generator=generator, device="cuda"))


def test_log_probabilities_are_the_learners(engine: VllmEngine, model: Decoder) -> None:
    agree(engine, model)
    agree(engine, model, temperature=0.7)
    agree(engine, model, temperature=0.7, top_k=5)
    agree(engine, model, top_p=0.5)


def test_weights_arrive_by_handle_and_are_used(engine: VllmEngine, model: Decoder) -> None:
    sampling = Sampling(max_tokens=32, seed=1)
    before = ask_one(engine, PROMPT, sampling)
    move(model)
    engine.publish(1)
    after = ask_one(engine, PROMPT, sampling)
    assert before.tokens != after.tokens
    assert after.weights_version == 1
    agree(engine, model)


def test_a_seed_says_the_same_again(engine: VllmEngine) -> None:
    first, second = (ask_one(engine, PROMPT, Sampling(max_tokens=32, seed=3)) for _ in range(2))
    assert first.tokens == second.tokens


def test_memory_is_given_back_for_the_learner_and_taken_again(engine: VllmEngine, model: Decoder) -> None:
    free_before, _ = torch.cuda.mem_get_info()
    engine.rest()
    free_while, total = torch.cuda.mem_get_info()
    assert free_while - free_before > 0.1 * total
    engine.publish(2)
    agree(engine, model)


def test_its_death_is_reported(engine: VllmEngine) -> None:
    engine.process.process.kill()
    with pytest.raises(InfrastructureFailure, match="died"):
        ask_one(engine, PROMPT, Sampling(max_tokens=1000))
