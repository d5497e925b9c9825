"""A run begins soon: what takes seconds to import is left alone by one that has no use for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny

from toolwright.config import schema
from toolwright.engines.native.engine import NativeEngine
from toolwright.models import huggingface
from toolwright.models.products import PackedMatrix
from toolwright.trainer import building, memory

from .runs import words

# torch's compiler, which brings sympy, and the hub's models.
HEAVY = ["torch._dynamo", "torch._inductor", "sympy", "transformers"]


def test_a_small_run_imports_neither_compiler_nor_transformers(tmp_path: Path) -> None:
    code = (
        "import sys; from toolwright.cli import main; status = main(sys.argv[1:]); "
        f"print([name for name in {HEAVY} if name in sys.modules]); sys.exit(status)"
    )
    line = [sys.executable, "-c", code, "train", *words("train.steps=1"), f"run.dir={tmp_path}"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


def test_parameters_are_counted_as_they_are() -> None:
    for made in (tiny.decoder(kv_heads=2), tiny.decoder(width=48, layers=3)):
        assert made.shape.parameters == sum(p.numel() for p in made.parameters()), made.shape


SHAPES: dict[str, dict[str, Any]] = {
    "small": {"layers": 2},
    "a vocabulary in panels": {"vocab": 70_000, "tied": False},
    "a matrix in panels, and others not": {"ffn": 33_000, "layers": 1},
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rank", [None, 2])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_memory_of_the_engine_is_counted_as_it_is(
    shape: str, rank: int | None, dtype: str, tmp_path: Path
) -> None:
    huggingface.save(tiny.decoder(width=64, kv_heads=2, **SHAPES[shape]), tmp_path)
    tiny.characters().save(tmp_path)
    settings = {"path": str(tmp_path), "context": 32, "dtype": dtype, "lora": {"rank": rank}}
    config = schema.Config.model_validate({"model": settings, "rollout": {"max_tokens": 8}})
    decoder, tokenizer = building.build_model(config.model, "", seed=0)
    engine = building.build_engine(config, decoder, tokenizer)
    assert isinstance(engine, NativeEngine)
    engine._forward(turned=None)
    weights = engine._laid_out()
    matrices = [m for one in weights.layers for m in (one.qkv, one.out, one.gate_up, one.down)]
    owned = {parameter.untyped_storage().data_ptr() for parameter in decoder.parameters()}
    laid = [m.panels if isinstance(m, PackedMatrix) else m for m in (*matrices, weights.unembedding)]
    every = [*laid, *engine._packed.rooms]
    kept = {m.untyped_storage().data_ptr(): m.nbytes for m in every}
    found = sum(size for place, size in kept.items() if place not in owned)
    assert memory.plan(config).parts["matrices of the engine's own"] == found
