"""The number of tokens in one pass: as configured, or as many as the GPU's memory holds."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, Protocol, Required, TypedDict, TypeVar

import torch
from torch import nn

from toolwright.failures import UserError
from toolwright.learner import eight_bit
from toolwright.learner.optimizer import Optimizer, own_part
from toolwright.learner.ranks import ALONE, Ranks
from toolwright.models import kernels
from toolwright.models.decoder import ROWS_AT_ONCE, Decoder, Recompute, Shape, Stored

T = TypeVar("T")

ON_A_CPU = 16_384
LEAST, MOST = 2_048, 131_072
GIB = 1 << 30
SHARE = 0.6  # of the memory that is free once optimiser and gradients have theirs; the rest is for caches
PASS_SHARE = 0.8  # of what a pass has on a GPU: sizes differ from one to the next, and leave gaps
LOGITS = 6 * GIB  # of a chunk in float32, and their gradient in bfloat16
SLACK = GIB  # workspaces of libraries


class HasLengths(Protocol):
    """Work that can be computed in parts; a part holds at least one sequence."""

    @property
    def lengths(self) -> list[int]: ...


class TokenBudget:
    """The budget of one model. It is found at the first pass, once everybody else has taken their memory, and
    halved if they take more later."""

    def __init__(
        self, asked: int | None, decoder: Decoder, *, ranks: Ranks = ALONE, packs: bool = False
    ) -> None:
        """`ranks` are at the same micro-batch at the same time. `packs`: the optimiser's state is in eight
        bits."""
        self.asked, self.decoder, self.ranks, self.packs = asked, decoder, ranks, packs

    @cached_property
    def tokens(self) -> int:
        """The smallest budget of all ranks, so that all ranks split a batch alike."""
        return -int(self.ranks.highest(-token_budget(self.asked, self.decoder, packs=self.packs)))

    def fit(self, batch: HasLengths, work: Callable[[], T]) -> T:
        """Do the work; if memory runs out, do it again from the beginning in smaller parts."""
        while True:
            try:
                return work()
            except RuntimeError as error:
                if not _is_of_memory(error):
                    raise
                if self.ranks.size > 1 or self.tokens <= max(batch.lengths):
                    raise UserError(self._full(max(batch.lengths))) from error
            self.tokens //= 2  # out there the error is forgotten, and with it what the pass had kept
            torch.cuda.empty_cache()

    def _full(self, longest: int) -> str:
        device, seen = self.decoder.device, ""
        if device.type == "cuda":
            free, held = torch.cuda.mem_get_info(device)[0], torch.cuda.memory_reserved(device)
            seen = f" ({held / GIB:.1f} GiB are this process's, {free / GIB:.1f} free)"
        return (
            f"{device} has no memory for a pass, not even over one sequence of {longest:,} tokens{seen}; set "
            "model.gradient_checkpointing=true or model.lora.rank=16, lower model.context or engine.slots, "
            "or use a device that no other program uses"
        )


class PassSettings(TypedDict, total=False):
    """How a model's passes are computed."""

    micro_tokens: Required[int | None]  # of one pass; None: as many as memory holds
    dtype: Required[torch.dtype]  # of matrix products
    ranks: Ranks  # that share the work
    packs: bool  # the optimiser's state is in eight bits


class ModelPasses:
    """A model of the learner, whose passes are cut to size. `body` is the decoder in `model`, or `model`
    itself."""

    optimizer: Optimizer | None = None

    def __init__(
        self,
        model: nn.Module,
        body: Decoder,
        *,
        micro_tokens: int | None,
        dtype: torch.dtype,
        ranks: Ranks = ALONE,
        packs: bool = False,
    ) -> None:
        self.model, self.dtype, self.ranks, self.packs = model, dtype, ranks, packs
        self.budget = TokenBudget(micro_tokens, body, ranks=ranks, packs=packs)
        self.padded = padded(body, dtype)
        ranks.shard(model, body, dtype=dtype)

    def state_dict(self) -> dict[str, Any]:
        return self.ranks.state(self.model, self.optimizer)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.ranks.restore(self.model, self.optimizer, state)


