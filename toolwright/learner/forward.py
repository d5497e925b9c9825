"""One forward pass over packed sequences, what it says of each action, and the way back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from toolwright.batch import Batch, sent
from toolwright.failures import UserError
from toolwright.learner.ranks import Ranks
from toolwright.models import kernels
from toolwright.models.attention import PackedAttention
from toolwright.models.decoder import Decoder
from toolwright.models.experts import RouterLog, likeliest
from toolwright.models.layer import Attend
from toolwright.models.precision import autocast

# Logits of a chunk stay under this many numbers: for a real vocabulary they are far larger than everything
# else. On a GPU, `kernels.likelihood` has a number of its own.
LOGITS_AT_ONCE = 1 << 26


@dataclass(frozen=True)
class Statistics:
    """[actions] each: how likely the action was, how undecided the policy, and Σ π² if asked for."""

    log_prob: Tensor
    entropy: Tensor
    sum_pi_squared: Tensor | None = None


def precision(decoder: Decoder, dtype: torch.dtype) -> torch.autocast:
    """Matrix products in `dtype`, master weights in float32."""
    return autocast(decoder.device, dtype)


class ActionStates(NamedTuple):
    """The hidden state from which each action was chosen, the one before its token."""

    hidden: Tensor  # [actions, width], or those that this rank has where ranks divide the pass's tokens
    said: Tensor  # the tokens of these actions
    whole: Callable[[Tensor], Tensor] | None = None  # where they are not all

    def joined(self, values: Tensor) -> Tensor:
        """[actions, …] of the whole batch, from what was computed of these."""
        return values if self.whole is None else self.whole(values)


def states(decoder: Decoder, batch: Batch, log: RouterLog | None = None) -> ActionStates:
    """The batch is one in main memory: what is to be computed is found there, and a GPU not waited for. `log`
    is of a model with experts, and notes how they are used."""
    device, sequence = decoder.device, decoder.sequence
    packed = PackedAttention(batch.row_lengths, device, batch.shared_prompts(), batch.chosen_from())
    attend: Attend = packed
    tokens, positions, place = batch.tokens[packed.kept], packed.positions, packed.where[batch.actions - 1]
    said, whole = batch.tokens[batch.actions], None
    if sequence is not None:
        own, attend = sequence.own(len(tokens)), sequence.attention(packed, len(tokens))
        tokens, positions = tokens[own], positions[own]
        mine = ((place >= own.start) & (place < own.stop)).nonzero()[:, 0]
        place, said = place[mine] - own.start, said[mine]
        whole = partial(sequence.joined, places=sent(mine, device), count=len(batch.actions))
    if batch.images:
        hidden = _seen(decoder, batch, packed, sent(tokens, device))
    else:
        hidden = decoder(sent(tokens, device), positions, attend, log or likeliest)
    return ActionStates(hidden.index_select(0, sent(place, device)), sent(said, device), whole)


def _seen(decoder: Decoder, batch: Batch, packed: PackedAttention, tokens: Tensor) -> Tensor:
    """The hidden states of a pass over sequences with images."""
    from toolwright.models.own_forward import vision_model
    from toolwright.models.vision import vision_of_batch

    if decoder.sequence is not None:
        raise UserError("sequences with images cannot be divided among ranks: set policy.ranks.sequence=1")
    own = vision_model(decoder)
    hidden: Tensor = own(tokens, packed.positions, packed, vision=vision_of_batch(own, batch, packed))
    return hidden


def _router_log(decoder: Decoder) -> RouterLog | None:
    return None if decoder.shape.experts is None else RouterLog(decoder.shape.experts)


class _Chosen(torch.autograd.Function):
    """The log-probability of each row's target, and the entropy, which has no gradient.

    ∂logits = g (1[target] − π): π alone is kept, and becomes the gradient in place. With a real vocabulary
    nothing else is as large."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        log_all = logits.log_softmax(-1)
        log_prob = log_all.gather(1, target[:, None])[:, 0]
        every = log_all.exp()
        ctx.save_for_backward(every, target)
        entropy = log_all.mul_(every).sum(-1).neg_()
        ctx.mark_non_differentiable(entropy)
        return log_prob, entropy

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        every, target = ctx.saved_tensors
        given = gradients[0][:, None]
        return every.mul_(-given).scatter_add_(1, target[:, None], given), None


