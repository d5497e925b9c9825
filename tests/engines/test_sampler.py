"""Noise that seed and place decide, and sets that are never left."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from toolwright.engines import Sampling
from toolwright.engines.native.sampler import Sampler, uniform

quick = settings(max_examples=40, deadline=None, derandomize=True)
settings_of_a_row = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    top_p=st.sampled_from([0.05, 0.5, 0.95, 1.0]),
    top_k=st.integers(0, 12),
    seed=st.integers(-(2**70), 2**70),
)


def logits(rows: int, seed: int = 0, vocab: int = 10) -> torch.Tensor:
    return 3 * torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed))


def test_noise_is_uniform_over_seeds_and_over_places() -> None:
    many = np.arange(20_000, dtype=np.uint64)
    for noise in (uniform(many, np.zeros_like(many)), uniform(np.zeros_like(many) + np.uint64(7), many)):
        counts, _ = np.histogram(noise, bins=20, range=(0, 1))
        assert np.square(counts - 1000).sum() / 1000 < 50  # χ² of 19 degrees: 19 ± 6
        assert abs(np.corrcoef(noise[:-1], noise[1:])[0, 1]) < 0.03


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**20))
@quick
def test_noise_lies_within_the_unit_interval_and_repeats(seed: int, place: int) -> None:
    seeds, places = np.array([seed], dtype=np.uint64), np.array([place], dtype=np.uint64)
    noise = uniform(seeds, places)
    assert 0 < noise[0] <= 1
    assert noise == uniform(seeds, places)


@given(st.lists(settings_of_a_row, min_size=1, max_size=5), st.integers(0, 1000))
@quick
def test_a_row_draws_what_it_draws_alone(rows: list[Sampling], seed: int) -> None:
    given_logits, places = logits(len(rows), seed), list(range(5, 5 + len(rows)))
    tokens, log_probs = Sampler(rows, places)(given_logits)
    for i, row in enumerate(rows):
        token, log_prob = Sampler([row], places[i : i + 1])(given_logits[i : i + 1])
        assert int(token) == int(tokens[i])
        assert float(log_prob) == float(log_probs[i])


@given(settings_of_a_row, st.integers(0, 1000))
@quick
def test_nothing_outside_the_set_is_drawn(row: Sampling, seed: int) -> None:
    table = logits(1, seed)
    token, log_prob = Sampler([row], [3])(table)
    full = (table[0] / (row.temperature or 1.0)).log_softmax(-1)
    assert torch.isclose(log_prob[0], full[token[0]]), "measured before the set was cut"
    likelier = full > full[token[0]]
    if row.temperature == 0:
        assert not likelier.any()
    if row.top_k:
        assert int(likelier.sum()) < row.top_k
    assert float(full[likelier].double().exp().sum()) < row.top_p + 1e-6


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({}, {0, 1, 2, 3}),
        ({"top_k": 2}, {0, 1}),
        ({"top_p": 0.39}, {0}),
        ({"top_p": 0.41}, {0, 1}),
        ({"top_p": 0.69}, {0, 1}),
        ({"top_p": 0.71}, {0, 1, 2}),
        ({"top_p": 0.91}, {0, 1, 2, 3}),
        ({"top_p": 0.91, "top_k": 1}, {0}),
        ({"top_p": 0.41, "top_k": 3}, {0, 1}),
    ],
    ids=str,
)
def test_the_set_holds_the_likeliest_until_they_reach_p(settings: dict[str, Any], kept: set[int]) -> None:
    table = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    drawn = {int(Sampler([Sampling(seed=seed, **settings)], [0])(table)[0]) for seed in range(100)}
    assert drawn == kept


def test_a_token_without_probability_is_never_drawn() -> None:
    table = torch.tensor([[-torch.inf, 0.0, -torch.inf, 0.0, -torch.inf]])
    drawn = {int(Sampler([Sampling(seed=seed)], [0])(table)[0]) for seed in range(200)}
    assert drawn == {1, 3}
