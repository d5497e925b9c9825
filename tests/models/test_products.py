"""Products of our own: one fixed sum a number, whatever is computed beside it and on whatever processor."""

from __future__ import annotations

import math
import platform

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from toolwright.models import product_kernel, products
from toolwright.models.product_kernel import BLOCK, Vectors, compiled, kernel, vectors_of
from toolwright.models.products import PackedMatrix, batched, linear

# Rows around a tile's and a chunk's, sums around a block's, columns around a panel's.
sizes = st.tuples(st.integers(1, 140), st.integers(1, 2 * BLOCK + 3), st.integers(1, 100))


def some(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def exactly(x: Tensor, weight: Tensor) -> Tensor:
    """The promised sum, a multiply-add at a time. Two float32 factors multiply exactly in float64; adding in
    longer doubles and rounding once is then the fused operation."""
    a, b = x.numpy().astype(np.longdouble), weight.t().numpy().astype(np.longdouble)
    total = np.zeros((len(x), len(weight)), np.float32)
    for start in range(0, x.shape[1], BLOCK):
        block = np.zeros_like(total)
        for place in range(start, min(start + BLOCK, x.shape[1])):
            block = (a[:, place, None] * b[place] + block).astype(np.float32)
        total = block if start == 0 else total + block
    return torch.from_numpy(total)


@pytest.fixture(params=["host", "narrow"])
def either_width(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """This processor's kernel, and that of an older or another one that it can run as well."""
    found = kernel()
    if found is None:
        pytest.skip("llvmlite has no compiler for this processor")
    if request.param == "narrow":
        narrow = older(found.vectors)
        monkeypatch.setattr(products, "kernel", lambda: narrow)


def older(here: Vectors) -> product_kernel.Kernel:
    import llvmlite.binding as llvm

    features = {name: there and "avx512" not in name for name, there in llvm.get_host_cpu_features().items()}
    narrow = vectors_of(platform.machine(), features)
    assert narrow.fused == here.fused
    if narrow == here:  # nothing older to be had: another shape of tile then
        narrow = Vectors(width=4, across=3, rows=5, fused=here.fused)
    return compiled(narrow, features)


@pytest.mark.usefixtures("either_width")
@pytest.mark.parametrize("inner", [1, 31, BLOCK, BLOCK + 1, 3 * BLOCK - 5])
def test_every_number_is_the_promised_sum(inner: int) -> None:
    found = kernel()
    assert found is not None
    if not found.vectors.fused or np.finfo(np.longdouble).nmant < 63:
        pytest.skip("needs a fused multiply-add, and longer doubles to tell what it gives")
    x, weight = some(13, inner), some(70, inner, seed=1)
    assert torch.equal(linear(x, weight.t()), exactly(x, weight))


@given(sizes, st.integers(0, 3))
def test_a_row_is_the_same_alone_and_among_others(size: tuple[int, int, int], way: int) -> None:
    """Also with its matrix laid out before, with something to add to, and as one of a batch."""
    rows, inner, columns = size
    x, weight, plus = some(rows, inner), some(columns, inner, seed=1), some(rows, columns, seed=2)
    added = plus if way % 2 else None
    whole = linear(x, weight.t(), added)
    row = rows // 2
    alone = slice(row, row + 1)
    matrix = PackedMatrix.of(weight) if way < 2 else weight.t()
    assert torch.equal(linear(x[alone], matrix, None if added is None else added[alone]), whole[alone])
    if added is None:
        pair = batched(torch.stack([x, x + 1])[:, alone], weight.t().contiguous().expand(2, -1, -1))
        assert torch.equal(pair[0], whole[alone])


def test_neither_width_nor_threads_change_a_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    found = kernel()
    if found is None:
        pytest.skip("llvmlite has no compiler for this processor")
    x, weight = some(150, 600), some(333, 600, seed=1)
    wanted = linear(x, weight.t())
    threads = torch.get_num_threads()
    monkeypatch.setattr(products, "ALONE", 0)
    try:
        for count in (2, 3, 4):
            torch.set_num_threads(count)
            assert torch.equal(linear(x, weight.t()), wanted), f"{count} threads"
    finally:
        torch.set_num_threads(threads)
    narrow = older(found.vectors)
    monkeypatch.setattr(products, "kernel", lambda: narrow)
    assert torch.equal(linear(x, weight.t()), wanted), "another width"


@given(sizes)
def test_the_kernel_computes_the_product(size: tuple[int, int, int]) -> None:
    """Within the rounding of its sum: a unit in the last place for each place of it."""
    rows, inner, columns = size
    x, weight = some(rows, inner), some(columns, inner, seed=1)
    wanted = x.double() @ weight.t().double()
    most = torch.finfo(torch.float32).eps * inner * (x.abs().double() @ weight.t().abs().double())
    assert bool(((linear(x, weight.t()) - wanted).abs() <= most).all())


@pytest.mark.parametrize("plus", [None, "row", "column"])
def test_the_gradient_is_that_of_torchs_product(plus: str | None) -> None:
    x, weight = some(9, 40).requires_grad_(), some(21, 40, seed=1).requires_grad_()
    given = {"row": some(9, 21, seed=2), "column": some(21, seed=2)}.get(plus or "")
    if given is not None:
        given.requires_grad_()
    leaves = [leaf for leaf in (x, weight, given) if leaf is not None]
    along = some(9, 21, seed=3)
    ours = torch.autograd.grad((linear(x, weight.t(), given) * along).sum(), leaves)
    plain = x @ weight.t() if given is None else x @ weight.t() + given
    theirs = torch.autograd.grad((plain * along).sum(), leaves)
    for found, wanted in zip(ours, theirs, strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=torch.finfo(torch.float32).eps * 40 * 16)


def test_no_rows_give_no_rows() -> None:
    assert linear(some(0, 8), some(5, 8).t()).shape == (0, 5)
    assert batched(some(0, 3, 8), some(0, 8, 5)).shape == (0, 3, 5)


def test_numbers_that_are_none_stay_where_they_are() -> None:
    x = some(3, 8)
    x[1, 2] = math.nan
    found = linear(x, some(5, 8).t())
    assert bool(found[1].isnan().all())
    assert not bool(found[::2].isnan().any())


@pytest.mark.parametrize(
    ("machine", "features", "width"),
    [
        ("x86_64", {"avx512f": True, "avx2": True, "fma": True}, 16),
        ("x86_64", {"avx2": True, "fma": True}, 8),
        ("x86_64", {"sse4.2": True}, 4),
        ("aarch64", {"neon": True}, 4),
    ],
)
def test_a_kernel_is_written_for_every_kind_of_processor(
    machine: str, features: dict[str, bool], width: int
) -> None:
    import llvmlite.binding as llvm

    vectors = vectors_of(machine, features)
    assert vectors.width == width
    llvm.parse_assembly(product_kernel.assembly(vectors, threaded=True)).verify()
