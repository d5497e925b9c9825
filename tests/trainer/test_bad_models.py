"""A model that cannot be trained is refused by the whole command: status 2, one message, nothing written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
import transformers
from safetensors.torch import load_file, save_file

from toolwright.cli import main
from toolwright.failures import UserError
from toolwright.models import adapter_folder, huggingface, lora
from toolwright.trainer import memory

from .runs import configured, words
from .test_bad_input import contents

Refused = Callable[..., str]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A whole and healthy folder, for the tests to damage."""
    folder = tmp_path / "model"
    huggingface.save(tiny.decoder(tied=False, kv_heads=2), folder)
    tiny.characters().save(folder)
    return folder


@pytest.fixture
def refused(tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> Refused:
    def by(*own: str) -> str:
        line = [word for word in words(*own) if not word.startswith(("model.layers", "model.width"))]
        before = contents(tmp_path)
        capsys.readouterr()
        path = [] if any(word.startswith("model.path=") for word in own) else [f"model.path={model}"]
        assert main(["train", *line, *path, f"run.dir={tmp_path / 'runs'}"]) == 2
        said = capsys.readouterr()
        assert contents(tmp_path) == before, "something was written"
        assert said.err.startswith("toolwright: ")
        assert "Traceback" not in said.err
        return said.err.removeprefix("toolwright: ").strip()

    return by


def change(path: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))


