"""The native engine: our own decoder, on a CPU in plain PyTorch or on a GPU by recorded graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from toolwright.config import schema
from toolwright.engines import EngineMemory, PlannedModel, registry
from toolwright.models import kernels
from toolwright.models.decoder import Decoder, Shape
from toolwright.models.products import panel_columns
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


def memory(model: PlannedModel, slots: int, used: int) -> EngineMemory:
    """Matrices of its own, and the cache. A GPU's cache takes what is left: one sequence is counted."""
    from toolwright.engines.native.decoding import kept
    from toolwright.engines.native.paged_cache import GPU_SHARE, CacheSize, token_bytes

    shape, dtype = model.shape, model.dtype
    on_cpu = model.device.type == "cpu"
    graphs = by_graphs(shape, fast=model.fast, dtype=dtype, device=model.device)
    matrices = 0  # a forward of the model's own reads the model's matrices
    if model.fast and not graphs:
        panel = panel_columns() if on_cpu and dtype == torch.float32 else None
        # Of a model with an adapter, as if every matrix were adapted.
        matrices = torch.float32.itemsize * kept(shape, panel=panel, adapted=model.adapted)
    if graphs and model.stored == "float32":  # they read copies, of embedding and output layer apart
        matrices = dtype.itemsize * (kept(shape, panel=1, adapted=False) + shape.vocab * shape.width)
    elif graphs:  # the learner's own, or with an adapter the sums
        matrices = dtype.itemsize * kept(shape, panel=None, adapted=model.adapted)
    each, fewest = token_bytes(shape, dtype), CacheSize.fewest(shape.context)
    cache = each * (used * shape.context if on_cpu else fewest.tokens + fewest.page_tokens)
    of = f"{used} × {shape.context} tokens" if on_cpu else f"{shape.context} tokens"
    return EngineMemory(
        parts={"matrices of the engine's own": matrices, f"cache of {of}": cache},
        cache=cache,
        token_bytes=each,
        share=1.0 if on_cpu else GPU_SHARE,
        fit=None if on_cpu else lambda slots, free: CacheSize.fitting(slots, shape, dtype, free=free).tokens,
    )


build.memory = memory  # type: ignore[attr-defined]


def by_graphs(shape: Shape, *, fast: bool, dtype: torch.dtype, device: torch.device) -> bool:
    """Tell whether decoding runs as CUDA graphs: on a GPU, in low precision. A GPU that is elsewhere is
    taken to have what it needs."""
    low = device.type == "cuda" and dtype != torch.float32
    there = kernels.available() or not torch.cuda.is_available()
    # Products of other sizes ask the host how many tokens each expert has, which a graph cannot.
    grouped = shape.experts is None or (shape.width % 8 == 0 and shape.experts.ffn % 8 == 0)
    return low and fast and shape.head_dim % 8 == 0 and grouped and there
