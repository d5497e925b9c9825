"""Mixture of experts: the numbers of `transformers`, whatever other tokens there are, and routes replayed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
import transformers
from torch import Tensor
from torch.nn.functional import cross_entropy

from toolwright.batch import Batch
from toolwright.failures import UserError
from toolwright.learner.forward import learn
from toolwright.models import huggingface, lora, showing
from toolwright.models.attention import PackedAttention
from toolwright.models.decoder import Decoder
from toolwright.models.experts import ExpertGroups, ExpertShape, RouterLog, apart
from toolwright.models.tokenizer import Tokenizer

CPU = torch.device("cpu")
SMALL: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "moe_intermediate_size": 24,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "shares as they are": {"norm_topk_prob": False},
    "shares that add up to one": {"norm_topk_prob": True},
    "some layers plain": {"mlp_only_layers": [1], "norm_topk_prob": True},
    "every second layer": {"decoder_sparse_step": 2},
    "all experts at once": {"num_experts_per_tok": 6},
}


def theirs(folder: Path, *, joined: bool = False, **changes: Any) -> Any:
    """A model of `transformers` with opinions, and its folder. `joined`: experts in one tensor."""
    torch.manual_seed(0)
    made: Any = transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**{**SMALL, **changes}))
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() >= 2:
                parameter.normal_(0, 0.2)
    made.save_pretrained(folder, save_original_format=not joined)
    return made


def logits(decoder: Decoder, tokens: Tensor) -> Tensor:
    attend = PackedAttention([len(tokens)], CPU)
    return decoder.head(decoder(tokens, attend.positions, attend))


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("kind", CONFIGS)
def test_logits_and_gradients_are_those_of_transformers(kind: str, joined: bool, tmp_path: Path) -> None:
    model = theirs(tmp_path, joined=joined, **CONFIGS[kind])
    decoder = huggingface.load(tmp_path, fast=True)
    tokens = torch.arange(21) * 7 % 40
    ours, expected = logits(decoder, tokens), model(input_ids=tokens[None]).logits[0]
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)
    for found in (ours, expected):
        cross_entropy(found[:-1], tokens[1:]).backward()
    gradients = {name: p.grad for name, p in decoder.named_parameters() if p.grad is not None}
    named = huggingface.to_hub(decoder.shape, gradients)
    for name, gradient in apart({n: p.grad for n, p in model.named_parameters()}).items():
        torch.testing.assert_close(named[name], gradient, rtol=1e-5, atol=1e-5)


def test_a_saved_folder_is_read_by_transformers(tmp_path: Path) -> None:
    model = theirs(tmp_path / "a", **CONFIGS["some layers plain"])
    huggingface.save(huggingface.load(tmp_path / "a"), tmp_path / "b")
    again: Any = transformers.Qwen3MoeForCausalLM.from_pretrained(tmp_path / "b")
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name


def test_a_tokens_numbers_do_not_depend_on_the_tokens_beside_it() -> None:
    model = tiny.decoder(**tiny.SHAPES["experts"])
    rows = [[(n * 5 + i * 3) % 16 for i in range(2 + n % 7)] for n in range(40)]
    attend = PackedAttention([len(row) for row in rows], CPU)
    with torch.no_grad():
        hidden = model.hidden(torch.tensor([t for row in rows for t in row]), attend.positions, attend)
        together = model.head(hidden).split([len(row) for row in rows])
    for row, found in zip(rows, together, strict=True):
        assert torch.equal(found, tiny.logits(model, row))


def test_grouped_products_in_bfloat16_are_those_of_each_expert() -> None:
    x = torch.randn(9, 16, dtype=torch.bfloat16)
    matrices = torch.randn(4, 24, 16, dtype=torch.bfloat16).transpose(1, 2)
    chosen = torch.tensor([[0], [0], [1], [1], [1], [3], [3], [3], [3]])
    groups = ExpertGroups.of(chosen, 4)
    assert groups.counts.tolist() == [2, 3, 0, 4]
    expected = torch.stack([row @ matrices[expert] for row, expert in zip(x, chosen[:, 0], strict=True)])
    torch.testing.assert_close(groups.product(x, matrices), expected, rtol=1e-2, atol=1e-2)
    ends = groups.counts.cumsum(0, dtype=torch.int32)
    by_torch = torch.nn.functional.grouped_mm(x, matrices, offs=ends)
    torch.testing.assert_close(by_torch, expected, rtol=1e-2, atol=1e-2)


def test_the_loss_that_spreads_tokens_is_that_of_transformers(tmp_path: Path) -> None:
    model = theirs(tmp_path, norm_topk_prob=True, output_router_logits=True, router_aux_loss_coef=0.5)
    decoder, tokens = huggingface.load(tmp_path), torch.arange(20) % 40
    shape = decoder.shape.experts
    assert shape is not None
    assert shape.balance == 0.5
    log, attend = RouterLog(shape), PackedAttention([20], CPU)
    decoder(tokens, attend.positions, attend, log)
    expected = model(input_ids=tokens[None], output_router_logits=True, labels=tokens[None]).aux_loss
    torch.testing.assert_close(log.imbalance(), expected, rtol=1e-5, atol=1e-5)
    found = log.metrics()
    assert 0 < found["expert_entropy"] <= 1
    assert 1 / 6 <= found["expert_max_share"] <= 0.5


def test_the_spreading_loss_moves_only_what_it_can(tmp_path: Path) -> None:
    theirs(tmp_path, norm_topk_prob=True, output_router_logits=True, router_aux_loss_coef=0.5)
    decoder = huggingface.load(tmp_path)
    batch = Batch.pack([tiny.trajectory([("prompt", [1, 2, 3]), ("policy", [4, 5, 6, 7])])])
    learn(decoder, batch, lambda _, now: 0.0 * now.log_prob.sum(), temperature=1.0, dtype=torch.float32)
    last = decoder.layers[-1]
    assert last.router.weight.grad.any()  # type: ignore[union-attr, operator]
    assert not last.down.weight.grad.any()  # type: ignore[union-attr, operator]


def test_an_adapter_is_of_attention_and_leaves_experts_alone() -> None:
    model = tiny.decoder(**tiny.SHAPES["experts"])
    names = lora.matched(model, "all-linear")
    assert "model.layers.0.self_attn.q_proj" in names
    assert "model.layers.1.mlp.down_proj" in names  # a plain layer
    assert not [name for name in names if "expert" in name or "layers.0.mlp" in name]
    assert lora.matched(model, ["self_attn.o_proj"])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_experts_per_tok": 9}, "num_experts_per_tok=9 is more than num_experts=6"),
        ({"moe_intermediate_size": 0}, "moe_intermediate_size=0 should be a whole number above 0"),
        ({"num_experts": 7}, "has no tensor model.layers.0.mlp.experts.6.gate_proj.weight"),
    ],
)
def test_a_folder_that_cannot_be_is_refused_in_words(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    theirs(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["num_local_experts"]
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_experts": 6, **changes}))
    with pytest.raises(UserError, match=said):
        huggingface.load(tmp_path)


def test_a_folder_is_described_with_its_experts(tmp_path: Path) -> None:
    words = Tokenizer.bytes()
    model = theirs(tmp_path, vocab_size=words.size)
    words.save(tmp_path)
    rows = dict(showing.describe(tmp_path))
    idle = 3 * 4 * 3 * 24 * 32
    active = sum(p.numel() for p in model.parameters()) - idle
    assert rows["experts"] == f"2 of 6 for a token, 24 wide: {active:,} parameters are active"
    assert rows["fast path"] == "yes"


def test_idle_parameters_are_those_of_unused_experts() -> None:
    shape = tiny.shape(**tiny.SHAPES["experts"])
    assert shape.experts == ExpertShape(count=6, used=2, ffn=24, normalised=True, dense=(1,))
    assert shape.idle_parameters == 2 * 4 * 3 * 24 * 32
    assert tiny.shape().idle_parameters == 0
