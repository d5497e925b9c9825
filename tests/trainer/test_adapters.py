"""Whole runs that learn an adapter: one copy of the base, and only the adapter sent, saved and resumed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import tiny
import torch
from safetensors.torch import load_file

from toolwright.cli import main
from toolwright.learner import checkpoints
from toolwright.models import adapter_folder, huggingface
from toolwright.models.tokenizer import Tokenizer
from toolwright.trainer import building, memory

from .conftest import Build
from .runs import configured, metrics, rollouts, trained, words

LORA = ["model.lora.rank=4", "model.lora.alpha=16", "algorithm.kl.where=loss", "update.policy.lr=2e-2"]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    tokenizer = Tokenizer.characters("abcd0123456789")  # as letters.py has them
    shape = {"vocab": tokenizer.size, "context": 32, "kv_heads": 2, "layers": 2}
    huggingface.save(tiny.decoder(**shape), folder)
    tokenizer.save(folder)
    return folder


@pytest.fixture(scope="module")
def run(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("runs")
    return trained(runs, "run.name=lora", f"model.path={base}", "train.steps=6", *LORA)


def test_only_the_adapter_is_saved(run: Path, base: Path) -> None:
    assert {"adapter_config.json", "adapter_model.safetensors"} <= {f.name for f in (run / "model").iterdir()}
    assert not (run / "model" / "model.safetensors").exists()
    assert json.loads((run / "model" / "adapter_config.json").read_text())["base_model_name_or_path"] == str(
        base
    )
    _, tensors = checkpoints.load(run / "checkpoints" / "step_6")
    assert tensors["reference"] == {}
    assert all(".adapters." in name for name in tensors["policy"]["model"])
    assert tensors["policy"]["model"].keys() == tensors["policy"]["optimizer"]["adamw"]["state"].keys()


def test_an_adapter_moves_away_from_the_base_which_is_its_reference(run: Path) -> None:
    rows = metrics(run)
    assert rows[1]["reference/kl"] == pytest.approx(0.0, abs=1e-6), "an adapter begins as nothing"
    assert rows[-1]["reference/kl"] > 1e-4
    assert max(row["gap/abs_max"] for row in rows[1:]) <= 1e-5, "engine and learner agree with it on"
    first, last = (rollouts(run)[step] for step in (1, 6))
    assert [t.tokens for t in first] != [t.tokens for t in last]


def test_a_published_adapter_changes_what_the_engine_says(build: Build, base: Path) -> None:
    trainer = build(f"model.path={base}", *LORA)
    start = trainer.order.state()

    def said() -> list[list[int]]:
        trainer.order.restore(start)
        return [t.tokens for t in trainer.sample(1).attempts]

    before = said()
    assert said() == before
    with torch.no_grad():
        for tensor in trainer.learner.policy.decoder.learned_state().values():
            tensor.add_(0.5)
    trainer.engine.publish(1)
    assert said() != before


@pytest.fixture(scope="module")
def stored(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The base in bfloat16, as the hub has most of them."""
    folder = tmp_path_factory.mktemp("stored") / "base"
    assert main(["model", "convert", str(base), "--dtype", "bfloat16", "--out", str(folder)]) == 0
    return folder


def test_every_process_adds_a_bfloat16_adapter_to_the_same_numbers(stored: Path) -> None:
    """Numbers that the base, as it was stored, is rounded from; else small changes would be rounded away."""

    def built(*more: str) -> dict[str, torch.Tensor]:
        config = configured(f"model.path={stored}", "model.lora.rank=4", *more)
        return building.build_model(config.model, "", seed=config.run.seed)[0].state_dict()

    plain, one, other = built("model.dtype=float32"), *(built("model.dtype=bfloat16") for _ in range(2))
    for name, tensor in plain.items():
        assert torch.equal(one[name], other[name]), name
        assert torch.equal(one[name].bfloat16(), tensor.bfloat16()), name
        loosened = name.startswith("layers.") and name.endswith(".weight")
        assert torch.equal(one[name], tensor) != loosened, name


