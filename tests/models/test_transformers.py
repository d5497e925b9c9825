"""Folders are exchanged with `transformers` both ways, and the same tokens give the same logits."""

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

from toolwright.failures import UserError
from toolwright.models import huggingface
from toolwright.models.attention import PackedAttention
from toolwright.models.decoder import Decoder
from toolwright.models.tokenizer import Tokenizer

SMALL: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 64,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 16}
LONG = {
    "short_factor": [1.0] * 4,
    "long_factor": [2.0] * 4,
    "original_max_position_embeddings": 32,
    "factor": 2.0,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama tied": ("Llama", {"tie_word_embeddings": True}),
    "llama grouped": ("Llama", {"num_key_value_heads": 2}),
    "llama grouped and tied": ("Llama", {"num_key_value_heads": 1, "tie_word_embeddings": True}),
    "llama 3.1 rope": ("Llama", {"rope_parameters": LLAMA3, "num_key_value_heads": 2}),
    "linear rope": ("Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}}),
    "dynamic rope": (
        "Llama",
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
    ),
    "yarn rope": ("Llama", {"rope_parameters": YARN}),
    "yarn rope, its length given": ("Qwen2", {"rope_parameters": {**YARN, "attention_factor": 1.3}}),
    "yarn rope of two scales": (
        "Qwen3",
        {
            "rope_parameters": {**YARN, "mscale": 1.2, "mscale_all_dim": 0.7, "truncate": False},
            "head_dim": 16,
        },
    ),
    "mistral": ("Mistral", {"num_key_value_heads": 2, "head_dim": 16}),
    "mistral without a window": ("Mistral", {"sliding_window": None}),
    "qwen2": ("Qwen2", {"num_key_value_heads": 2, "tie_word_embeddings": True}),
    "qwen2 with heads of their own size": ("Qwen2", {"head_dim": 16, "tie_word_embeddings": False}),
    "qwen3": ("Qwen3", {"num_key_value_heads": 2, "head_dim": 16, "rope_parameters": {"rope_theta": 1e6}}),
}
TOKENS = torch.randint(0, 40, (2, 48), generator=torch.Generator().manual_seed(0))


def random_model(kind: str, **changes: Any) -> Any:
    """Random weights of every kind, norms and biases too: a one or a zero would hide a mistake."""
    family, settings = MODELS[kind]
    config = getattr(transformers, f"{family}Config")(**{**SMALL, **settings, **changes})
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


@torch.no_grad()
def theirs(model: Any) -> Tensor:
    return model(TOKENS).logits


def ours(decoder: Decoder) -> Tensor:
    return torch.stack([tiny.logits(decoder, row.tolist()) for row in TOKENS])


def assert_same(one: Tensor, other: Tensor) -> None:
    """To float32 rounding, which two layers amplify a little."""
    assert float(one.std()) > 0.1, "logits that say nothing prove nothing"
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", MODELS)
def test_what_transformers_saved_gives_the_same_logits_here(kind: str, tmp_path: Path) -> None:
    model = random_model(kind)
    model.save_pretrained(tmp_path)
    assert_same(ours(huggingface.load(tmp_path)), theirs(model))


@pytest.mark.parametrize("kind", MODELS)
def test_what_we_save_gives_the_same_logits_there(kind: str, tmp_path: Path) -> None:
    random_model(kind).save_pretrained(tmp_path / "theirs")
    decoder = huggingface.load(tmp_path / "theirs")
    huggingface.save(decoder, tmp_path / "ours")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    assert type(model).__name__ == MODELS[kind][0] + "ForCausalLM"
    assert_same(ours(decoder), theirs(model))
    attended = ("sliding_window", "max_position_embeddings", "tie_word_embeddings", "rope_parameters")
    original = transformers.AutoConfig.from_pretrained(tmp_path / "theirs")
    for key in attended:
        assert getattr(model.config, key, None) == getattr(original, key, None), key


@pytest.mark.parametrize("kind", MODELS)
def test_gradients_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    model = random_model(kind)
    model.save_pretrained(tmp_path)
    decoder = huggingface.load(tmp_path)
    model(TOKENS, labels=TOKENS).loss.backward()
    attend = PackedAttention([48, 48], torch.device("cpu"))
    logits = decoder.head(decoder.hidden(TOKENS.flatten(), attend.positions, attend)).view(2, 48, -1)
    cross_entropy(logits[:, :-1].flatten(0, 1), TOKENS[:, 1:].flatten()).backward()
    with torch.no_grad():
        for parameter in decoder.parameters():
            assert parameter.grad is not None
            parameter.copy_(parameter.grad)
    ours = huggingface.to_hub(
        decoder.shape, decoder.state_dict()
    )  # gradients under the names they have there
    wanted = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert ours.keys() == wanted.keys()
    for name, gradient in wanted.items():
        torch.testing.assert_close(ours[name], gradient, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("kind", tiny.SHAPES)
def test_a_model_made_here_is_loaded_there(kind: str, tmp_path: Path) -> None:
    decoder = tiny.decoder(**{**tiny.SHAPES[kind], "vocab": 40})
    huggingface.save(decoder, tmp_path)
    assert_same(ours(decoder), theirs(transformers.AutoModelForCausalLM.from_pretrained(tmp_path)))


def test_saving_and_loading_here_keeps_every_bit(tmp_path: Path) -> None:
    decoder = tiny.decoder(kv_heads=2, tied=False)
    huggingface.save(decoder, tmp_path)
    loaded = huggingface.load(tmp_path)
    for name, tensor in decoder.state_dict().items():
        assert torch.equal(tensor, loaded.state_dict()[name]), name


def test_weights_in_several_files_are_put_together(tmp_path: Path) -> None:
    model = random_model("llama grouped")
    model.save_pretrained(tmp_path, max_shard_size="10KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    assert_same(ours(huggingface.load(tmp_path)), theirs(model))


def test_half_precision_weights_are_trained_in_float32(tmp_path: Path) -> None:
    random_model("llama").bfloat16().save_pretrained(tmp_path)
    decoder = huggingface.load(tmp_path)
    assert {p.dtype for p in decoder.parameters()} == {torch.float32}
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert_same(ours(decoder), theirs(model))


def test_a_shorter_context_changes_nothing_within_it_and_is_not_saved(tmp_path: Path) -> None:
    model = random_model("llama 3.1 rope")
    model.save_pretrained(tmp_path / "theirs")
    decoder = huggingface.load(tmp_path / "theirs", context=48)
    assert decoder.shape.context == 48
    assert_same(ours(decoder), theirs(model))
    huggingface.save(decoder, tmp_path / "ours")
    assert huggingface.read_shape(tmp_path / "ours").context == 64


@pytest.mark.parametrize("fast", [True, False])
def test_saved_weights_have_the_permissions_of_the_configuration(fast: bool, tmp_path: Path) -> None:
    random_model("llama").save_pretrained(tmp_path / "theirs")
    huggingface.save(huggingface.load(tmp_path / "theirs", fast=fast), tmp_path / "ours")
    config, weights = (tmp_path / "ours" / name for name in ("config.json", "model.safetensors"))
    assert weights.stat().st_mode == config.stat().st_mode


def test_a_scaling_that_was_added_to_a_newer_configuration_counts_as_it_does_there(tmp_path: Path) -> None:
    random_model("llama").save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"rope_scaling": scaling}))
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert model.config.rope_parameters["rope_type"] == "yarn"
    assert_same(ours(huggingface.load(tmp_path)), theirs(model))


