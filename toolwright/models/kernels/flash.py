"""Causal attention of packed sequences of any lengths, by the flash kernel that torch carries."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from toolwright.batch import sent


class Layout(NamedTuple):
    """The beginnings of sequences: of queries and of keys, of which a sequence may have more in front."""

    queries: Tensor  # [sequences + 1] int32
    keys: Tensor
    most_queries: int
    most_keys: int

    @classmethod
    def of(cls, queries: Sequence[int], keys: Sequence[int], device: torch.device) -> Layout:
        """Build the layout of sequences with these numbers of queries and keys."""
        starts = torch.tensor([[0, *accumulate(queries)], [0, *accumulate(keys)]], dtype=torch.int32)
        of_queries, of_keys = sent(starts, device)
        return cls(of_queries, of_keys, max(queries), max(keys))


class FlashAttention(NamedTuple):
    """Attention over a layout, forward and back. `read`: which of the keys that it is given each sequence
    looks back on, one sequence after the other; None: they lie like that already."""

    layout: Layout
    read: Tensor | None = None

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return what the queries gather, and what the way back needs beside it."""
        if self.read is not None:
            k, v = k.index_select(0, self.read), v.index_select(0, self.read)
        out, log_sum, state, unused, _ = torch.ops.aten._flash_attention_forward(
            q, k, v, *self.layout, 0.0, True, False
        )
        return out, (q, k, v, out, log_sum, state, unused)

    def backward(self, gradient: Tensor, saved: Sequence[Tensor], keys: int) -> tuple[Tensor, ...]:
        """The gradients of queries, keys and values, of which there were so many."""
        *given, state, unused = saved
        of_q, of_k, of_v = torch.ops.aten._flash_attention_backward(
            gradient.contiguous(), *given, *self.layout, 0.0, True, state, unused
        )
        if self.read is not None:
            of_k, of_v = (x.new_zeros(keys, *x.shape[1:]).index_add_(0, self.read, x) for x in (of_k, of_v))
        return of_q, of_k, of_v


class _Flash(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, packed: FlashAttention) -> Tensor:
        out, saved = packed.forward(q, k, v)
        ctx.save_for_backward(*saved)
        ctx.packed, ctx.keys = packed, len(k)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return (*ctx.packed.backward(gradients[0], ctx.saved_tensors, ctx.keys), None)


def attend_packed(q: Tensor, k: Tensor, v: Tensor, packed: FlashAttention) -> Tensor:
    """[queries, heads, size], [keys, kv_heads, size] -> [queries, heads, size]; a sequence's last query sees
    its last key, the one before it one key less, and so on."""
    out: Tensor = _Flash.apply(q, k, v, packed)
    return out
