"""Architectures that are not ours: by their own forward they learn, sample, and keep their own numbers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
import transformers
from torch import Tensor

from toolwright import engines
from toolwright.batch import Batch
from toolwright.config import schema
from toolwright.engines import Completion, Sampling
from toolwright.failures import UserError
from toolwright.learner.objective import Objective
from toolwright.learner.policy import Policy
from toolwright.models import huggingface
from toolwright.models.attention import PackedAttention
from toolwright.models.decoder import Decoder
from toolwright.models.precision import autocast
from toolwright.trajectory import Segment, Task, Trajectory

TOKENIZER = tiny.characters(ends=False)
SMALL: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
GEMMA = {"intermediate_size": 48, "num_key_value_heads": 2, "head_dim": 16, "pad_token_id": 0}
# class, settings, and whether attention can be handed in
MODELS: dict[str, tuple[str, dict[str, Any], bool]] = {
    "gpt2": ("GPT2", {}, True),
    "gpt-neox": ("GPTNeoX", {"intermediate_size": 48}, True),
    "gemma": ("Gemma", GEMMA, True),
    "phi": ("Phi", {"intermediate_size": 48}, True),
    "opt": ("OPT", {"ffn_dim": 48, "word_embed_proj_dim": 32}, True),
    "gemma 2: capped, and not looking far": ("Gemma2", {**GEMMA, "sliding_window": 8}, False),
    "bloom: no positions but distances": ("Bloom", {}, False),
    "mamba: a state, no attention": (
        "Mamba",
        {"state_size": 4, "num_hidden_layers": 2, "vocab_size": 40, "hidden_size": 32},
        False,
    ),
}


def random_model(kind: str) -> Any:
    family, settings, _ = MODELS[kind]
    config = getattr(transformers, f"{family}Config")(**({} if family == "Mamba" else SMALL) | settings)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


@pytest.fixture(params=MODELS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def folder(kind: str, tmp_path: Path) -> Path:
    random_model(kind).save_pretrained(tmp_path / "theirs")
    return tmp_path / "theirs"


@torch.no_grad()
def packed_logits(decoder: Decoder, rows: list[list[int]]) -> list[Tensor]:
    attend = PackedAttention([len(row) for row in rows], torch.device("cpu"))
    tokens = torch.tensor([token for row in rows for token in row])
    logits = decoder.head(decoder(tokens, attend.positions, attend))
    return list(logits.split([len(row) for row in rows]))


def some_rows() -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(0, 40, (n,), generator=generator).tolist() for n in (30, 3, 17)]


def test_packed_sequences_do_not_see_each_other(kind: str, folder: Path) -> None:
    decoder = huggingface.load(folder, context=48)
    assert not decoder.fast
    assert decoder.exact == MODELS[kind][2]
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    rows = some_rows()
    for row, ours in zip(rows, packed_logits(decoder, rows), strict=True):
        with torch.no_grad():
            theirs = model(torch.tensor([row])).logits[0]
        assert float(theirs.std()) > 0.05, "logits that say nothing prove nothing"
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def sampled(decoder: Decoder, prompts: list[list[int]], *, turns: int = 2) -> list[Trajectory]:
    """Attempts of several turns, a tool's answer in between, through the native engine."""
    config = schema.EngineConfig(name="native", slots=4)
    engine = engines.registry.get("native").target(
        config, decoder=decoder, tokenizer=TOKENIZER, dtype=torch.float32
    )

    async def one(number: int, prompt: list[int]) -> Trajectory:
        made = Trajectory(Task(str(number), []), group=str(number // 2), index=number)
        made.append(Segment("prompt", prompt, []))
        for turn in range(turns):
            said: Completion = await engine.generate(
                made.tokens, Sampling(max_tokens=4 + number % 3, seed=number), attempt=str(number)
            )
            made.append(Segment("policy", said.tokens, said.log_probs))
            if turn < turns - 1:
                made.append(Segment("tool", [5, 6, 7][: 1 + number % 3], []))
        engine.release(str(number))
        return made

    async def every() -> list[Trajectory]:
        return await asyncio.gather(*(one(i, prompt) for i, prompt in enumerate(prompts)))

    return asyncio.run(every())


def policy_of(decoder: Decoder) -> Policy:
    return Policy(
        decoder,
        schema.OptimizerConfig(lr=0.01),
        total_updates=3,
        temperature=1.0,
        micro_tokens=120,
        dtype=torch.float32,
    )


def test_engine_and_learner_agree_while_it_learns(kind: str, folder: Path) -> None:
    decoder = huggingface.load(folder, context=48)
    policy, objective = policy_of(decoder), Objective(schema.Algorithm(), norm_tokens=16)
    prompts = [row[: 5 + i] for i, row in enumerate(some_rows() * 2) for _ in range(2)]
    before = [parameter.detach().clone() for parameter in decoder.parameters()]
    for step in range(2):
        batch = Batch.pack(sampled(decoder, prompts))
        assert len(batch.split(policy.budget.tokens)) > 1
        found = policy.statistics(batch)["log_prob"]
        assert float((found - batch.columns["sampled_log_prob"]).abs().max()) <= 1e-5, f"step {step}"
        generator = torch.Generator().manual_seed(step)
        batch.columns["advantages"] = torch.randn(len(batch.actions), generator=generator)
        metrics = policy.update(batch, objective)
        assert metrics["gap/abs_max"] <= 1e-5
        assert not metrics["skipped"]
    moved = [float((a - b).detach().abs().max()) for a, b in zip(before, decoder.parameters(), strict=True)]
    assert max(moved) > 0.005, "the weights have really changed"


def test_transformers_reads_what_an_own_forward_learned(kind: str, folder: Path, tmp_path: Path) -> None:
    decoder = huggingface.load(folder, context=48)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.mul_(1.1)
    huggingface.save(decoder, tmp_path / "ours")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    assert model.config._attn_implementation != "toolwright"
    row = some_rows()[0]
    with torch.no_grad():
        theirs = model(torch.tensor([row])).logits[0]
    torch.testing.assert_close(packed_logits(decoder, [row])[0], theirs, rtol=1e-5, atol=1e-5)


def test_layers_computed_again_on_the_way_back_give_the_same_gradient(kind: str, folder: Path) -> None:
    gradients = []
    for recompute in (False, True):
        decoder = huggingface.load(folder, context=48).recomputing(recompute)
        attend = PackedAttention([9, 4], torch.device("cpu"))
        tokens = torch.arange(13) % 40
        decoder.head(decoder(tokens, attend.positions, attend)).log_softmax(-1)[:, 3].sum().backward()
        gradients.append([p.grad for p in decoder.parameters() if p.grad is not None])
    for kept, again in zip(*gradients, strict=True):
        torch.testing.assert_close(kept, again)


def test_bfloat16_is_close(kind: str, folder: Path) -> None:
    decoder = huggingface.load(folder, context=48)
    exact = packed_logits(decoder, some_rows())
    with autocast(torch.device("cpu"), torch.bfloat16):
        rounded = packed_logits(decoder, some_rows())
    for one, other in zip(exact, rounded, strict=True):
        assert other.dtype == torch.float32
        assert 0 < float((one - other).abs().mean()) < 0.1 * float(one.std())


def test_positions_that_depend_on_the_longest_neighbour_end_before_they_do(tmp_path: Path) -> None:
    """`longrope` turns all that lies in one batch with a sequence longer than the original otherwise."""
    long = {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": [1.0] * 4,
        "long_factor": [3.0] * 4,
    }
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.Phi3Config(
        **sizes,
        vocab_size=40,
        max_position_embeddings=64,
        original_max_position_embeddings=24,
        rope_parameters=long,
        pad_token_id=0,
    )
    transformers.Phi3ForCausalLM(config).save_pretrained(tmp_path)
    assert huggingface.read_shape(tmp_path, context=48).context == 24
    assert huggingface.load(tmp_path, context=16).shape.context == 16


def test_sizes_that_do_not_go_together_are_reported(tmp_path: Path) -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = transformers.MixtralConfig(
        **sizes, num_key_value_heads=4, vocab_size=40, num_local_experts=2, num_experts_per_tok=3
    )
    transformers.MixtralForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="its own forward fails: selected index k out of range"):
        huggingface.load(tmp_path)


def test_numbers_that_are_none_are_reported(tmp_path: Path) -> None:
    model = random_model("gpt2")
    with torch.no_grad():
        model.transformer.ln_f.bias[3] = float("inf")
    model.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"transformer\.ln_f\.bias has numbers that are not finite"):
        huggingface.load(tmp_path)
