"""Tensors on their way: packed and back, and weights whose checksum tells whether they arrived."""

from __future__ import annotations

import pytest
import torch

from tests.tiny import decoder
from toolwright.failures import InfrastructureFailure
from toolwright.runtime import tensors


def test_a_tree_comes_back_as_it_was() -> None:
    tree = {
        "a": torch.arange(3),
        1: [torch.ones(2, 2, dtype=torch.bfloat16), "x", None],
        "e": torch.zeros(0, 4),
        "scalar": torch.tensor(2.5),
    }
    back = tensors.unpacked(tensors.packed(tree))
    assert torch.equal(back["a"], tree["a"])
    assert torch.equal(back[1][0], torch.ones(2, 2, dtype=torch.bfloat16))
    assert back[1][1:] == ["x", None]
    assert back["e"].shape == (0, 4)
    assert back["scalar"] == 2.5


@pytest.mark.parametrize("tied", [True, False])
def test_published_weights_are_the_policys_to_the_last_bit(tied: bool) -> None:
    policy, worker = decoder(1, tied=tied), decoder(2, tied=tied)
    published = tensors.publication(policy.state_dict(), 3)
    assert tensors.checksum([]) == 0
    assert tensors.load(worker.state_dict(), published) == published.checksum
    for mine, theirs in zip(policy.parameters(), worker.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_a_single_bit_or_two_swapped_numbers_change_the_checksum() -> None:
    weights = torch.randn(100)
    whole = tensors.checksum([weights])
    bit, swapped = weights.clone(), weights.clone()
    bit.view(torch.int32)[50] ^= 1
    swapped[[3, 4]] = swapped[[4, 3]]
    assert len({whole, tensors.checksum([bit]), tensors.checksum([swapped])}) == 3


def test_weights_of_another_model_are_refused() -> None:
    published = tensors.publication(decoder(layers=1).state_dict(), 3)
    with pytest.raises(InfrastructureFailure, match="weights of version 3 have"):
        tensors.load(decoder(layers=2).state_dict(), published)