def _is_of_memory(error: RuntimeError) -> bool:
    """True for torch's own out-of-memory error, and for those of its libraries once torch has taken all
    memory."""
    return isinstance(error, torch.OutOfMemoryError) or "STATUS_ALLOC_FAILED" in str(error)


def token_budget(asked: int | None, decoder: Decoder, *, packs: bool = False) -> int:
    """Rounded down to a power of two, so that a run sees few different sizes."""
    if asked is not None:
        return asked
    device = decoder.device
    if device.type != "cuda":
        return ON_A_CPU
    free = torch.cuda.mem_get_info(device)[0]
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    parameters = [p for p in decoder.parameters() if p.requires_grad]
    kept = sum(
        own_part(p).numel() * (p.element_size() + moment_bytes(packs=packs or p.dtype == torch.bfloat16))
        for p in parameters
        if p.grad is None
    )
    matrices = decoder.shape.layers * layer_numbers(decoder.shape) + decoder.shape.idle_parameters
    adapted = decoder.adapter is not None
    kept += pass_overhead(
        decoder.shape, matrices, decoder.stored, adapted=adapted, recompute=decoder.recompute
    )
    return tokens_in(free - kept, token_bytes(decoder.shape, decoder.recompute))


def tokens_in(room: float, bytes_of_token: int) -> int:
    """Tokens of a pass that has so many bytes, as a power of two within the limits."""
    tokens = int(max(0.0, room) * PASS_SHARE / bytes_of_token)
    return max(LEAST, min(MOST, 1 << max(tokens, 1).bit_length() - 1))


def moment_bytes(*, packs: bool) -> float:
    """Bytes of the optimiser's state for each learned number."""
    return 2 + 8 / eight_bit.BLOCK if packs else 8


def padded(decoder: Decoder, dtype: torch.dtype) -> bool:
    """True if any layer pads the sequences of a pass to the longest."""
    packed = decoder.fast and decoder.device.type == "cuda" and dtype != torch.float32
    return not (packed and kernels.available())


def token_bytes(shape: Shape, recompute: Recompute = False) -> int:
    """Bytes of activations that a token keeps for the backward pass, at two bytes a number: around each norm,
    heads before and after rotation, attention output, gate, up and their product, and the inputs and outputs
    of experts."""
    heads = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    of_ffn = 3 * shape.token_ffn + (0 if shape.experts is None else 3 * shape.experts.used * shape.width)
    of_layer = 5 * shape.width + 2 * heads + shape.heads * shape.head_dim + of_ffn
    if recompute is True:  # a layer's input, and all of the layer that the way back is at
        return 2 * (shape.layers * shape.width + of_layer + 4 * shape.width)
    if recompute == "ffn":
        of_layer -= of_ffn + shape.width
    return 2 * (shape.layers * of_layer + 4 * shape.width)


def pass_overhead(shape: Shape, matrices: int, stored: Stored, *, adapted: bool, recompute: Recompute) -> int:
    """Bytes that a pass on a GPU takes, whatever its number of tokens: the logits of a chunk, the output
    layer's gradient, and bfloat16 copies of `matrices` numbers that are stored in another type."""
    made = adapted or stored != "bfloat16"
    casts = 2 * made * (matrices if recompute is not True else 2 * matrices // shape.layers)
    of_matrices = 4 * matrices // shape.layers  # of one layer, before they are added to the others
    again = 12 * shape.token_ffn * ROWS_AT_ONCE if recompute == "ffn" else 0
    head = 0 if adapted else 8 * shape.vocab * shape.width
    return LOGITS + SLACK + casts + of_matrices + again + head


def layer_numbers(shape: Shape) -> int:
    """Numbers of a layer's matrices, of experts those that a token uses."""
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    return shape.width * (2 * q + 2 * kv + 3 * shape.token_ffn)