class _Pulled(torch.autograd.Function):
    """Whose way back is the gradient that it is given. `Tensor.backward` takes one as well, and imports the
    compiler for it."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(gradient)
        return states.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.saved_tensors[0], None


def statistics(
    decoder: Decoder,
    batch: Batch,
    *,
    temperature: float,
    squares: bool = False,
    entropy_gradient: bool = False,
) -> Statistics:
    found = states(decoder, batch)
    own = _of_states(decoder, found.hidden, found.said, temperature, squares, entropy_gradient)
    return _joined(found, own)


def _joined(states: ActionStates, own: Statistics) -> Statistics:
    """Join the statistics into those of the whole batch."""
    if states.whole is None:
        return own
    columns = [own.log_prob, own.entropy]
    columns += [] if own.sum_pi_squared is None else [own.sum_pi_squared]
    return Statistics(*states.joined(torch.stack(columns, dim=1)).unbind(1))


def learn(
    decoder: Decoder,
    batch: Batch,
    loss_of: Callable[[Batch, Statistics], Tensor],
    *,
    temperature: float,
    dtype: torch.dtype,
    entropy_gradient: bool = False,
    at_once: bool = False,
    share: float = 1.0,
) -> dict[str, Tensor]:
    """Forward and back, adding to gradients. Losses are of some sequences after the other, and add up: there
    are logits of a chunk at a time, and none of them are computed twice. `at_once`: of all sequences.

    Returns how evenly experts were used, if the model has any. `share`: of the update's actions that this
    pass has; the loss that spreads tokens over experts is weighed by it."""
    here, log = batch.to(decoder.device), _router_log(decoder)
    with precision(decoder, dtype):
        found = states(decoder, batch, log)
    hidden = found.hidden
    rows = len(batch.actions) if at_once else _rows(decoder, hidden)
    gradients, done = [], 0
    for piece in _pieces(here, rows):
        part = slice(done, done + len(piece.actions))
        chosen = hidden.detach()[part].requires_grad_()
        with precision(decoder, dtype):
            now = _of_states(decoder, chosen, found.said[part], temperature, False, entropy_gradient)
        loss_of(piece, _joined(found, now)).backward()
        assert chosen.grad is not None
        gradients.append(chosen.grad)
        done += len(chosen)
    pulled = _Pulled.apply(hidden, torch.cat(gradients))
    if log is not None and log.shape.balance:
        pulled = pulled + share * log.shape.balance * log.imbalance()
    pulled.backward()
    return {} if log is None else log.metrics()


def _pieces(batch: Batch, rows: int) -> Iterator[Batch]:
    """Sequences with at most so many actions together; one that has more stands alone."""
    cuts = _cuts(batch.action_lengths, rows)
    yield from [batch] if len(cuts) == 1 else (batch.between(*cut) for cut in cuts)


def _cuts(lengths: Sequence[int], most: int) -> list[tuple[int, int]]:
    cuts, first, count = [], 0, 0
    for row, length in enumerate(lengths):
        if count and length and count + length > most:
            cuts.append((first, row))
            first, count = row, 0
        count += length
    return [*cuts, (first, len(lengths))]


def _rows(decoder: Decoder, hidden: Tensor) -> int:
    """The number of actions whose logits may exist at once."""
    numbers = LOGITS_AT_ONCE
    if decoder.fast and decoder.tensor is None and kernels.usable(hidden):
        from toolwright.models.kernels import likelihood

        numbers = likelihood.LOGITS_AT_ONCE
    return max(1, numbers // decoder.shape.vocab)


def _of_states(
    decoder: Decoder,
    chosen: Tensor,
    targets: Tensor,
    temperature: float,
    squares: bool,
    entropy_gradient: bool,
) -> Statistics:
    tensor = decoder.tensor
    if decoder.fast and tensor is None and kernels.usable(chosen):
        from toolwright.models.kernels.likelihood import likelihood

        log_prob, entropy, square = likelihood(chosen, decoder.unembedding.weight, targets, temperature)
        entropy = entropy if entropy_gradient else entropy.detach()
        return Statistics(log_prob, entropy, square if squares else None)
    rows = _rows(decoder, chosen)

    def of_chunk(hidden: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = decoder.head(hidden)
        if temperature != 1:
            logits = logits / temperature
        if tensor is not None:
            from toolwright.models.tensor_group import likelihood

            return likelihood(logits, target, decoder.first_token, tensor)
        if not squares and not entropy_gradient:
            log_prob, entropy = _Chosen.apply(logits, target)
            return log_prob, entropy, entropy
        log_all = logits.log_softmax(-1)
        log_prob = log_all.gather(1, target[:, None])[:, 0]
        if not entropy_gradient:
            log_all = log_all.detach()
        every = log_all.exp()
        entropy = -(every * log_all).sum(-1)
        return log_prob, entropy, every.square().sum(-1) if squares else entropy

    if len(targets) <= rows:
        pieces = [of_chunk(chosen, targets)]
    else:
        pieces = [
            checkpoint(of_chunk, h, t, use_reentrant=False)
            for h, t in zip(chosen.split(rows), targets.split(rows), strict=True)
        ]
    log_prob, entropy, square = (torch.cat(column) for column in zip(*pieces, strict=True))
    entropy = entropy if entropy_gradient else entropy.detach()
    return Statistics(log_prob, entropy, square if squares else None)


PLACE = "place"  # the column that tells which of a step's actions this is, however the batch is cut up

Note = Callable[[Batch, Statistics], None]


class ActionLog:
    """Statistics that an update computes anyway. They stay on the device until they are read."""

    def __init__(self, batch: Batch) -> None:
        """Gives the batch its column `place`."""
        self.actions = len(batch.actions)
        batch.columns[PLACE] = torch.arange(self.actions)
        self._noted: list[tuple[Tensor, Tensor]] = []

    def note(self, piece: Batch, now: Statistics) -> None:
        known = torch.stack([now.log_prob, now.entropy, torch.ones_like(now.entropy)], dim=1)
        self._noted.append((piece.columns[PLACE], known.detach()))

    def whole(self, ranks: Ranks) -> tuple[Tensor, Tensor, Tensor]:
        """(log-probability, entropy, whether any pass saw it), [actions] each, the same on all ranks."""
        found = torch.zeros(self.actions, 3)
        if self._noted:
            places, known = (torch.cat(parts).cpu() for parts in zip(*self._noted, strict=True))
            found[places] = known.float()
        log_prob, entropy, noted = ranks.total(found).unbind(1)  # nought from all ranks but one
        return log_prob, entropy, noted.bool()
