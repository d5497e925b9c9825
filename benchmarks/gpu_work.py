"""The work of `gpu.py`, which its peers are given as well, and how it is timed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

SEQUENCES, NEW_TOKENS, PROMPT_TOKENS = 512, 256, 32
PROMPTS, SAMPLES = 64, 8


def seconds(work: Callable[[], Any], *, runs: int = 3, warm_up: int = 1) -> list[float]:
    import torch

    taken = []
    for number in range(warm_up + runs):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        if number >= warm_up:
            taken.append(time.perf_counter() - start)
    return taken


def prompt(number: int) -> list[int]:
    return [1000 + (number * 7919 + place * 104729) % 40000 for place in range(PROMPT_TOKENS)]
