"""How a run saves memory: the most exact way that leaves room, and nothing that is not needed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from toolwright.config import schema
from toolwright.engines import PlannedModel
from toolwright.models.known import SIZES
from toolwright.trainer import economy, forecast, memory
from toolwright.trainer.forecast import Workload, model_of
from toolwright.trainer.gpus import GPUS

GIB = 1 << 30


def config(**blocks: Any) -> schema.Config:
    return schema.Config.model_validate({"model": {"context": 4096}, **blocks})


def chosen(size: str, gib: float, *, rank: int | None = None, **blocks: Any) -> tuple[str, str, Any, bool]:
    model = model_of(size, context=4096)
    if rank is not None:
        low = memory.adapter_parameters(model.shape, rank)
        model = replace(model, adapted=True, trained=low, fresh=True)
    asked = config(**blocks)
    tried = economy.economies(asked, model, "bfloat16")
    found, fits = economy.chosen_economy(asked, model, int(gib * GIB), tried)
    return found.dtype, found.optimizer_state, found.recompute, fits


def test_a_model_with_room_saves_nothing() -> None:
    assert chosen("0.5b", 138) == ("bfloat16", "float32", False, True)


def test_precision_falls_step_by_step_until_the_run_fits() -> None:
    """7B in all its weights: recomputed before it is rounded, moments before weights."""
    assert chosen("7b", 1000) == ("bfloat16", "float32", False, True)
    assert chosen("7b", 210) == ("bfloat16", "float32", "ffn", True)
    assert chosen("7b", 165) == ("bfloat16", "float32", True, True)
    assert chosen("7b", 138)[:2] == ("bfloat16", "int8")
    assert chosen("7b", 100)[:2] == ("bfloat16_weights", "int8")
    assert not chosen("7b", 40)[3]


def test_sizes_that_one_h200_shall_train() -> None:
    assert chosen("7b", 138)[3]
    assert chosen("14b", 138) == ("bfloat16_weights", "int8", True, True)
    assert chosen("7b", 138, rank=16)[3]
    assert chosen("32b", 138, rank=16) == ("int8_weights", "float32", True, True)
    assert not chosen("32b", 138)[3]


def test_an_adapter_needs_no_base_in_float32_where_the_files_have_bfloat16() -> None:
    assert chosen("7b", 1000, rank=16)[0] == "bfloat16_weights"
    model = replace(model_of("7b", context=4096), adapted=True, half=False)
    assert economy.economies(config(), model, "bfloat16")[0].dtype == "bfloat16"


def test_stated_precision_stays() -> None:
    stated: dict[str, Any] = {
        "model": {"context": 4096, "dtype": "bfloat16", "gradient_checkpointing": False},
        "update": {"optimizer_state": "float32"},
    }
    assert chosen("7b", 138, **stated) == ("bfloat16", "float32", False, False)
    assert chosen("7b", 138, update={"optimizer_state": "float32"})[1] == "float32"


def test_on_a_cpu_nothing_is_saved_that_is_not_asked_for() -> None:
    asked = config(model={"context": 64, "device": "cpu"})
    made, lines = economy.economised(asked)
    assert (made.model.dtype, made.update.optimizer_state) == ("float32", "float32")
    assert made.model.gradient_checkpointing is False
    assert lines == []
    rounded = config(model={"context": 64, "device": "cpu", "dtype": "bfloat16_weights"})
    assert economy.economised(rounded)[0].update.optimizer_state == "int8"


def test_the_run_says_how_it_saves_memory() -> None:
    plain, saved = economy.Economy("bfloat16", "float32", False), economy.Economy("bfloat16", "int8", "ffn")
    assert plain.lines(plain) == []
    assert saved.lines(plain) == [
        "AdamW's state in 8 bits, for want of memory (update.optimizer_state)",
        "feed-forward halves of layers computed twice, for want of memory (model.gradient_checkpointing)",
    ]


@pytest.mark.parametrize(
    ("stored", "state", "learner"),
    [("float32", "float32", 16), ("float32", "int8", 10.03), ("bfloat16", "int8", 6.03)],
)
def test_bytes_of_a_parameter(stored: Any, state: Any, learner: float) -> None:
    model = replace(model_of("7b", context=4096), stored=stored)
    parts = memory.counted(config(update={"optimizer_state": state}), model).parts
    counted = parts["weights"] + parts["gradients"] + parts["optimiser"]
    assert counted / model.parameters == pytest.approx(learner, abs=0.01)
    # The engine reads the learner's own weights where they are in its precision.
    assert (parts["matrices of the engine's own"] > 0) == (stored == "float32")


@pytest.mark.parametrize(
    ("size", "billions"),
    [
        ("0.5b", 0.494),
        ("1.5b", 1.544),
        ("3b", 3.086),
        ("7b", 7.616),
        ("14b", 14.77),
        ("32b", 32.76),
        ("72b", 72.71),
        ("30b-a3b", 30.53),
    ],
)
def test_named_sizes_have_the_parameters_of_their_models(size: str, billions: float) -> None:
    assert model_of(size, context=4096).parameters / 1e9 == pytest.approx(billions, rel=0.002)
    assert set(SIZES) >= {size}


class TestForecasts:
    def test_seconds_are_near_what_was_measured_on_an_h200(self) -> None:
        """An update of 1.5B at 512 tokens reached 52 % of the peak; 7B sampled 21.6 k tokens a second of 128
        sequences, 0.5B 208 k with 512."""
        gpu = GPUS["h200"]
        short = Workload(prompts=16, samples=2, prompt=0, answer=512, slots=32)
        small = model_of("1.5b", context=512)
        wanted = forecast.update_flops(small.shape, 32 * 512, 512) / (0.52 * gpu.flops)
        assert forecast.learning_seconds(small, gpu, short, False) == pytest.approx(wanted, rel=0.01)
        for size, rows, rate in (("7b", 128, 21_600), ("0.5b", 512, 208_000)):
            work = Workload(prompts=rows, samples=1, prompt=32, answer=256, slots=rows)
            taken = forecast.sampling_seconds(model_of(size, context=512), gpu, work, rows=rows)
            assert rows * 256 / taken == pytest.approx(rate, rel=0.33)

    def test_more_work_and_smaller_gpus_take_longer(self) -> None:
        model, work = model_of("7b", context=4096), Workload()
        plain = forecast.learning_seconds(model, GPUS["h200"], work, False)
        again = [forecast.learning_seconds(model, GPUS["h200"], work, what) for what in ("ffn", True)]  # type: ignore[arg-type]
        assert plain < again[0] < again[1] < 1.4 * plain
        assert forecast.learning_seconds(model, GPUS["a100"], work, False) > 3 * plain

    def test_several_gpus_are_divided_between_learning_and_sampling(self) -> None:
        model = model_of("7b", context=4096)
        alone, *_ = forecast.forecasts(model, GPUS["h200"])
        eight, adapter = forecast.forecasts(model, GPUS["h200"], gpus=8)
        assert eight.fits
        assert 0 < eight.ranks < 8
        assert eight.step_s < 0.4 * alone.step_s
        assert eight.peak < eight.there
        assert adapter.way.startswith("LoRA")

    def test_a_folder_is_read_as_a_run_reads_it(self, tmp_path: Any) -> None:
        import tiny

        from toolwright.models import huggingface

        huggingface.save(tiny.decoder(context=128), tmp_path)
        found = model_of(str(tmp_path), context=64)
        assert isinstance(found, PlannedModel)
        assert found.parameters == sum(p.numel() for p in tiny.decoder().parameters())
        assert (found.shape.context, found.half, found.device.type) == (64, False, "cuda")
        assert found.dtype == torch.bfloat16
