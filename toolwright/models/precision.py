"""Matrix products in a lower precision than the weights are kept in."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from toolwright.models import lora
from toolwright.models.loose import loosen_

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
    """Try AMX in a child process: some virtual machines announce it and end the process that uses it."""
    announced = Path("/proc/cpuinfo")
    if not announced.is_file() or "amx_bf16" not in announced.read_text():
        return
    tried = subprocess.run([sys.executable, "-c", MULTIPLY], stderr=subprocess.DEVNULL, check=False)
    if tried.returncode < 0:
        torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
        warnings.warn(
            "this machine reports AMX for bfloat16 but does not have it, so bfloat16 is slow; "
            "model.dtype=float32 is faster here",
            stacklevel=3,
        )


@torch.no_grad()
def loosen(decoder: Decoder, dtype: torch.dtype) -> None:
    """Before a checkpoint that was stored in bfloat16 is trained in it, or an adapter of it is used in it.

    Its weights lie exactly on what bfloat16 can tell: until updates have moved one half-way to the next such
    number, no pass sees that it moved. So each goes to a random place among those that round to what it is.
    The model says what it said, to the last bit; and of a small movement of all weights as many round to the
    next number as make up the whole of it.

    With an adapter, only the matrices that it is added to are loosened, and in memory alone: it is saved
    without them. Wherever a weight is loosened, it goes to the same place, so that learner and engine round
    the same sums. Doing it twice changes nothing.
    """
    if dtype != torch.bfloat16 or decoder.stored != "float32":
        return  # a base that is stored in less is loosened whenever an adapter is added to it
    for number, weight in enumerate(_moved(decoder)):
        if not torch.equal(weight.to(dtype).to(weight.dtype), weight):
            continue  # it was stored in more, or is loose already
        loosen_(weight, number)


def _moved(decoder: Decoder) -> Iterator[Tensor]:
    """The matrices that training moves: themselves, or by what an adapter adds to them."""
    if decoder.adapter is not None:
        yield from (decoder.get_parameter(decoder.matrix_of(name)) for name, _ in lora.parts(decoder))
    elif decoder.fast:
        yield from (p for p in decoder.parameters() if p.dim() >= 2)
