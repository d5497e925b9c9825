"""The native engine: our own decoder, on a CPU in plain PyTorch or on a GPU by recorded graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from toolwright.config import schema
from toolwright.engines import registry
from toolwright.models import kernels
from toolwright.models.decoder import Decoder, Shape
from toolwright.models.tokenizer import Tokenizer

if TYPE_CHECKING:
    from toolwright.engines.native.engine import NativeEngine


@registry.register("native")
def build(
    config: schema.EngineConfig, *, decoder: Decoder, tokenizer: Tokenizer, dtype: torch.dtype
) -> NativeEngine:
    kind: type[NativeEngine]
    if by_graphs(decoder.shape, fast=decoder.fast, dtype=dtype, device=decoder.device):
        from toolwright.engines.native.graphs import GraphEngine as kind
    else:
        from toolwright.engines.native.engine import NativeEngine as kind
    return kind(config, decoder=decoder, tokenizer=tokenizer, dtype=dtype)


def by_graphs(shape: Shape, *, fast: bool, dtype: torch.dtype, device: torch.device) -> bool:
    """Tell whether decoding runs as CUDA graphs: on a GPU, in low precision."""
    low = device.type == "cuda" and dtype != torch.float32
    return low and fast and shape.head_dim % 8 == 0 and kernels.available()