def another(tmp_path: Path) -> Path:
    """A model that is not of the fast path."""
    folder = tmp_path / "another"
    sizes = {"vocab_size": 40, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
    config = transformers.GPT2Config(**sizes, eos_token_id=1, bos_token_id=None)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tiny.characters().save(folder)
    return folder


def shards(folder: Path) -> None:
    """The same weights in two files and an index."""
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    where = {name: f"model-0000{1 + (i % 2)}-of-00002.safetensors" for i, name in enumerate(names)}
    for file in set(where.values()):
        save_file({name: weights[name] for name in names if where[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))


@pytest.mark.parametrize("kept", [0, 50, -100])
def test_weights_cut_short(refused: Refused, model: Path, kept: int) -> None:
    path = model / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    assert f"{path} cannot be read as safetensors" in refused()


def test_weights_cut_short_of_another_architecture(refused: Refused, tmp_path: Path) -> None:
    folder = another(tmp_path)
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    assert f"{path} cannot be read as safetensors" in refused(f"model.path={folder}")


def test_a_tensor_is_missing_of_another_architecture(refused: Refused, tmp_path: Path) -> None:
    path = another(tmp_path) / "model.safetensors"
    weights = load_file(path)
    del weights["transformer.h.1.mlp.c_fc.weight"]
    save_file(weights, path, metadata={"format": "pt"})
    said = refused(f"model.path={path.parent}")
    assert "is incomplete: it has no tensor transformer.h.1.mlp.c_fc.weight" in said


def test_a_shard_is_missing(refused: Refused, model: Path) -> None:
    shards(model)
    (model / "model-00002-of-00002.safetensors").unlink()
    said = refused()
    assert said == f"{model} is not a complete model folder: model-00002-of-00002.safetensors is missing"


def test_a_tensor_is_in_no_shard(refused: Refused, model: Path) -> None:
    shards(model)
    path = model / "model-00002-of-00002.safetensors"
    weights = load_file(path)
    gone = sorted(weights)[0]
    del weights[gone]
    save_file(weights, path)
    assert refused() == f"{model} is incomplete: it has no tensor {gone}"


def test_a_pointer_in_place_of_weights(refused: Refused, model: Path) -> None:
    (model / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    assert "is a pointer of Git LFS, not the weights: run `git lfs pull` there" in refused()


class TestTheTokenizer:
    def test_the_token_that_ends_a_turn_is_unknown(self, refused: Refused, model: Path) -> None:
        template = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>\n{% endfor %}"
        change(model / "tokenizer_config.json", lambda c: c.update(chat_template=template))
        said = refused()
        assert said.startswith("the chat template ends a turn with '<|im_end|>', but the tokenizer in")
        assert "a turn could never end; add the token to the tokenizer" in said

    def test_a_tokenizer_that_names_a_missing_end_token_is_refused(
        self, refused: Refused, model: Path
    ) -> None:
        change(model / "config.json", lambda c: c.update(eos_token_id=1))
        change(model / "tokenizer_config.json", lambda c: c.update(eos_token="</s>"))
        said = refused()
        assert "names '</s>' as its eos_token, but there is no such token in tokenizer.json" in said

    def test_the_template_writes_a_token_that_has_no_name(self, refused: Refused, model: Path) -> None:
        change(
            model / "tokenizer_config.json",
            lambda c: c.update(chat_template="{{ bos_token }}" + c["chat_template"]),
        )
        assert "has no bos_token, which its chat template writes: name one in" in refused()

    def test_a_token_that_has_no_row_in_the_embedding(self, refused: Refused, model: Path) -> None:
        """As many tokens as rows, but one of them has a number beyond."""

        def renumber(content: dict[str, Any]) -> None:
            content["model"]["vocab"]["<|tool|>"] = content["added_tokens"][-1]["id"] = 99

        change(model / "tokenizer.json", renumber)
        said = refused()
        assert (
            "('<|tool|>' is number 99), its model only 23; use the tokenizer that belongs to the model"
            in said
        )


def test_an_architecture_asked_for_the_fast_path(refused: Refused, tmp_path: Path) -> None:
    folder = another(tmp_path)
    said = refused(f"model.path={folder}", "model.fast=yes")
    assert f"model.fast=yes: {folder} cannot take the fast path: it is a 'gpt2' model" in said
    assert "model.fast=auto runs it by its own forward" in said


class TestAnAdapter:
    @pytest.fixture
    def adapter(self, tmp_path: Path, model: Path) -> Path:
        decoder = huggingface.load(model)
        lora.attach(decoder, lora.Adapter(4, 8.0, 2.0, str(model)), decoder.adaptable(), seed=0)
        adapter_folder.save(decoder, tmp_path / "adapter")
        return tmp_path / "adapter"

    def test_an_adapter_of_another_base_is_refused(
        self, refused: Refused, tmp_path: Path, adapter: Path
    ) -> None:
        huggingface.save(tiny.decoder(width=64, head_dim=16, kv_heads=2), tmp_path / "wider")
        tiny.characters().save(tmp_path / "wider")
        said = refused(f"model.path={tmp_path / 'wider'}", f"model.lora.path={adapter}")
        assert said.startswith(f"the adapter in {adapter} is of another base: lora_A of model.layers.0")
        assert f"it was made for {tmp_path / 'model'}" in said

    def test_an_adapter_whose_base_is_gone_is_refused(
        self, refused: Refused, tmp_path: Path, model: Path, adapter: Path
    ) -> None:
        model.rename(tmp_path / "elsewhere")
        said = refused(f"model.path={adapter}")
        assert f"{adapter} is an adapter of {model}, which is not a local folder" in said

    def test_an_adapter_of_another_rank_is_refused(self, refused: Refused, adapter: Path) -> None:
        said = refused(f"model.path={adapter}", "model.lora.rank=16")
        assert said == f"model.lora.rank=16, but the adapter in {adapter} is of rank 4"

    def test_damaged(self, refused: Refused, adapter: Path) -> None:
        path = adapter / "adapter_model.safetensors"
        path.write_bytes(path.read_bytes()[:-9])
        assert f"{path} cannot be read as safetensors" in refused(f"model.path={adapter}")

    def test_lora_targets_that_match_nothing_are_refused(self, refused: Refused, model: Path) -> None:
        said = refused("model.lora.rank=4", "model.lora.targets=[c_attn]")
        assert "model.lora.targets=['c_attn']:" in said
        assert "it has down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj" in said

    def test_without_a_model(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["train", *words("model.lora.rank=4"), f"run.dir={tmp_path}"]) == 2
        assert "model.lora.rank=4 needs a model to adapt; set model.path as well" in capsys.readouterr().err


def test_more_memory_than_there_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *words("model.context=2000000000"), f"run.dir={tmp_path / 'runs'}"]) == 2
    said = capsys.readouterr().err
    assert "GiB of memory, and" in said
    assert "are free on cpu: cache of 16 × 2000000000 tokens" in said
    assert said.rstrip().endswith("; lower engine.slots or model.context"), "an adapter would not help"
    assert not (tmp_path / "runs").exists()


def test_weights_that_are_larger_than_memory(model: Path) -> None:
    """Its size is read from the file's header: nothing is loaded first."""
    path = model / "model.safetensors"
    with torch.device("meta"):
        giant = torch.empty(1 << 19, 1 << 19)
    header = {"giant": {"dtype": "F32", "shape": list(giant.shape), "data_offsets": [0, giant.nbytes]}}
    told = json.dumps(header).encode()
    with path.open("wb") as file:  # a file with a hole, of no size on the disk
        file.write(len(told).to_bytes(8, "little") + told)
        file.truncate(8 + len(told) + giant.nbytes)
    with pytest.raises(UserError, match="this run needs") as caught:
        memory.check(configured(f"model.path={model}"))
    assert "weights 1024.0, gradients 1024.0, optimiser 2048.0" in str(caught.value)
    assert "; learn an adapter with model.lora.rank=16, or take a smaller model" in str(caught.value)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_on_a_gpu_the_cache_is_as_large_as_fits_beside_what_is_learned(
    model: Path, dtype: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The engine is built first: what learner and reference need later must be left to them."""
    caplog.set_level("INFO")
    config = configured(
        f"model.path={model}", f"model.dtype={dtype}", "engine.slots=100", "rollout.prompts=20"
    )
    assert memory.fitted(config).engine == config.engine, "on a CPU as it is"
    monkeypatch.setattr(memory.building, "pick_device", lambda name: torch.device("cuda"))
    monkeypatch.setattr("toolwright.models.kernels.available", lambda: True)
    needed = memory.plan(config)
    assert {"weights", "gradients", "optimiser", "reference"} <= set(needed.parts)
    assert (needed.parts["matrices of the engine's own"] > 0) == (dtype == "bfloat16"), "copies"
    cache = needed.parts[f"cache of {config.model.context} tokens"]
    page, rest = cache // 2, needed.total - cache  # one that holds a sequence, and one that is nobody's

    def tokens_with(pages: float) -> int:
        """Two fifths of what is left have room for so many pages."""
        monkeypatch.setattr(memory, "free", lambda device: rest + int(pages * page / 0.4) + 1)
        fitted = memory.fitted(config).engine
        assert fitted.slots == 100
        return int(fitted.params["cache_tokens"])

    assert tokens_with(1000) == 100 * 64
    assert tokens_with(40) == 39 * 64
    assert tokens_with(2) == 64
    assert f"cuda has room for a cache of {39 * 64:,} tokens, {39 * 64 / 32:.1f} sequences" in caplog.text
    with pytest.raises(UserError, match=r"the cache of one sequence .* lower model\.context"):
        tokens_with(1.9)


def test_vllm_has_weights_and_a_cache_of_its_own(model: Path) -> None:
    parts = memory.plan(configured(f"model.path={model}", "engine=vllm", "model.device=cpu")).parts
    assert parts["vLLM's weights"] == parts["weights"]
    assert parts["vLLM's cache"] == 64 << 20


@pytest.mark.parametrize("name", ["smollm2-135m", "Qwen/Qwen3-0.6B"])
def test_a_models_name_in_place_of_its_folder(
    refused: Refused, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    place = Path("models") / name.rpartition("/")[2].lower()
    said = refused(f"model.path={name}")
    assert said == (
        f"model.path={name} is not a folder; as a model's name, `toolwright model get {name}` downloads it "
        f"into {place}"
    )
    place.mkdir(parents=True)
    assert refused(f"model.path={name}") == f"model.path={name} is not a folder; {place} is one"
