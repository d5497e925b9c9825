"""A folder that is not a model's is answered with what is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file

from toolwright.failures import UserError
from toolwright.models import huggingface, template_check
from toolwright.models.tokenizer import Tokenizer

MESSAGES = [{"role": "user", "content": "1+1"}]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A whole and healthy one, for the tests to damage."""
    huggingface.save(tiny.decoder(tied=False, kv_heads=2), tmp_path)
    tiny.characters().save(tmp_path)
    huggingface.load(tmp_path)
    Tokenizer.load(tmp_path).render(MESSAGES)
    return tmp_path


def change(path: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))


def complaint(act: Callable[[Path], object], folder: Path) -> str:
    with pytest.raises(UserError) as caught:
        act(folder)
    message = str(caught.value)
    assert str(folder) in message, "it says where"
    return message


class TestTheModel:
    def test_no_config(self, folder: Path) -> None:
        (folder / "config.json").unlink()
        assert "is not a model folder: it has no config.json" in complaint(huggingface.load, folder)

    def test_no_folder(self, folder: Path) -> None:
        assert "is not a model folder" in complaint(huggingface.load, folder / "gone")

    @pytest.mark.parametrize("content", ['{"model_type": "llama",', "", "\x00\x01"])
    def test_a_config_that_is_not_json(self, folder: Path, content: str) -> None:
        (folder / "config.json").write_text(content)
        assert "config.json is not valid JSON" in complaint(huggingface.load, folder)

    def test_a_config_that_is_not_even_text(self, folder: Path) -> None:
        (folder / "config.json").write_bytes(b"\xff\xfe\x80")
        assert "config.json is not valid JSON" in complaint(huggingface.load, folder)

    def test_a_config_that_is_a_list(self, folder: Path) -> None:
        (folder / "config.json").write_text("[1, 2]")
        assert "must hold a JSON object, and holds a list" in complaint(huggingface.load, folder)

    @pytest.mark.parametrize("value", [None, "x", -1, 0, 1.5, True, [], {}])
    @pytest.mark.parametrize("key", sorted({*huggingface.SIZES, "rope_parameters", "rms_norm_eps"}))
    def test_a_config_with_a_value_that_cannot_be(self, folder: Path, key: str, value: Any) -> None:
        if value is None and key in (*huggingface.MAY_BE_NULL, "rope_parameters"):
            return
        if key == "rope_parameters" and not value:
            return
        if key == "rms_norm_eps" and value == 1.5:
            return
        change(folder / "config.json", lambda config: config.update({key: value}))
        assert f"config.json: {key}={value!r} should be" in complaint(huggingface.load, folder)

    def test_heads_of_odd_size(self, folder: Path) -> None:
        change(folder / "config.json", lambda config: config.update(head_dim=7))
        assert "config.json: head_dim=7 is odd" in complaint(huggingface.load, folder)

    @pytest.mark.parametrize("header", ['{"a": {"data_offsets": []}}', '{"a": {"data_offsets": [0, 0]}}'])
    def test_weights_whose_header_lacks_something(self, folder: Path, header: str) -> None:
        raw = header.encode()
        (folder / "model.safetensors").write_bytes(len(raw).to_bytes(8, "little") + raw)
        assert "its header is damaged" in complaint(huggingface.load, folder)

    def test_an_index_that_names_no_files(self, folder: Path) -> None:
        (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": 1}}')
        (folder / "model.safetensors").unlink()
        assert "has no weight_map" in complaint(huggingface.load, folder)

    def test_an_architecture_of_another_family(self, folder: Path) -> None:
        change(folder / "config.json", lambda config: config.update(model_type="mamba"))
        message = complaint(partial(huggingface.load, fast=True), folder)
        assert "it is a 'mamba' model, but the fast path takes llama, mistral, qwen2, qwen3" in message
        assert "model.fast=auto runs it by its own forward" in message

    def test_an_architecture_that_nobody_knows(self, folder: Path) -> None:
        change(folder / "config.json", lambda config: config.update(model_type="abacus"))
        message = complaint(huggingface.read_shape, folder)
        assert "holds a 'abacus' model, which transformers" in message

    def test_a_model_that_writes_nothing(self, folder: Path) -> None:
        change(folder / "config.json", lambda config: config.update(model_type="vit"))
        message = complaint(huggingface.read_shape, folder)
        assert "holds a 'vit' model, which is not a causal language model" in message

    def test_a_config_that_does_not_say_how_wide_it_is(self, folder: Path) -> None:
        change(folder / "config.json", lambda config: config.pop("hidden_size"))
        assert "config.json has no hidden_size" in complaint(huggingface.load, folder)

    def test_no_weights(self, folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        assert "model.safetensors is missing" in complaint(huggingface.load, folder)

    @pytest.mark.parametrize("kept", [0, 5, 100, -200])
    def test_weights_cut_short(self, folder: Path, kept: int) -> None:
        path = folder / "model.safetensors"
        path.write_bytes(path.read_bytes()[:kept])
        assert "model.safetensors cannot be read as safetensors" in complaint(huggingface.load, folder)

    @pytest.mark.parametrize("gone", ["lm_head.weight", "model.layers.1.self_attn.k_proj.weight"])
    def test_a_missing_tensor(self, folder: Path, gone: str) -> None:
        weights = load_file(folder / "model.safetensors")
        del weights[gone]
        save_file(weights, folder / "model.safetensors")
        assert f"is incomplete: it has no tensor {gone}" in complaint(huggingface.load, folder)

    def test_a_tensor_of_another_size(self, folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        weights["model.norm.weight"] = torch.ones(7)
        save_file(weights, folder / "model.safetensors")
        message = complaint(huggingface.load, folder)
        assert "its weights do not fit its config.json: norm is 7, and should be 32" in message

    def test_a_shard_that_was_not_downloaded(self, folder: Path) -> None:
        index = {"weight_map": {"model.norm.weight": "model-00002-of-00002.safetensors"}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        (folder / "model.safetensors").unlink()
        assert "model-00002-of-00002.safetensors is missing" in complaint(huggingface.load, folder)

    def test_an_index_that_is_not_json(self, folder: Path) -> None:
        (folder / "model.safetensors.index.json").write_text("{")
        (folder / "model.safetensors").unlink()
        assert "index.json is not valid JSON" in complaint(huggingface.load, folder)

    def test_a_stale_index_beside_a_whole_file_is_ignored(self, folder: Path) -> None:
        (folder / "model.safetensors.index.json").write_text('{"weight_map": {"x": "gone.safetensors"}}')
        huggingface.load(folder)

    def test_shards_without_their_index(self, folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
        assert "and so is model.safetensors.index.json" in complaint(huggingface.load, folder)

    @pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "m.gguf"])
    def test_weights_of_another_kind(self, folder: Path, name: str) -> None:
        (folder / "model.safetensors").rename(folder / name)
        assert f"it has {name}: `toolwright model convert " in complaint(huggingface.load, folder)

    def test_numbers_that_are_none(self, folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        weights["model.layers.1.mlp.up_proj.weight"][3, 4] = float("nan")
        save_file(weights, folder / "model.safetensors")
        message = complaint(huggingface.load, folder)
        assert "is damaged: model.layers.1.mlp.up_proj.weight has numbers that are not finite" in message

    def test_quantised_weights(self, folder: Path) -> None:
        change(folder / "config.json", lambda c: c.update(quantization_config={"quant_method": "fp8"}))
        assert "its weights are quantised (fp8)" in complaint(huggingface.load, folder)

    @pytest.mark.parametrize(
        ("rope", "said"),
        [
            ({"rope_type": "yarn"}, "rope scaling 'yarn' needs factor, a number above 0, and has None"),
            ({"rope_type": "linear", "factor": "two"}, "needs factor, a number above 0, and has 'two'"),
            ({"rope_type": "llama3", "factor": 8.0}, "needs low_freq_factor"),
            (
                {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4, "high_freq_factor": 4},
                "needs a high_freq_factor above its low_freq_factor",
            ),
            (
                {"rope_type": "yarn", "factor": 2, "original_max_position_embeddings": 0},
                "needs original_max_position_embeddings",
            ),
        ],
    )
    def test_rotary_positions_that_lack_something(
        self, folder: Path, rope: dict[str, Any], said: str
    ) -> None:
        change(folder / "config.json", lambda config: config.update(rope_scaling=rope))
        assert said in complaint(huggingface.load, folder)


class TestTheTokenizer:
    def test_no_fast_tokenizer(self, folder: Path) -> None:
        (folder / "tokenizer.json").unlink()
        said = complaint(Tokenizer.load, folder)
        assert "has no tokenizer.json" in said
        assert f"`toolwright model convert {folder} --out FOLDER` makes one" in said

    @pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "config.json"])
    def test_a_file_that_is_not_json(self, folder: Path, name: str) -> None:
        (folder / name).write_text("{")
        assert name in complaint(Tokenizer.load, folder)

    def test_no_end_token_anywhere(self, folder: Path) -> None:
        change(folder / "tokenizer_config.json", lambda config: config.pop("eos_token"))
        assert "names an end-of-sequence token" in complaint(Tokenizer.load, folder)

    def test_no_chat_template(self, folder: Path) -> None:
        change(folder / "tokenizer_config.json", lambda config: config.pop("chat_template"))
        tokenizer = Tokenizer.load(folder)
        message = complaint(lambda _: tokenizer.render(MESSAGES), folder)
        assert "has no chat template; write one into chat_template.jinja beside it" in message

    def test_chat_template_jinja_wins_over_the_tokenizer_config(self, folder: Path) -> None:
        (folder / "chat_template.jinja").write_text("{{ messages[0].content }} é!", encoding="utf-8")
        assert Tokenizer.load(folder).render(MESSAGES) == "1+1 é!"

    def test_a_template_with_a_mistake(self, folder: Path) -> None:
        (folder / "chat_template.jinja").write_text("hello\n{% for %}")
        with pytest.raises(UserError, match="the chat template cannot be read, line 2"):
            Tokenizer.load(folder).render(MESSAGES)

    def test_a_template_that_refuses_the_messages(self, folder: Path) -> None:
        (folder / "chat_template.jinja").write_text("{{ raise_exception('roles must alternate') }}")
        with pytest.raises(UserError, match="refuses these messages: roles must alternate"):
            Tokenizer.load(folder).render(MESSAGES)

    def test_a_template_that_asks_for_what_is_not_there(self, folder: Path) -> None:
        (folder / "chat_template.jinja").write_text("{{ messages[0].tool.name.first }}")
        with pytest.raises(UserError, match="the chat template cannot write these messages"):
            Tokenizer.load(folder).render(MESSAGES)

    def test_all_end_tokens_are_known_and_survive_saving(self, folder: Path) -> None:
        (folder / "generation_config.json").write_text('{"eos_token_id": [1, 5]}')
        change(folder / "config.json", lambda config: config.update(eos_token_id=6))
        assert Tokenizer.load(folder).end_tokens == {1, 5, 6}
        Tokenizer.load(folder).save(folder / "copy")
        assert Tokenizer.load(folder / "copy").end_tokens >= {1, 5}

    def test_the_end_of_our_own_turns_is_the_tokenizers(self, folder: Path) -> None:
        (folder / "generation_config.json").write_text('{"eos_token_id": [0, 1, 5]}')
        assert Tokenizer.load(folder).end == 1

    def test_end_token_ids_outside_the_vocabulary_are_ignored(self, folder: Path) -> None:
        (folder / "generation_config.json").write_text('{"eos_token_id": [5, 5000, -1]}')
        assert Tokenizer.load(folder).end_tokens == {1, 5}

    def test_where_no_token_has_the_only_end_nothing_ends_and_that_is_reported(
        self, folder: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        change(folder / "tokenizer_config.json", lambda config: config.pop("eos_token"))
        change(folder / "config.json", lambda config: config.update(eos_token_id=5000))
        tokenizer = Tokenizer.load(folder)
        assert tokenizer.end_tokens == {5000}
        assert tokenizer.end_marks == []
        template_check.check(tokenizer)
        assert "no token with the number that ends a turn, 5000" in caplog.text

    def test_an_end_token_id_that_is_not_a_number_is_refused(self, folder: Path) -> None:
        change(folder / "config.json", lambda config: config.update(eos_token_id="</s>"))
        assert "eos_token_id='</s>' should be the number of a token" in complaint(Tokenizer.load, folder)

    def test_special_tokens_that_an_older_folder_names_in_a_file_of_their_own(self, folder: Path) -> None:
        change(folder / "tokenizer_config.json", lambda config: config.pop("eos_token"))
        named = {"eos_token": {"content": "<|end|>", "lstrip": False}, "additional_special_tokens": ["x"]}
        (folder / "special_tokens_map.json").write_text(json.dumps(named))
        (folder / "chat_template.jinja").write_text("{{ messages[0].content }}{{ eos_token }}")
        tokenizer = Tokenizer.load(folder)
        template_check.check(tokenizer)
        assert tokenizer.render(MESSAGES) == "1+1<|end|>"

    def test_additional_chat_templates_are_read_and_saved(self, folder: Path) -> None:
        (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
        (folder / "additional_chat_templates").mkdir()
        (folder / "additional_chat_templates" / "tool_use.jinja").write_text("with {{ tools | length }}")
        Tokenizer.load(folder).save(folder / "copy")
        for place in (folder, folder / "copy"):
            tokenizer = Tokenizer.load(place)
            assert tokenizer.render(MESSAGES) == "1+1"
            assert tokenizer.render(MESSAGES, tools=[{}, {}]) == "with 2"

    def test_a_mark_that_is_no_token_is_warned_of(
        self, folder: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        said = "{% for m in messages %}<|im_start|>{{ m.role }}: {{ m.content }}<|end|>{% endfor %}"
        (folder / "chat_template.jinja").write_text(said)
        template_check.check(Tokenizer.load(folder))
        template_check.check(Tokenizer.load(folder))
        assert [record.message.split(", because")[0] for record in caplog.records] == [
            "the chat template writes <|im_start|> as plain text"
        ]
