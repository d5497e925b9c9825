"""The engine's pass on a CPU: large matrices in panels, few rows, the learner's numbers."""

from __future__ import annotations

import pytest
import tiny
import torch

from toolwright.engines import decoding
from toolwright.engines.decoding import InPlace, LaidOut, Result


@pytest.mark.parametrize(("out", "panels"), [(256, 2), (960, 10), (98, None)])
def test_a_large_matrix_is_cut_where_that_can_be_done_evenly(
    out: int, panels: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding, "LARGEST_LAID_OUT", 64 * 98 - 1)
    weight, x, before = torch.randn(out, 64), torch.randn(5, 64), torch.randn(5, out)
    matrix = LaidOut([])(weight.t())
    assert matrix.shape == ((64, out) if panels is None else (panels, 64, out // panels))
    torch.testing.assert_close(Result(torch.empty(5, out), matrix).put(x, matrix), x @ weight.t())
    result = Result(before.clone(), matrix)
    result.add(x, matrix)
    torch.testing.assert_close(result.whole, before + x @ weight.t())


def test_the_next_publication_is_laid_out_in_the_same_memory() -> None:
    room: list[torch.Tensor] = []
    model = tiny.decoder()
    first = InPlace(model, model.weights(), room).unembedding.data_ptr()
    count = len(room)
    assert InPlace(model, model.weights(), room).unembedding.data_ptr() == first
    assert len(room) == count


# Older kernels take six rows at a time, and what is left over in another order.
newer = pytest.mark.skipif("AVX512" not in torch.backends.cpu.get_cpu_capability(), reason="needs AVX-512")


@pytest.mark.parametrize("kind", tiny.SHAPES)
@pytest.mark.parametrize("rows", [4, 16, pytest.param(2, marks=newer), pytest.param(7, marks=newer)])
@torch.no_grad()
def test_few_rows_by_panels_are_the_learners_among_many(
    kind: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding, "LARGEST_LAID_OUT", 0)
    model = tiny.decoder(**{**tiny.SHAPES[kind], "width": 256, "ffn": 384})
    tokens, positions = torch.randint(model.shape.vocab, (64,)), torch.arange(64)

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return q.contiguous()

    few = InPlace(model, model.weights(), [])
    assert few.layers[0].down.shape[0] == 2
    wanted = model.head(model.hidden(tokens, positions, attend))
    assert torch.equal(few(tokens[:rows], positions[:rows], attend), wanted[:rows])
