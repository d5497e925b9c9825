"""`benchmarks/workflow.py`: every strategy and ablation searches."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "workflow.py"


@pytest.mark.slow
def test_every_row_searches() -> None:
    words = ["--seeds", "1", "--budgets", "60"]
    done = subprocess.run([sys.executable, BENCHMARK, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"^.+?  +-?\d+\.\d  ", done.stdout, re.MULTILINE)) == 10
