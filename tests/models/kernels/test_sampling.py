"""What the engine decodes with, against the same in plain PyTorch and the sampler of a CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from toolwright.engines.native.sampler import uniform
from toolwright.models.kernels import decoding
from toolwright.models.kernels.sampling import Rows, draw, filtered


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(("heads", "kv", "size"), [(4, 2, 16), (3, 1, 64), (6, 6, 24)])
@pytest.mark.parametrize(("parts", "page"), [(1, 64), (4, 64), (1, 128), (4, 128)])
def test_a_token_is_put_in_its_place_and_looks_back(
    heads: int,
    kv: int,
    size: int,
    normed: bool,
    parts: int,
    page: int,
    device: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pages in any order; the first is shared by two rows."""
    monkeypatch.setattr(decoding, "splits", lambda *_: parts)
    rows, context = 5, 256
    dtype, close = (torch.bfloat16, 2e-2) if device.type == "cuda" else (torch.float32, 1e-5)
    each = context // page
    cache = torch.randn(2, rows * each, kv, page, size, device=device).to(dtype)
    order = torch.arange(rows * each).flip(0).view(each, rows).t()
    order[4, 0] = order[3, 0]
    table = torch.zeros(rows, each + 1, dtype=torch.int32, device=device)
    table[:, :each] = order
    before, written = cache.double(), torch.zeros_like(cache, dtype=torch.bool)
    qkv = torch.randn(rows, (heads + 2 * kv) * size, device=device).to(dtype)
    weight = torch.rand(heads + kv, size, device=device) + 0.5 if normed else None
    angle = torch.randn(context, size // 2, device=device)
    turns = torch.polar(torch.ones_like(angle), angle)
    positions = torch.tensor([0, 63, 64, 130, 199], device=device)
    q = decoding.place(qkv, weight, 1e-6, turns, positions, table, cache[0], cache[1], heads)
    out = decoding.attend(q, cache[0], cache[1], positions, table)

    every = qkv.double().view(rows, heads + 2 * kv, size)
    qk, v = every.split_with_sizes((heads + kv, kv), dim=1)
    if weight is not None:
        qk = qk * (qk.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weight.double()
    turn = turns[positions][:, None].to(torch.complex128)
    qk = torch.view_as_real(torch.view_as_complex(qk.reshape(rows, -1, size // 2, 2)) * turn).flatten(2)
    for row in range(rows):
        seen = int(positions[row]) + 1
        cell = order[row, (seen - 1) // page], slice(None), (seen - 1) % page
        for number, fresh in enumerate((qk[row, heads:], v[row])):
            assert float((cache[number][cell].double() - fresh).abs().max()) < close * 4
            before[number][cell], written[number][cell] = fresh, True
        keys, values = before[:, order[row]].transpose(1, 2).flatten(2, 3)
        k = keys[:, :seen].repeat_interleave(heads // kv, 0)
        scores = (k @ qk[row, :heads, :, None])[:, :, 0] * size**-0.5
        wanted = (scores.softmax(-1)[:, None] @ values[:, :seen].repeat_interleave(heads // kv, 0))[:, 0]
        assert float((out[row].double() - wanted).norm() / wanted.norm()) < close
    assert torch.equal(cache.double()[~written], before[~written])  # nowhere else was anything written


def standing(rows: int, device: torch.device, **given: Any) -> Rows:
    whole = {"dtype": torch.int64, "device": device}
    return Rows(
        tokens=torch.zeros(rows, **whole),
        positions=torch.arange(rows, **whole) * 3,
        left=torch.full((rows,), 9, **whole),
        seeds=torch.arange(rows, **whole) * 12345678901234567,
        temperature=given.get("temperature", torch.ones(rows, device=device)),
        ends=torch.tensor(given.get("ends", [-1]), **whole),
        step=torch.zeros(1, **whole),
        drawn=torch.full((4, rows), -7, **whole),
        log_probs=torch.zeros(4, rows, device=device),
    )


@pytest.mark.parametrize("vocab", [40, 9001])
def test_draws_are_those_of_seed_and_place(vocab: int, device: Any) -> None:
    count = 12
    logits = torch.randn(count, vocab, generator=torch.Generator().manual_seed(3)).mul_(2).to(device)
    heat = torch.tensor([1.0, 0.5, 0.0] * 4, device=device)
    rows = standing(count, device, temperature=heat)
    seeds, places = (
        rows.seeds.cpu().numpy().astype(np.uint64),
        (rows.positions + 1).cpu().numpy().astype(np.uint64),
    )
    scaled = (logits.double() / torch.where(heat == 0, 1.0, heat)[:, None]).log_softmax(-1)
    cumulative = scaled.exp().cumsum(-1)
    noise = torch.from_numpy(uniform(seeds, places)).to(device)[:, None]
    wanted = torch.searchsorted(cumulative, noise * cumulative[:, -1:])[:, 0]
    wanted = torch.where(heat == 0, logits.argmax(-1), wanted)
    draw(logits, rows)
    assert torch.equal(rows.tokens, wanted)
    assert torch.equal(rows.drawn[0], wanted)
    assert float((rows.log_probs[0] - scaled.gather(1, wanted[:, None])[:, 0]).abs().max()) < 1e-5
    assert rows.positions.tolist() == [3 * i + 1 for i in range(count)]
    assert set(rows.left.tolist()) == {8}
    assert int(rows.step) == 1


def test_a_row_that_ended_stands_still(device: Any) -> None:
    logits = torch.zeros(4, 50, device=device)
    logits[torch.arange(4), torch.tensor([5, 6, 7, 8])] = 100.0
    rows = standing(4, device, ends=[6, 7, 30])
    rows.left[3] = 1
    draw(logits, rows)
    assert rows.left.tolist() == [8, 0, 0, 0]
    draw(logits, rows)
    assert rows.drawn[:2].tolist() == [[5, 6, 7, 8], [5, -1, -1, -1]]
    assert rows.positions.tolist() == [2, 4, 7, 10]


def test_filters_leave_the_likeliest_and_log_probabilities_of_the_whole(device: Any) -> None:
    count, vocab = 64, 5000
    logits = torch.randn(count, vocab, generator=torch.Generator().manual_seed(5)).mul_(3).to(device)
    heat = torch.ones(count, device=device)
    top_p = torch.tensor([[0.3], [1.0]] * 32, device=device)
    top_k = torch.tensor([[0.0], [2.0]] * 32, device=device)
    left = filtered(logits, heat, top_p, top_k)
    probability = logits.double().softmax(-1)
    kept = torch.isfinite(left)
    assert set(kept[1::2].sum(-1).tolist()) == {2}
    above = (probability * kept).sum(-1)[::2]
    assert float(above.min()) >= 0.3 - 1e-6
    assert float((above - (probability * kept).where(kept, 9.0).min(-1).values[::2]).max()) < 0.3 + 1e-6
    rows = standing(count, device)
    draw(left, rows, whole=logits)
    assert bool(kept.gather(1, rows.tokens[:, None]).all())
    wanted = logits.log_softmax(-1).gather(1, rows.tokens[:, None])[:, 0]
    assert float((rows.log_probs[0] - wanted).abs().max()) < 1e-5
