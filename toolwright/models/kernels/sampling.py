"""From logits to the next token of each row, and on to where the row stands then; nothing leaves the GPU.

A row's number in (0, 1), which its seed and place decide, is looked up in the cumulative probabilities: first
among blocks of the vocabulary, of which one pass over the logits left the sums, then in the one it fell in.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096


@dataclass(frozen=True)
class Rows:
    """Where each row stands, [rows] each, and what it has drawn, [steps, rows]; moved on in place."""

    tokens: Tensor  # int64, the last of the sequence
    positions: Tensor  # int64, of that token
    left: Tensor  # int64, tokens that may still be drawn; 0: the row stands still
    seeds: Tensor  # int64
    temperature: Tensor  # float32; 0 takes the likeliest
    ends: Tensor  # [some] int64, tokens that end a turn
    step: Tensor  # [1] int64, the row of `drawn` to be written next
    drawn: Tensor  # int64; -1 where the row stood still
    log_probs: Tensor  # float32

    def __getitem__(self, part: slice) -> Rows:
        """The first rows: tensors of the same memory."""
        of_rows = {name: getattr(self, name)[part] for name in ("tokens", "positions", "left", "seeds")}
        return Rows(
            **of_rows,
            temperature=self.temperature[part],
            ends=self.ends,
            step=self.step,
            drawn=self.drawn,
            log_probs=self.log_probs,
        )


@triton.jit
def _survey(logits, temperature, highest, total, likeliest, vocab, blocks, BLOCK: tl.constexpr):
    row, block = tl.program_id(0), tl.program_id(1)
    column = block * BLOCK + tl.arange(0, BLOCK)
    heat = tl.load(temperature + row)
    x = tl.load(logits + row.to(tl.int64) * vocab + column, mask=column < vocab, other=float("-inf"))
    x = x / tl.where(heat == 0, 1.0, heat)
    above = tl.max(x)
    tl.store(highest + row * blocks + block, above)
    share = tl.where(x == float("-inf"), 0.0, tl.exp(x - above))  # a filter may have left nothing here
    tl.store(total + row * blocks + block, tl.sum(share))
    tl.store(likeliest + row * blocks + block, tl.min(tl.where(x == above, column, 2147483647)))


@triton.jit
def _draw(
    logits, temperature, highest, total, likeliest, tokens, positions, left, seeds, ends, step, drawn,
    log_probs, vocab, blocks, width, end_count, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, ENDS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    block = tl.arange(0, BLOCKS)
    there = block < blocks
    highs = tl.load(highest + row * blocks + block, mask=there, other=float("-inf"))
    above = tl.max(highs)
    sums = tl.load(total + row * blocks + block, mask=there, other=0.0) * tl.exp(highs - above)
    everything = tl.sum(sums)
    heat = tl.load(temperature + row)
    position = tl.load(positions + row)
    # SplitMix64 of seed and place, as on a CPU.
    z = tl.load(seeds + row).to(tl.uint64) * 0xD1342543DE82EF95
    z += (position + 2).to(tl.uint64) * 0x9E3779B97F4A7C15
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    z = z ^ (z >> 31)
    uniform = ((z >> 11).to(tl.float64) + 0.5) * (1.0 / 9007199254740992.0)
    target = (uniform * everything).to(tl.float32)
    reached = tl.cumsum(sums, axis=0)
    chosen = tl.minimum(tl.sum((reached < target).to(tl.int32)), blocks - 1)
    before = tl.sum(tl.where(block < chosen, sums, 0.0))
    column = chosen * BLOCK + tl.arange(0, BLOCK)
    inside = column < vocab
    x = tl.load(logits + row.to(tl.int64) * vocab + column, mask=inside, other=float("-inf"))
    p = tl.exp(x / tl.where(heat == 0, 1.0, heat) - above)
    passed = before + tl.cumsum(p, axis=0)
    last = tl.max(tl.where(p > 0, column, 0))  # rounding must not lead to where nothing is likely
    token = tl.minimum(chosen * BLOCK + tl.sum((passed < target).to(tl.int32)), last)
    best = tl.load(likeliest + row * blocks + block, mask=there, other=2147483647)
    token = tl.where(heat == 0, tl.min(tl.where(highs == above, best, 2147483647)), token)
    of_token = tl.load(logits + row.to(tl.int64) * vocab + token) / tl.where(heat == 0, 1.0, heat)
    log_prob = of_token - above - tl.log(everything)
    remaining = tl.load(left + row)
    going = remaining > 0
    at = tl.load(step) * width + row
    tl.store(drawn + at, tl.where(going, token, -1).to(tl.int64))
    tl.store(log_probs + at, log_prob)
    mark = tl.load(ends + tl.arange(0, ENDS), mask=tl.arange(0, ENDS) < end_count, other=-1)
    ended = tl.sum((mark == token).to(tl.int32)) > 0
    tl.store(tokens + row, token.to(tl.int64), mask=going)
    tl.store(positions + row, position + 1, mask=going)
    tl.store(left + row, tl.where(ended, 0, remaining - 1), mask=going)


def log_softmax(logits: Tensor, temperature: Tensor) -> Tensor:
    """[rows, vocab]: under what a row is drawn from; 0 takes the likeliest, of a distribution at 1."""
    return (logits / torch.where(temperature == 0, 1.0, temperature)[:, None]).log_softmax(-1)


def filtered(logits: Tensor, temperature: Tensor, top_p: Tensor, top_k: Tensor) -> Tensor:
    """Logits without what top-p and top-k, [rows, 1] each, leave out: a token stays while those above it do
    not reach top_p, and at most top_k do; 0 is no limit."""
    chances = log_softmax(logits, temperature).exp_()
    ranked, order = chances.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(logits.shape[1], device=logits.device)[None]
    gone = (ranked.cumsum(-1) - ranked >= top_p) | ((top_k > 0) & (rank >= top_k))
    return logits.masked_fill(torch.zeros_like(gone).scatter_(1, order, gone), float("-inf"))


def draw(logits: Tensor, rows: Rows, *, whole: Tensor | None = None) -> None:
    """Draw one more token for every row that goes on. `logits` [rows, vocab] float32; those before a filter
    took some out are the `whole`, under which log-probabilities are."""
    count, vocab = logits.shape
    blocks = triton.cdiv(vocab, BLOCK)
    highest, total = torch.empty(2, count, blocks, dtype=torch.float32, device=logits.device)
    likeliest = torch.empty(count, blocks, dtype=torch.int32, device=logits.device)
    _survey[(count, blocks)](logits, rows.temperature, highest, total, likeliest, vocab, blocks, BLOCK=BLOCK)
    _draw[(count,)](
        logits, rows.temperature, highest, total, likeliest, rows.tokens, rows.positions, rows.left,
        rows.seeds, rows.ends, rows.step, rows.drawn, rows.log_probs, vocab, blocks, rows.drawn.stride(0),
        len(rows.ends),
        BLOCK=BLOCK, BLOCKS=triton.next_power_of_2(blocks), ENDS=triton.next_power_of_2(len(rows.ends)),
        num_warps=8,
    )  # fmt: skip
    if whole is not None:
        scaled = log_softmax(whole, rows.temperature).gather(1, rows.tokens[:, None])
        rows.log_probs[:, :count].index_copy_(0, rows.step, scaled.t())
    rows.step.add_(1)