def test_of_the_configuration_nothing_is_lost_that_is_still_true(tmp_path: Path) -> None:
    random_model("qwen2", attention_dropout=0.25, initializer_range=0.5).save_pretrained(tmp_path / "theirs")
    found = json.loads((tmp_path / "theirs" / "config.json").read_text())
    found |= {"dtype": "bfloat16", "auto_map": {"AutoModel": "code.py"}}
    (tmp_path / "theirs" / "config.json").write_text(json.dumps(found))
    huggingface.save(huggingface.load(tmp_path / "theirs"), tmp_path / "ours")
    written = json.loads((tmp_path / "ours" / "config.json").read_text())
    kept = found.keys() - {"dtype", "auto_map"}
    assert {key: written[key] for key in kept} == {key: found[key] for key in kept}
    assert written["torch_dtype"] == "float32", "what the file has"
    assert not {"dtype", "auto_map"} & written.keys()


VARIANTS: dict[str, tuple[str, dict[str, Any], str]] = {
    "biases that have no place here": ("llama", {"attention_bias": True}, "it has attention_bias"),
    "another activation": ("llama", {"hidden_act": "gelu"}, "its activation is 'gelu'"),
    "a window": ("mistral", {"sliding_window": 20}, "its attention reaches only 20 tokens back"),
    "a rope that is not known": (
        "llama",
        {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4, **LONG}},
        "its rope scaling is 'longrope'",
    ),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant_that_would_come_out_wrong_runs_by_its_own_forward(variant: str, tmp_path: Path) -> None:
    kind, changes, reason = VARIANTS[variant]
    model = random_model(kind, **changes)
    model.save_pretrained(tmp_path)
    decoder = huggingface.load(tmp_path)
    assert not decoder.fast
    assert_same(ours(decoder), theirs(model))
    with pytest.raises(UserError, match=r"model\.fast=yes: .*") as refused:
        huggingface.load(tmp_path, fast=True)
    assert reason in str(refused.value)


