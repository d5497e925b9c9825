"""Matrix products in a lower precision than the weights are kept in."""

from __future__ import annotations

import subprocess
import sys
import warnings
from functools import cache
from pathlib import Path

import torch

MULTIPLY = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); x @ x"


def autocast(device: torch.device, dtype: torch.dtype) -> torch.autocast:
    """Matrix products in `dtype`; master weights, and whatever needs it, in float32."""
    low = dtype != torch.float32
    if low and device.type == "cpu":
        _survive_false_amx()
    return torch.autocast(device.type, dtype=dtype if low else torch.bfloat16, enabled=low)


@cache
def _survive_false_amx() -> None:
    """Some virtual machines announce AMX and end the process at its first instruction: a child tries it."""
    announced = Path("/proc/cpuinfo")
    if not announced.is_file() or "amx_bf16" not in announced.read_text():
        return
    tried = subprocess.run([sys.executable, "-c", MULTIPLY], stderr=subprocess.DEVNULL, check=False)
    if tried.returncode < 0:
        torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
        warnings.warn(
            "this machine announces AMX for bfloat16 and does not have it; going on without, which is slow: "
            "model.dtype=float32 is faster here",
            stacklevel=3,
        )
