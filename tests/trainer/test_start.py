"""A run begins soon: what takes seconds to import is left alone by one that has no use for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import tiny

from toolwright.trainer import memory

from .runs import words

# torch's compiler, which brings sympy and pandas, and the hub's models.
HEAVY = ["torch._dynamo", "torch._inductor", "sympy", "pandas", "transformers"]


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
        assert memory.parameters(made.shape) == sum(p.numel() for p in made.parameters()), made.shape