def test_a_window_as_long_as_the_context_makes_no_difference(tmp_path: Path) -> None:
    model = random_model("mistral", sliding_window=48)
    model.save_pretrained(tmp_path)
    decoder = huggingface.load(tmp_path, context=48)
    assert decoder.fast
    assert_same(ours(decoder), theirs(model))


def test_what_could_be_fast_can_be_asked_to_run_by_its_own_forward(tmp_path: Path) -> None:
    model = random_model("qwen3")
    model.save_pretrained(tmp_path)
    decoder = huggingface.load(tmp_path, fast=False)
    assert not decoder.fast
    assert_same(ours(decoder), theirs(model))


class TestTheCharacterTokenizer:
    ALPHABET = "abc 123+=\n\té中😀"
    MESSAGES = (
        {"role": "system", "content": "add"},
        {"role": "user", "content": "1 + 2 =\n"},
        {"role": "assistant", "content": "3"},
    )

    @pytest.fixture
    def pair(self, tmp_path: Path) -> tuple[Tokenizer, Any]:
        tokenizer = Tokenizer.characters(self.ALPHABET)
        tokenizer.save(tmp_path)
        return tokenizer, transformers.AutoTokenizer.from_pretrained(tmp_path)

    @pytest.mark.parametrize(
        "text", ["", "abc", "1 + 2 =\n3", "é中😀", " \t ", "a<|end|>b", "never seen: XYZ", "<|user|>a<|"]
    )
    def test_gives_the_same_tokens_there(self, pair: tuple[Tokenizer, Any], text: str) -> None:
        mine, other = pair
        assert mine.encode(text) == other(text, add_special_tokens=False)["input_ids"]
        assert mine.encode(text) == other(text)["input_ids"], "and nothing is added by itself"
        tokens = mine.encode(text)
        assert mine.decode(tokens) == other.decode(tokens, skip_special_tokens=True)

    @pytest.mark.parametrize("generate", [True, False])
    def test_writes_the_same_conversation_there(self, pair: tuple[Tokenizer, Any], generate: bool) -> None:
        mine, other = pair
        text = mine.render(self.MESSAGES, generate=generate)
        assert text == other.apply_chat_template(
            list(self.MESSAGES), tokenize=False, add_generation_prompt=generate
        )
        assert text.endswith("<|assistant|>3<|end|>" + "<|assistant|>" * generate)

    def test_ends_with_the_same_token_there(self, pair: tuple[Tokenizer, Any]) -> None:
        mine, other = pair
        assert mine.end == other.eos_token_id
        assert mine.end_tokens == {other.eos_token_id}
        assert other.pad_token_id not in (None, other.eos_token_id)
        assert mine.size == len(other)

    def test_is_itself_again_when_loaded(self, pair: tuple[Tokenizer, Any], tmp_path: Path) -> None:
        mine, _ = pair
        again = Tokenizer.load(tmp_path)
        assert again.encode("1 + é<|end|>") == mine.encode("1 + é<|end|>")
        assert (again.end, again.end_tokens, again.size) == (mine.end, mine.end_tokens, mine.size)
        assert again.render(self.MESSAGES) == mine.render(self.MESSAGES)

    def test_a_tokenizer_that_is_saved_again_is_still_read_by_transformers(
        self, pair: tuple[Tokenizer, Any], tmp_path: Path
    ) -> None:
        _, other = pair
        Tokenizer.load(tmp_path).save(tmp_path / "again")
        again = transformers.AutoTokenizer.from_pretrained(tmp_path / "again")
        assert again("1 + 2")["input_ids"] == other("1 + 2")["input_ids"]
        assert again.chat_template == other.chat_template
