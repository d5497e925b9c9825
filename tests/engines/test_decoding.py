"""The engine's pass on a CPU, written in place: the learner's numbers for any number of rows."""

from __future__ import annotations

import pytest
import tiny
import torch

from toolwright.engines.native.decoding import InPlace, PackedWeights
from toolwright.models.products import PackedMatrix


def test_the_next_publication_is_laid_out_in_the_same_memory() -> None:
    pack, model = PackedWeights(), tiny.decoder()
    first, second = pack(model).unembedding, pack(model).unembedding
    assert isinstance(first, PackedMatrix)
    assert isinstance(second, PackedMatrix)
    assert first.panels.data_ptr() == second.panels.data_ptr()


@pytest.mark.parametrize("kind", tiny.SHAPES)
@pytest.mark.parametrize("rows", [1, 2, 4, 7, 16, 61])
@torch.no_grad()
def test_few_rows_are_the_learners_among_many(kind: str, rows: int) -> None:
    model = tiny.decoder(**{**tiny.SHAPES[kind], "width": 256, "ffn": 384})
    tokens, positions = torch.randint(model.shape.vocab, (64,)), torch.arange(64)

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return q.contiguous()

    few = InPlace(model, PackedWeights()(model))
    wanted = model.head(model.hidden(tokens, positions, attend))
    assert torch.equal(few(tokens[:rows], positions[:rows], attend), wanted[:rows])
