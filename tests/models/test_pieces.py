"""Steps of the decoder whose way back is written by hand, beside the formula that autograd takes apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import tiny
import torch
import torch.nn.functional as F
from torch import Tensor

from toolwright.batch import Batch
from toolwright.learner.forward import statistics
from toolwright.models import attention
from toolwright.models.attention import PackedAttention
from toolwright.models.elementwise import rotated, swiglu
from toolwright.models.huggingface import halved, paired


def gradients(of: Callable[..., Tensor], inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Of a random direction, and of each input; and that without gradients the same numbers come out."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    out = of(*leaves)
    direction = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out.dtype)
    with torch.no_grad():
        assert torch.equal(of(*inputs), out)
    return out.detach(), *torch.autograd.grad((out * direction).sum(), leaves)


def compare(found: tuple[Tensor, ...], wanted: tuple[Tensor, ...]) -> None:
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other.to(one.dtype), rtol=1e-4, atol=1e-5)


def test_swiglu() -> None:
    x = 3 * torch.randn(7, 2 * 5, generator=torch.Generator().manual_seed(0))

    def plain(x: Tensor) -> Tensor:
        gate, up = x.chunk(2, dim=-1)
        return F.silu(gate) * up

    compare(gradients(swiglu, [x]), gradients(plain, [x.double()]))


def test_a_rotation_is_that_of_transformers_once_halves_are_pairs() -> None:
    shape = tiny.shape()
    turn = tiny.decoder().turns[torch.tensor([3, 0, 41])][:, None]
    x = torch.randn(3, 4, shape.head_dim, generator=torch.Generator().manual_seed(0))
    cos, sin = turn.real.repeat(1, 1, 2).double(), turn.imag.repeat(1, 1, 2).double()

    def plain(x: Tensor) -> Tensor:
        one, other = x.chunk(2, dim=-1)
        return x * cos + torch.cat((-other, one), dim=-1) * sin

    def ours(x: Tensor) -> Tensor:
        turned = rotated(_last(paired, x), turn)
        return _last(halved, turned)

    def _last(arrange: Callable[..., Tensor], x: Tensor) -> Tensor:
        return arrange(x.movedim(-1, 0), shape).movedim(0, -1).contiguous()

    compare(gradients(ours, [x]), gradients(plain, [x.double()]))


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize(
    ("lengths", "shared", "wanted"),
    [
        ([7, 7, 7], None, None),
        ([3, 9, 1, 5], None, [2, 9, 1, 4]),
        ([6, 9, 5, 7], [(0, 0), (0, 4), (2, 0), (0, 4)], [5, 8, 5, 4]),
        ([150, 90, 70, 200], [(0, 0), (0, 40), (2, 0), (0, 66)], [149, 89, 1, 199]),  # in several pieces
    ],
)
def test_short_sequences_are_attended_to_as_long_ones_are(
    kv_heads: int,
    lengths: list[int],
    shared: list[tuple[int, int]] | None,
    wanted: list[int] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generator = torch.Generator().manual_seed(0)
    short = PackedAttention(lengths, torch.device("cpu"), shared, wanted)
    monkeypatch.setattr(attention, "LONGEST", 0)
    fused = PackedAttention(lengths, torch.device("cpu"), shared, wanted)
    tokens = len(short.kept)
    inputs = [torch.randn(tokens, heads, 8, generator=generator) for heads in (4, kv_heads, kv_heads)]
    found = gradients(lambda *qkv: short(0, *qkv), inputs)
    assert short.blocks is not None
    compare(found, gradients(lambda *qkv: fused(0, *qkv), inputs))
    assert fused.blocks is None


def test_attempts_of_one_token_after_a_shared_prompt_ask_only_their_prompt() -> None:
    model = tiny.decoder()
    attempts = [tiny.trajectory([("prompt", [4, 5, 6]), ("policy", [token])]) for token in (7, 8)]
    batch = Batch.pack(attempts)
    attend = PackedAttention(batch.lengths, torch.device("cpu"), batch.shared_prompts(), batch.chosen_from())
    assert len(attend.kept) == 3
    found = statistics(model, batch, temperature=1.0).log_prob
    every = tiny.logits(model, [4, 5, 6]).log_softmax(-1)[-1]
    torch.testing.assert_close(found.detach(), every[[7, 8]], rtol=0, atol=1e-5)
    found.sum().backward()
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in model.parameters())
