"""Causal attention of packed sequences of any lengths, by the flash kernel that torch carries."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from toolwright.batch import sent


class Layout(NamedTuple):
    """Where sequences begin: of queries and of keys, of which a sequence may have more in front."""

    queries: Tensor  # [sequences + 1] int32
    keys: Tensor
    most_queries: int
    most_keys: int

    @classmethod
    def of(cls, queries: Sequence[int], keys: Sequence[int], device: torch.device) -> Layout:
        """Of sequences with so many queries and keys each."""
        starts = torch.tensor([[0, *accumulate(queries)], [0, *accumulate(keys)]], dtype=torch.int32)
        of_queries, of_keys = sent(starts, device)
        return cls(of_queries, of_keys, max(queries), max(keys))


class _Flash(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        out, log_sum, state, unused, _ = torch.ops.aten._flash_attention_forward(
            q, k, v, *layout, 0.0, True, False
        )
        ctx.save_for_backward(q, k, v, out, log_sum, state, unused)
        ctx.layout = layout
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, log_sum, state, unused = ctx.saved_tensors
        of_each = torch.ops.aten._flash_attention_backward(
            gradients[0].contiguous(), q, k, v, out, log_sum, *ctx.layout, 0.0, True, state, unused
        )
        return (*of_each, None)


def attend_packed(q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
    """[queries, heads, size], [keys, kv_heads, size] -> [queries, heads, size]; a sequence's last query sees
    its last key, the one before it one key less, and so on."""
    out: Tensor = _Flash.apply(q, k, v, layout)
    return out
