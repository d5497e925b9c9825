"""Adapters: exchanged with peft both ways, learned and published alone, held against what they began as."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
import transformers
from rounding import assert_same_sum
from safetensors.torch import load_file
from torch import Tensor

from toolwright.batch import Batch
from toolwright.config import schema
from toolwright.failures import UserError
from toolwright.learner.objective import Objective
from toolwright.learner.policy import AdapterReference, Policy
from toolwright.models import adapter_folder, huggingface, lora
from toolwright.models.decoder import Decoder
from toolwright.models.precision import loosen

from .test_own_forward import packed_logits, policy_of, sampled, some_rows
from .test_own_forward import random_model as another_model
from .test_transformers import random_model

peft = pytest.importorskip("peft", reason="peft is not installed: pip install toolwright[lora]")

KINDS = ["llama grouped", "qwen2", "qwen3", "gpt2", "bloom: no positions but distances"]


@pytest.fixture(params=KINDS)
def base(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    kind = request.param
    folder = tmp_path / "base"
    (another_model if kind.startswith(("gpt", "bloom")) else random_model)(kind).save_pretrained(folder)
    return folder


def adapted(base: Path, *, targets: str | list[str] = "all-linear", spread: float = 0.2) -> Decoder:
    """With an adapter that has something to say; a fresh one adds nothing."""
    decoder = huggingface.load(base, context=48)
    adapter = lora.Adapter(4, 8.0, 2.0, base=str(base))
    lora.attach(decoder, adapter, lora.matched(decoder, targets), seed=0)
    with torch.no_grad():
        for tensor in lora.learned(decoder).values():
            tensor.add_(spread * torch.randn(tensor.shape, generator=torch.Generator().manual_seed(1)))
    return decoder


def with_peft(base: Path, folder: Path) -> Any:
    return peft.PeftModel.from_pretrained(transformers.AutoModelForCausalLM.from_pretrained(base), folder)


def theirs(model: Any) -> list[Tensor]:
    with torch.no_grad():
        return [model(torch.tensor([row])).logits[0] for row in some_rows()]


def ours(decoder: Decoder) -> list[Tensor]:
    return packed_logits(decoder, some_rows())


def assert_same(one: list[Tensor], other: list[Tensor]) -> None:
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-5)


def test_peft_loads_what_we_save(base: Path, tmp_path: Path) -> None:
    decoder = adapted(base)
    adapter_folder.save(decoder, tmp_path / "adapter")
    assert {file.name for file in (tmp_path / "adapter").iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    assert_same(ours(decoder), theirs(with_peft(base, tmp_path / "adapter")))
    plain = huggingface.load(base, context=48)
    assert float((ours(plain)[0] - ours(decoder)[0]).abs().max()) > 0.01, "it adds something"


def test_we_load_what_peft_saves(base: Path, tmp_path: Path) -> None:
    rslora = "qwen" in json.loads((base / "config.json").read_text())["model_type"]
    model = transformers.AutoModelForCausalLM.from_pretrained(base)
    config = peft.LoraConfig(
        r=3, lora_alpha=5, target_modules="all-linear", use_rslora=rslora, task_type="CAUSAL_LM"
    )
    model = peft.get_peft_model(model, config).eval()
    torch.manual_seed(2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(tmp_path / "adapter")
    decoder = huggingface.load(base, context=48)
    adapter_folder.load(decoder, tmp_path / "adapter", base=base)
    assert_same(ours(decoder), theirs(model))
    adapter_folder.save(decoder, tmp_path / "again")
    first, again = (load_file(tmp_path / name / "adapter_model.safetensors") for name in ("adapter", "again"))
    assert first.keys() == again.keys()
    assert all(torch.equal(first[name], again[name]) for name in first), "not a bit is lost"


def test_merged_into_the_base_it_is_an_ordinary_model(base: Path, tmp_path: Path) -> None:
    decoder = adapted(base)
    huggingface.save(decoder, tmp_path / "merged")
    assert_same(ours(decoder), theirs(transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged")))
    assert huggingface.load(tmp_path / "merged").fast == decoder.fast


def test_a_disabled_adapter_gives_the_base_bit_for_bit(base: Path) -> None:
    decoder, plain = adapted(base), huggingface.load(base, context=48)
    assert decoder.adapter is not None
    with decoder.adapter.off():
        for a, b in zip(ours(decoder), ours(plain), strict=True):
            assert torch.equal(a, b)
    assert not torch.equal(ours(decoder)[0], ours(plain)[0])


def test_only_the_adapter_learns_and_the_engine_uses_it(base: Path) -> None:
    decoder = adapted(base, spread=0.05)
    policy, objective = policy_of(decoder), Objective(schema.Algorithm(), norm_tokens=16)
    reference = AdapterReference(policy)
    prompts = [row[: 5 + i] for i, row in enumerate(some_rows()) for _ in range(2)]
    frozen = {n: p.detach().clone() for n, p in decoder.named_parameters() if not p.requires_grad}
    says = []
    for step in range(3):
        attempts = sampled(decoder, prompts)
        says.append([t.tokens for t in attempts])
        batch = Batch.pack(attempts)
        found = policy.statistics(batch)["log_prob"]
        assert float((found - batch.columns["sampled_log_prob"]).abs().max()) <= 1e-5, f"step {step}"
        away = reference.statistics(batch)["log_prob"]
        assert torch.equal(found, away) == (step == 0), "the reference is the adapter as it was at the start"
        batch.columns["advantages"] = torch.randn(
            len(batch.actions), generator=torch.Generator().manual_seed(step)
        )
        assert not policy.update(batch, objective)["skipped"]
    assert says[0] != says[2], "the engine speaks as the adapter has learned"
    for name, parameter in decoder.named_parameters():
        assert name not in frozen or torch.equal(parameter, frozen[name]), name
    state = policy.state_dict()
    assert (
        state["model"].keys() == state["optimizer"]["adamw"]["state"].keys() == lora.learned(decoder).keys()
    )


@pytest.mark.parametrize("targets", [["q_proj", "v_proj"], ["down_proj"], "model.layers.1.mlp.up_proj"])
def test_only_what_was_asked_for_is_adapted(targets: str | list[str], tmp_path: Path) -> None:
    random_model("qwen3").save_pretrained(tmp_path / "base")
    decoder = adapted(tmp_path / "base", targets=targets)
    adapter_folder.save(decoder, tmp_path / "adapter")
    named = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())["target_modules"]
    assert named == ([targets] if isinstance(targets, str) else targets)
    assert_same(ours(decoder), theirs(with_peft(tmp_path / "base", tmp_path / "adapter")))


def test_the_gradient_of_an_adapter_is_that_of_peft(tmp_path: Path) -> None:
    random_model("qwen2").save_pretrained(tmp_path / "base")
    decoder = adapted(tmp_path / "base")
    adapter_folder.save(decoder, tmp_path / "adapter")
    model = peft.PeftModel.from_pretrained(
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base"),
        tmp_path / "adapter",
        is_trainable=True,
    )
    row = some_rows()[0]
    model(torch.tensor([row]), labels=torch.tensor([row])).loss.backward()
    attend = tiny.PackedAttention([len(row)], torch.device("cpu"))
    logits = decoder.head(decoder(torch.tensor(row), attend.positions, attend))
    torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(row[1:])).backward()
    learned = {n: p.grad for n, p in decoder.named_parameters() if p.requires_grad}
    assert all(gradient is not None for gradient in learned.values())
    adapter_folder.save(decoder, tmp_path / "gradients", state=learned)  # type: ignore[arg-type]
    found = load_file(tmp_path / "gradients" / "adapter_model.safetensors")
    shape = decoder.shape  # from the loss back to the first layer: a sum over each of these
    terms = len(row) + shape.vocab + shape.layers * (3 * shape.width + shape.ffn + len(row))
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert_same_sum(found[name.replace(".default", "")], parameter.grad, terms=terms, name=name)


@torch.no_grad()
def test_in_bfloat16_small_changes_are_not_rounded_away(base: Path) -> None:
    """Whatever forward the sums are for: of all that is added to a base that was stored in bfloat16."""
    decoder = adapted(base, spread=3e-4)
    for parameter in decoder.parameters():
        if not parameter.requires_grad:
            parameter.copy_(parameter.bfloat16())

    def kept() -> float:
        seen, whole = 0.0, 0.0
        for name, low in lora.parts(decoder):
            weight = decoder.get_parameter(decoder.matrix_of(name))
            with torch.autocast("cpu", dtype=torch.bfloat16):
                added, found = (
                    low(torch.zeros_like(weight)),
                    low(weight).bfloat16() - weight.bfloat16().float(),
                )
            seen, whole = seen + float((found * added).sum()), whole + float(added.square().sum())
        return seen / whole

    assert kept() < 0.8
    loosen(decoder, torch.bfloat16)
    assert kept() == pytest.approx(1.0, abs=0.05)


def test_a_policy_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    random_model("qwen3").save_pretrained(tmp_path)
    objective = Objective(schema.Algorithm(), norm_tokens=16)

    def update(policy: Policy, seed: int) -> None:
        policy.update(tiny.batch(4, seed=seed), objective)

    whole = policy_of(adapted(tmp_path))
    update(whole, 0)
    kept = {name: tensor.clone() for name, tensor in whole.state_dict()["model"].items()}
    again = policy_of(adapted(tmp_path, spread=0.0))
    again.load_state_dict({"model": kept, "optimizer": whole.state_dict()["optimizer"]})
    for policy in (whole, again):
        update(policy, 1)
    for name, tensor in whole.state_dict()["model"].items():
        assert torch.equal(tensor, again.state_dict()["model"][name]), name


class TestAnAdapterThatDoesNotFit:
    def refusal(self, tmp_path: Path, **changes: Any) -> str:
        random_model("llama").save_pretrained(tmp_path / "one")
        random_model("llama", **changes).save_pretrained(tmp_path / "other")
        adapter_folder.save(adapted(tmp_path / "one"), tmp_path / "adapter")
        decoder = huggingface.load(tmp_path / "other")
        with pytest.raises(Exception, match="is of another base") as refused:
            adapter_folder.load(decoder, tmp_path / "adapter", base=tmp_path / "other")
        return str(refused.value)

    def test_a_base_of_fewer_layers(self, tmp_path: Path) -> None:
        said = self.refusal(tmp_path, num_hidden_layers=1)
        assert "it adapts model.layers.1.mlp.down_proj, which" in said
        assert f"it was made for {tmp_path / 'one'}" in said

    def test_a_wider_base(self, tmp_path: Path) -> None:
        said = self.refusal(tmp_path, hidden_size=64)
        assert "lora_A of model.layers.0.self_attn.q_proj is 4 × 32, and" in said
        assert "needs 4 × 64" in said

    def test_a_base_of_the_same_shape_and_other_weights(self, tmp_path: Path) -> None:
        random_model("llama").save_pretrained(tmp_path / "one")
        adapter = adapted(tmp_path / "one")
        adapter_folder.save(adapter, tmp_path / "adapter")
        huggingface.save(adapter, tmp_path / "merged")
        random_model("llama").bfloat16().save_pretrained(tmp_path / "moved", max_shard_size="20KB")
        decoder = huggingface.load(tmp_path / "moved")
        adapter_folder.load(decoder, tmp_path / "adapter", base=tmp_path / "moved")
        decoder = huggingface.load(tmp_path / "merged")
        with pytest.raises(
            UserError, match=r"is of another base: it was made for .*/one, whose weights differ"
        ):
            adapter_folder.load(decoder, tmp_path / "adapter", base=tmp_path / "merged")

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("use_dora", True),
            ("modules_to_save", ["lm_head"]),
            ("bias", "all"),
            ("init_lora_weights", "pissa_niter_4"),
            ("layer_replication", [[0, 2], [1, 2]]),
        ],
    )
    def test_an_adapter_that_would_be_wrong_is_refused(self, tmp_path: Path, key: str, value: Any) -> None:
        random_model("llama").save_pretrained(tmp_path / "base")
        adapter_folder.save(adapted(tmp_path / "base"), tmp_path / "adapter")
        path = tmp_path / "adapter" / "adapter_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
        with pytest.raises(Exception, match=f"{key}=.* is not supported"):
            adapter_folder.load(huggingface.load(tmp_path / "base"), tmp_path / "adapter", base=tmp_path)
