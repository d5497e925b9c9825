"""Matrix products in a lower precision than the weights are kept in."""

from __future__ import annotations

import subprocess
import sys
import warnings
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from toolwright.models.decoder import Decoder

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


HALF = 1 << 15  # of the distance between neighbours in bfloat16, in units of float32's last place


@torch.no_grad()
def loosen(decoder: Decoder, dtype: torch.dtype) -> None:
    """Before a checkpoint that was stored in bfloat16 is trained in it.

    Its weights lie exactly on what bfloat16 can tell: until updates have moved one half-way to the next such
    number, no pass sees that it moved. So each goes to a random place among those that round to what it is.
    The model says what it said, to the last bit; and of a small movement of all weights as many round to the
    next number as make up the whole of it.

    Not so under an adapter: it is saved alone, and whoever adds it to its base has the base as it was stored.
    """
    if dtype != torch.bfloat16 or not decoder.fast or decoder.adapter is not None:
        return
    for number, weight in enumerate(p for p in decoder.parameters() if p.dim() >= 2):
        if not torch.equal(weight.to(dtype).to(weight.dtype), weight):
            continue  # it was stored in more
        generator = torch.Generator(weight.device).manual_seed(number)
        away = torch.randint(
            1 - HALF, HALF, weight.shape, dtype=torch.int32, device=weight.device, generator=generator
        )
        fixed = (weight == 0) | ~weight.isfinite()
        weight.detach().view(torch.int32).add_(away.masked_fill_(fixed, 0))
