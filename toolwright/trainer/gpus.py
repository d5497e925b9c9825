"""GPUs by name, and what their datasheets say. Imports without torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GPU:
    """Datasheet figures: bfloat16 operations and bytes of memory a second, and gibibytes of memory."""

    flops: float
    bandwidth: float
    memory: float


GPUS = {
    "h200": GPU(989e12, 4.8e12, 140),
    "h100": GPU(989e12, 3.35e12, 79.6),
    "b200": GPU(2250e12, 8.0e12, 179),
    "h20": GPU(148e12, 4.0e12, 95.6),
    "a100": GPU(312e12, 2.04e12, 79.3),
    "a100-40": GPU(312e12, 1.56e12, 39.6),
    "l40s": GPU(362e12, 0.86e12, 44.7),
    "rtx4090": GPU(165e12, 1.01e12, 23.5),
}