def test_eval_finds_the_base_by_itself(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["eval", *words(f"model.path={run / 'model'}", "--json")]
    assert main(line) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["held_out/reward"] == metrics(run)[-1]["held_out/reward"]


def test_a_resumed_run_is_the_unbroken_one(run: Path, base: Path, tmp_path: Path) -> None:
    half = trained(tmp_path, "run.name=half", f"model.path={base}", "train.steps=3", *LORA)
    trained(tmp_path, "run.name=half", "run.resume=true", f"model.path={base}", "train.steps=6", *LORA)
    whole, again = (load_file(r / "model" / "adapter_model.safetensors") for r in (run, half))
    for name, tensor in whole.items():
        assert torch.equal(tensor, again[name]), name


def test_a_resumed_bfloat16_adapter_agrees_with_its_engine(stored: Path, tmp_path: Path) -> None:
    """What is learned is added to the same numbers after the break, and sampled from as before it."""
    own = [f"model.path={stored}", "model.dtype=bfloat16", *LORA]
    unbroken = trained(tmp_path, "run.name=whole", "train.steps=6", *own)
    half = trained(tmp_path, "run.name=half", "train.steps=3", *own)
    trained(tmp_path, "run.name=half", "run.resume=true", "train.steps=6", *own)
    whole, again = (load_file(r / "model" / "adapter_model.safetensors") for r in (unbroken, half))
    assert all(torch.equal(tensor, again[name]) for name, tensor in whole.items())
    gaps = [[row["gap/abs_mean"] for row in metrics(run)[1:]] for run in (unbroken, half)]
    assert gaps[0] == gaps[1]
    assert max(gaps[0]) < 0.02


def test_a_run_goes_on_from_another_runs_adapter(run: Path, tmp_path: Path) -> None:
    more = trained(tmp_path, "run.name=more", f"model.path={run / 'model'}", "train.steps=1")
    assert metrics(more)[0]["held_out/reward"] == metrics(run)[-1]["held_out/reward"]
    assert adapter_folder.is_adapter(more / "model")


GO_ON = ["algorithm.kl.where=loss", "update.policy.lr=2e-2"]


def test_the_reference_is_the_adapter_that_the_run_began_with(run: Path, base: Path, tmp_path: Path) -> None:
    began_with = [f"model.path={base}", f"model.lora.path={run / 'model'}"]
    more = trained(tmp_path, "run.name=more", *began_with, "train.steps=3", *GO_ON)
    away = [row["reference/kl"] for row in metrics(more)[1:]]
    assert away[0] == pytest.approx(0.0, abs=1e-6)
    assert away[-1] > 1e-4
    _, tensors = checkpoints.load(more / "checkpoints" / "step_3")
    assert tensors["reference"]["model"].keys() == tensors["policy"]["model"].keys()


def test_a_resumed_run_keeps_that_reference_where_its_folder_has_moved(
    run: Path, base: Path, tmp_path: Path
) -> None:
    """Or holds something else by now: here what the run itself has learned so far."""
    shutil.copytree(run / "model", tmp_path / "before")
    own = [f"model.path={base}", *GO_ON]
    start = f"model.lora.path={tmp_path / 'before'}"
    whole = trained(tmp_path, "run.name=whole", start, *own, "train.steps=4")
    half = trained(tmp_path, "run.name=half", start, *own, "train.steps=2")
    (tmp_path / "before").rename(tmp_path / "gone")
    moved = half.rename(tmp_path / "moved")
    line = [f"model.lora.path={moved / 'model'}", *own, "train.steps=4"]
    trained(tmp_path, "run.name=moved", "run.resume=true", *line)
    first, second = (load_file(r / "model" / "adapter_model.safetensors") for r in (whole, moved))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_memory_for_the_frozen_adapter_is_planned(run: Path, base: Path) -> None:
    def parts(*own: str) -> dict[str, int]:
        return memory.plan(configured(f"model.path={base}", "algorithm.kl.where=loss", *own)).parts

    count = sum(t.numel() for t in load_file(run / "model" / "adapter_model.safetensors").values())
    assert parts(f"model.lora.path={run / 'model'}")["reference"] == 4 * count
    assert "reference" not in parts("model.lora.rank=4"), "a new one is turned off instead"
    assert parts()["reference"] > 4 * count


def test_merged_it_is_a_model_like_any_other(run: Path, base: Path, tmp_path: Path) -> None:
    assert main(["model", "merge", str(run / "model"), "--out", str(tmp_path / "whole")]) == 0
    decoder = huggingface.load(base)
    adapter_folder.load(decoder, run / "model", base=base)
    expected = tiny.logits(decoder, [1, 2, 3, 4])
    torch.testing.assert_close(tiny.logits(huggingface.load(tmp_path / "whole"), [1, 2, 3, 4]), expected)
    assert Tokenizer.load(tmp_path / "whole").encode("b3") == Tokenizer.load(base).encode("b3")


def test_a_critic_learns_an_adapter_of_its_own(base: Path, tmp_path: Path) -> None:
    run = trained(tmp_path, "run.name=ppo", f"model.path={base}", "algorithm=ppo", "train.steps=2", *LORA[:2])
    assert metrics(run)[-1]["critic/skipped"] == 0


def test_sft_learns_one_as_well(base: Path, tmp_path: Path) -> None:
    rows = [
        {"messages": [{"role": "user", "content": f"{x}1"}, {"role": "assistant", "content": x * 2}]}
        for x in "abcd"
    ]
    (tmp_path / "shown.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    line = [
        word
        for word in words(f"model.path={base}", *LORA[:2])
        if word.startswith(("model.lora", "model.path", "task."))
    ]
    more = [
        "steps=3",
        "batch=4",
        "rollout.max_tokens=2",
        f"demonstrations={tmp_path / 'shown.jsonl'}",
        "run.name=sft",
    ]
    assert main(["sft", *line, *more, f"run.dir={tmp_path}"]) == 0
    assert adapter_folder.is_adapter(tmp_path / "sft" / "model")
