"""The sequences that are decoded together: tensors that advance by one token a pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from toolwright.engines import Sampling
from toolwright.engines.native.cache import SlotCache
from toolwright.engines.native.paged_cache import PagedCache
from toolwright.engines.native.sampler import Sampler
from toolwright.models.layer import Attend

Forward = Callable[[Tensor, Tensor, Attend], Tensor]  # tokens, positions -> logits


class DecodingBatch:
    """The active sequences as tensors. Rebuilt only if a sequence begins, ends or moves to another slot."""

    def __init__(
        self,
        cache: SlotCache | PagedCache,
        slots: Sequence[int],
        tokens: Sequence[Sequence[int]],  # of each sequence, all of them
        sampling: Sequence[Sampling],
    ) -> None:
        device = cache.keys.device
        count = max(slots) + 1
        last, places, moving = [0] * count, [0] * count, [0] * count
        for slot, length in cache.resting():
            if slot < count:
                places[slot] = length  # an idle row writes behind what it keeps
        for slot, known in zip(slots, tokens, strict=True):
            last[slot], places[slot], moving[slot] = known[-1], len(known) - 1, 1
        self.tokens = torch.tensor(last, device=device)
        self.attend = cache.decoding(
            torch.tensor(places, device=device),
            torch.tensor(moving, device=device),
            seen=max(map(len, tokens)),
        )
        full = list(slots) == list(range(count))
        self.slots = None if full else torch.tensor(slots, device=device)
        self.sampler = Sampler(sampling, [len(known) for known in tokens])

    def step(self, logits_of: Forward) -> tuple[Tensor, Tensor]:
        """The next token of each sequence, and its log-probability."""
        attend = self.attend
        logits = logits_of(self.tokens, attend.positions, attend)
        if self.slots is None:
            self.tokens, log_probs = self.sampler(logits)
            sampled = self.tokens
        else:
            sampled, log_probs = self.sampler(logits.index_select(0, self.slots))
            self.tokens[self.slots] = sampled
        attend.advance()
        return sampled, log_probs
