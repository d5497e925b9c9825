"""From logits to one token a row: temperature, top-k, top-p, and noise that seed and place decide."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from toolwright.engines import Sampling

NOISE_AHEAD = 32  # places for which noise is made at once


class Sampler:
    """The settings of the rows that are generated side by side, kept as tensors between steps.

    Called once for each token: the rows stand at `places` at first, and one further with every call.
    """

    def __init__(self, rows: Sequence[Sampling], places: Sequence[int]) -> None:
        self.greedy = torch.tensor([row.temperature == 0 for row in rows])
        self.temperature = torch.tensor([row.temperature or 1.0 for row in rows])
        self.top_p = torch.tensor([row.top_p for row in rows], dtype=torch.float64)
        self.top_k = torch.tensor([row.top_k for row in rows])
        self.seeds = np.array([row.seed % 2**63 for row in rows], dtype=np.uint64)
        self.places = np.array(places, dtype=np.uint64)
        self.most = max((row.top for row in rows), default=0)
        self.best: list[list[tuple[int, float]]] | None = None  # of each row, if any row asks for it
        self.noise: list[Tensor] = []  # [rows, 1] for each of the places that come next, the last first
        self.all_greedy = bool(self.greedy.all())
        self.any_greedy = bool(self.greedy.any())
        self.plain = bool((self.temperature == 1).all())
        self.filters = bool((self.top_p < 1).any() or (self.top_k > 0).any())
        self.constraints = [(n, c) for n, row in enumerate(rows) if (c := getattr(row, "constraint", None))]

    def __call__(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """[rows, vocab] -> tokens [rows] and their log-probabilities under softmax(logits / temperature)."""
        if not self.plain:
            logits = logits / self.temperature.to(logits.device)[:, None]
        log_probs = logits.log_softmax(-1)
        likely = log_probs
        if self.constraints:
            logits = likely = self._constrained(log_probs)
        if self.all_greedy:
            tokens = logits.argmax(-1)
        else:
            tokens = self._draw(likely)
            if self.any_greedy:
                tokens = tokens.where(~self.greedy.to(tokens.device), logits.argmax(-1))
        for row, constraint in self.constraints:
            constraint.take(int(tokens[row]))
        if self.most:
            values, places = log_probs.topk(min(self.most, log_probs.shape[1]))
            self.best = [
                list(zip(*row, strict=True)) for row in zip(places.tolist(), values.tolist(), strict=True)
            ]
        return tokens, log_probs.gather(1, tokens.unsqueeze(1)).squeeze(1)

    def _constrained(self, log_probs: Tensor) -> Tensor:
        """The distribution to draw from: rows with a constraint, over the tokens that it allows. What is
        reported stays the whole distribution, as with top-k and top-p."""
        drawn = log_probs.clone()
        for row, constraint in self.constraints:
            allowed = constraint.allowed().to(drawn.device)
            drawn[row] = drawn[row].masked_fill(~allowed, -torch.inf).log_softmax(-1)
        return drawn

    def _draw(self, log_probs: Tensor) -> Tensor:
        """Inverse transform sampling, one number a row; float64, so that a large vocabulary is not biased."""
        probs = log_probs.double().exp_()
        if self.filters:
            probs = self._filter(probs)
        cumulative = probs.cumsum_(-1)
        last = probs.shape[1] - 1
        target = self._next_noise(probs.device) * cumulative.narrow(1, last, 1)
        return torch.searchsorted(cumulative, target).clamp_(max=last).squeeze(1)

    def _next_noise(self, device: torch.device) -> Tensor:
        if not self.noise:
            ahead = np.arange(NOISE_AHEAD, dtype=np.uint64)[:, None]
            made = torch.from_numpy(uniform(self.seeds, self.places + ahead)).to(device)
            self.noise = list(made[:, :, None].flip(0).unbind())
            self.places += np.uint64(NOISE_AHEAD)
        return self.noise.pop()

    def _filter(self, probs: Tensor) -> Tensor:
        ranked, order = probs.sort(dim=-1, descending=True, stable=True)
        rank = torch.arange(probs.shape[1], device=probs.device)[None]
        top_k = self.top_k.to(probs.device)[:, None]
        before = ranked.cumsum(-1) - ranked  # a token stays while those above it do not reach top_p
        keep = (before < self.top_p.to(probs.device)[:, None]) & ((top_k == 0) | (rank < top_k))
        return torch.zeros_like(probs).scatter_(1, order, ranked * keep)


def uniform(seeds: np.ndarray, places: np.ndarray) -> np.ndarray:
    """A number in (0, 1) for each seed and place, by SplitMix64: no state to keep, carry or restore."""
    with np.errstate(over="ignore"):
        z = seeds * np.uint64(0xD1342543DE82EF95) + (places + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            z = (z ^ (z >> np.uint64(shift))) * np.uint64(factor)
        z = z ^ (z >> np.uint64(31))
    return ((z >> np.uint64(11)).astype(np.float64) + 0.5) / 2**53
