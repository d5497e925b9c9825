"""What the learner computes with: forward and back, against autograd through plain PyTorch in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from toolwright.models.elementwise import rms_norm, swiglu
from toolwright.models.kernels import gated, heads, likelihood, norm
from toolwright.models.kernels import layer as fused
from toolwright.models.layer import LayerWeights, layer

PRECISIONS = pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 2e-5), (torch.bfloat16, 2e-2)])


def numbers(*size: int, device: torch.device, dtype: torch.dtype, seed: int = 0) -> Tensor:
    made = torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return made.to(dtype).to(device).requires_grad_()


def alike(mine: Tensor, theirs: Tensor, close: float) -> None:
    assert mine.shape == theirs.shape
    assert torch.isfinite(mine).all()
    assert float((mine.double() - theirs).norm() / theirs.norm()) < close


def compare(mine: Any, theirs: Any, given: list[Tensor], close: float) -> None:
    """Both on the same numbers: results, and what a random gradient gives each input."""
    wide = [x.detach().double().requires_grad_() for x in given]
    results, wanted = mine(*given), theirs(*wide)
    for i, (a, b) in enumerate(zip(results, wanted, strict=True)):
        alike(a.detach(), b.detach(), close)
        pull = numbers(*b.shape, device=b.device, dtype=torch.float64, seed=7 + i).detach()
        a.backward(pull.to(a.dtype), retain_graph=True)
        b.backward(pull, retain_graph=True)
    for a, b in zip(given, wide, strict=True):
        assert a.grad is not None
        assert b.grad is not None
        alike(a.grad, b.grad, close)


@PRECISIONS
@pytest.mark.parametrize("size", [(5, 48), (3, 64), (1, 7), (40, 576)])
def test_norm(size: tuple[int, int], dtype: torch.dtype, close: float, device: torch.device) -> None:
    x, weight = (
        numbers(*size, device=device, dtype=dtype),
        numbers(size[1], device=device, dtype=dtype, seed=1),
    )
    compare(
        lambda x, w: [norm.rms_norm(x, w, 1e-5)],
        lambda x, w: [x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * w],
        [x, weight],
        close,
    )


@PRECISIONS
@pytest.mark.parametrize("size", [(5, 24), (3, 2048), (1, 3000)])
def test_swiglu(size: tuple[int, int], dtype: torch.dtype, close: float, device: torch.device) -> None:
    given = numbers(*size, device=device, dtype=dtype)
    plain = given.detach().double().requires_grad_()
    wanted = swiglu(plain)
    alike(gated.swiglu(given.detach()), wanted.detach(), close)
    pull = numbers(*wanted.shape, device=device, dtype=dtype, seed=1).detach()
    wanted.backward(pull.double())
    assert plain.grad is not None
    alike(gated.back(pull, given.detach()), plain.grad, close)


def plain_heads(
    qkv: Tensor, weight: Tensor | None, turn: Tensor, count: int, kv: int
) -> tuple[Tensor, Tensor, Tensor]:
    every = qkv.view(len(qkv), count + 2 * kv, -1)
    qk, v = every.split_with_sizes((count + kv, kv), dim=1)
    if weight is not None:
        qk = rms_norm(qk, weight, 1e-6)
    turned = torch.view_as_real(torch.view_as_complex(qk.unflatten(2, (-1, 2)).contiguous()) * turn)
    q, k = turned.flatten(2).split_with_sizes((count, kv), dim=1)
    return q, k, v


def turns(tokens: int, size: int, device: torch.device) -> Tensor:
    angle = torch.randn(tokens, 1, size // 2, device=device, dtype=torch.float64)
    return torch.polar(torch.ones_like(angle), angle)


@PRECISIONS
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(("tokens", "count", "kv", "size"), [(3, 4, 2, 16), (130, 3, 3, 64), (33, 5, 1, 24)])
def test_heads(
    tokens: int, count: int, kv: int, size: int, normed: bool, dtype: torch.dtype, close: float, device: Any
) -> None:
    qkv = numbers(tokens, (count + 2 * kv) * size, device=device, dtype=dtype)
    weight = numbers(count + kv, size, device=device, dtype=dtype, seed=1) if normed else None
    wide = [None if x is None else x.detach().double().requires_grad_() for x in (qkv, weight)]
    turn = turns(tokens, size, device)
    assert wide[0] is not None
    wanted = plain_heads(wide[0], wide[1], turn, count, kv)
    short = turn.to(torch.complex64)
    with torch.no_grad():
        found = heads.split_heads(qkv, weight, 1e-6, short, count, kv)
        for mine, theirs in zip(found, wanted, strict=True):
            alike(mine, theirs, close)
        pulls = [
            numbers(*x.shape, device=device, dtype=dtype, seed=7 + i).detach() for i, x in enumerate(wanted)
        ]
        of_qkv, of_weight = heads.back(tuple(pulls), qkv, weight, 1e-6, short)
    torch.autograd.backward(wanted, [pull.double() for pull in pulls])
    assert wide[0].grad is not None
    alike(of_qkv, wide[0].grad, close)
    if wide[1] is not None:
        assert of_weight is not None
        assert wide[1].grad is not None
        alike(of_weight, wide[1].grad, close)


class Plain:
    """Attention of one sequence by autograd, in the type that it is given."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        return self.gathered(q, k, v).detach(), (q, k, v)

    def backward(self, gradient: Tensor, saved: Any, keys: int) -> tuple[Tensor, ...]:
        assert keys == len(saved[1])
        with torch.enable_grad():
            given = [x.detach().requires_grad_() for x in saved]
            return torch.autograd.grad(self.gathered(*given), given, gradient)

    @staticmethod
    def gathered(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return out[0].transpose(0, 1)


@PRECISIONS
@pytest.mark.parametrize("rows", [None, 37, 16], ids=["kept", "again", "in parts"])
@pytest.mark.parametrize(
    ("count", "kv", "normed", "biased", "frozen"),
    [(4, 2, False, False, ()), (4, 4, True, False, ()), (6, 2, False, True, ("qkv", "down"))],
)
def test_a_layer(
    count: int, kv: int, normed: bool, biased: bool, frozen: tuple[str, ...], rows: int | None,
    dtype: torch.dtype, close: float, device: Any,
) -> None:  # fmt: skip
    """Against the layer that a CPU computes, its parameters in float32 whatever the states are in."""
    if device.type == "cpu" and dtype == torch.bfloat16:
        pytest.skip("products in bfloat16, which not every CPU has")
    tokens, width, size, ffn = 37, 48, 16, 80
    sizes = {
        "attention_norm": (width,), "qkv": ((count + 2 * kv) * size, width),
        "qkv_bias": ((count + 2 * kv) * size,) if biased else None,
        "q_norm": (size,) if normed else None, "k_norm": (size,) if normed else None,
        "out": (width, count * size), "ffn_norm": (width,), "gate_up": (2 * ffn, width), "down": (width, ffn),
    }  # fmt: skip
    made = {}
    for seed, (name, shape) in enumerate(sizes.items()):
        if shape is not None:
            parameter = numbers(*shape, device=device, dtype=torch.float32, seed=seed).detach()
            made[name] = (parameter * shape[-1] ** -0.5 if len(shape) == 2 else 1 + 0.1 * parameter).to(dtype)
    x = numbers(tokens, width, device=device, dtype=dtype, seed=99)
    turn = turns(tokens, size, device)
    mine = {n: t.float().clone().requires_grad_(n not in frozen) for n, t in made.items()}
    theirs = {n: t.double().requires_grad_(n not in frozen) for n, t in made.items()}
    parameters = fused.Parameters(**{name: mine.get(name) for name in sizes})  # type: ignore[arg-type]
    found = fused.layer(
        x, turn.to(torch.complex64), Plain(), parameters, counts=(count, kv), eps=1e-6, rows=rows
    )
    wide = x.detach().double().requires_grad_()
    qk_norm = (
        torch.cat([theirs["q_norm"].expand(count, -1), theirs["k_norm"].expand(kv, -1)]) if normed else None
    )
    weights = LayerWeights(
        attention_norm=theirs["attention_norm"], qkv=theirs["qkv"].t(), qkv_bias=theirs.get("qkv_bias"),
        qk_norm=qk_norm, out=theirs["out"].t(), ffn_norm=theirs["ffn_norm"], gate_up=theirs["gate_up"].t(),
        down=theirs["down"].t(), heads=count, kv_heads=kv, norm_eps=1e-6,
    )  # fmt: skip
    wanted = layer(
        0, wide, weights, turn, lambda _, q, k, v: Plain.gathered(q, k, v),
        split=lambda _, flat, w, turn: plain_heads(flat, w.qk_norm, turn, count, kv),
    )  # fmt: skip
    alike(found.detach(), wanted.detach(), close)
    pull = numbers(tokens, width, device=device, dtype=dtype, seed=7).detach()
    found.backward(pull)
    wanted.backward(pull.double())
    assert x.grad is not None
    assert wide.grad is not None
    alike(x.grad, wide.grad, close)
    for name, parameter in mine.items():
        if name in frozen:
            assert parameter.grad is None
            continue
        of_mine, of_theirs = parameter.grad, theirs[name].grad
        assert of_mine is not None
        assert of_theirs is not None
        assert of_mine.dtype == torch.float32
        alike(of_mine, of_theirs, 2 * close)


@PRECISIONS
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize(("rows", "vocab"), [(5, 40), (3, 9000)])
def test_likelihood(
    rows: int, vocab: int, temperature: float, dtype: torch.dtype, close: float, device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if device.type == "cpu" and dtype == torch.bfloat16:
        pytest.skip("the products around the kernel are in bfloat16, which not every CPU has")
    monkeypatch.setattr(likelihood, "LOGITS_AT_ONCE", 2 * vocab)  # several chunks, the last one smaller
    hidden = numbers(rows, 16, device=device, dtype=dtype)
    weight = numbers(vocab, 16, device=device, dtype=torch.float32, seed=1)
    target = torch.arange(rows, device=device) * (vocab // rows)

    def plainly(hidden: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        every = (hidden @ weight.to(dtype).double().t() / temperature).log_softmax(-1)
        return every.gather(1, target[:, None])[:, 0], -(every.exp() * every).sum(-1)

    def ours(hidden: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        return likelihood.likelihood(hidden, weight, target, temperature)[:2]

    with torch.no_grad():
        squares = likelihood.likelihood(hidden, weight, target, temperature)[2]
        every = (hidden.double() @ weight.to(dtype).double().t() / temperature).softmax(-1)
        alike(squares, every.square().sum(-1), close)
    compare(ours, plainly, [hidden, weight], close)


@PRECISIONS
@pytest.mark.parametrize("rows", [None, 16], ids=["kept", "in parts"])
def test_what_was_added_to_a_layers_matrices(
    rows: int | None, dtype: torch.dtype, close: float, device: Any
) -> None:
    """Gradients of A and B are those that go through the sum, without the gradient of the whole matrix."""
    if device.type == "cpu" and dtype == torch.bfloat16:
        pytest.skip("products in bfloat16, which not every CPU has")
    tokens, width, size, ffn, rank, count = 37, 48, 16, 80, 3, 3
    sizes = {"qkv": (3 * count * size, width), "out": (width, count * size)}
    sizes |= {"gate_up": (2 * ffn, width), "down": (width, ffn)}
    base = {
        name: numbers(*shape, device=device, dtype=torch.float32, seed=seed).detach() * shape[1] ** -0.5
        for seed, (name, shape) in enumerate(sizes.items())
    }
    places = [("qkv", 0, 48), ("qkv", 96, 48), ("out", 0, width), ("gate_up", 80, 80), ("down", 0, width)]
    pairs = [
        (
            numbers(rank, sizes[name][1], device=device, dtype=torch.float32, seed=20 + i),
            numbers(height, rank, device=device, dtype=torch.float32, seed=40 + i),
        )
        for i, (name, _, height) in enumerate(places)
    ]
    x, turn = numbers(tokens, width, device=device, dtype=dtype, seed=99), turns(tokens, size, device)
    pull = numbers(tokens, width, device=device, dtype=dtype, seed=7).detach()

    def gradients(*, through_sums: bool) -> list[Tensor]:
        made = {name: matrix.clone() for name, matrix in base.items()}
        for (name, start, height), (a, b) in zip(places, pairs, strict=True):
            wide = torch.zeros_like(made[name])
            wide[start : start + height] = 0.1 * (b @ a)
            made[name] = made[name] + (wide if through_sums else wide.detach())
        ones = torch.ones(width, device=device)
        parameters = fused.Parameters(
            ones, made["qkv"], None, None, None, made["out"], ones, made["gate_up"], made["down"]
        )
        added = [fused.AddedRows(*place, 0.1, a, b) for place, (a, b) in zip(places, pairs, strict=True)]
        out = fused.layer(
            x, turn.to(torch.complex64), Plain(), parameters, counts=(count, count), eps=1e-6, rows=rows,
            added=() if through_sums else added,
        )  # fmt: skip
        return list(torch.autograd.grad(out, [x, *(tensor for pair in pairs for tensor in pair)], pull))

    for found, wanted in zip(gradients(through_sums=False), gradients(through_sums=True), strict=True):
        alike(found, wanted.double(), 2 * close)
