"""Losses, aggregations and corrections once more, from the papers: loops over tokens in float64.

Slow and obvious on purpose. Nothing here imports Toolwright's formulas. One thing is not in the papers: a
log-ratio beyond ±20 (GSPO: above 10) is held there, and has no gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

LIMIT = 20.0

Row = list[Tensor]  # a sequence's tokens, each a number with its gradient
Rows = list[Row]
Far = Callable[[float, float], float]  # how far a probability is from what it was


def held(x: Tensor, low: float = -LIMIT, high: float = LIMIT) -> Tensor:
    if x > high:
        return torch.tensor(high, dtype=torch.float64)
    if x < low:
        return torch.tensor(low, dtype=torch.float64)
    return x


def ratio(new: Tensor, old: Tensor) -> Tensor:
    return torch.exp(held(new - old))


def clip(x: Tensor, low: float, high: float) -> Tensor:
    return held(x, low, high)


def smaller(a: Tensor, b: Tensor) -> Tensor:
    return a if a <= b else b


def larger(a: Tensor, b: Tensor) -> Tensor:
    return a if a >= b else b


def mean(row: Row) -> Tensor:
    return sum(row, torch.tensor(0.0, dtype=torch.float64)) / len(row)


# Of one sequence: its tokens' new and old log-probabilities and advantages, to the loss of each token.


def ppo(new: Row, old: Row, a: Row, *, clip_low: float, clip_high: float, clip_c: float) -> Row:
    """1707.06347, 2503.14476, 1912.09729: maximise min(r A, clip(r) A), and where A < 0 at least c A."""
    found = []
    for n, o, advantage in zip(new, old, a, strict=True):
        r = ratio(n, o)
        gain = smaller(r * advantage, clip(r, 1 - clip_low, 1 + clip_high) * advantage)
        found.append(-larger(gain, clip_c * advantage) if advantage < 0 else -gain)
    return found


def gspo(new: Row, old: Row, a: Row, *, clip_low: float, clip_high: float) -> Row:
    """2507.18071, equations 5 and 13: sg(s) π / sg(π), s the geometric mean of the sequence's ratios."""
    log_s = mean([n.detach() - o for n, o in zip(new, old, strict=True)])
    found = []
    for n, advantage in zip(new, a, strict=True):
        s = torch.exp(held(n - n.detach() + log_s, -math.inf, 10.0))
        found.append(-smaller(s * advantage, clip(s, 1 - clip_low, 1 + clip_high) * advantage))
    return found


def gmpo(new: Row, old: Row, a: Row, *, clip_low: float, clip_high: float) -> Row:
    """2507.20673, equation 4: the geometric mean of min(r A, clip(r, e^−ε, e^ε) A) over the tokens."""
    logs = []
    for n, o, advantage in zip(new, old, a, strict=True):
        log_r = held(n - o)
        clipped = clip(log_r, -clip_low, clip_high)
        logs.append(smaller(log_r, clipped) if advantage > 0 else larger(log_r, clipped))
    whole = -mean(a) * torch.exp(mean(logs))
    return [whole] * len(new)


def cispo(new: Row, old: Row, a: Row, *, clip_low: float, clip_high: float) -> Row:
    """2506.13585, equation 4: REINFORCE with a clipped weight that is no part of the gradient."""
    return [
        -clip(ratio(n, o), 1 - clip_low, 1 + clip_high).detach() * advantage * n
        for n, o, advantage in zip(new, old, a, strict=True)
    ]


def dppo(new: Row, old: Row, a: Row, far: Far, *, clip_low: float, clip_high: float, clip_c: float) -> Row:
    """2602.04879, algorithm 1: REINFORCE with a bounded weight; nothing of a token that has moved too far in
    the direction that its advantage pushes it."""
    found = []
    for n, o, advantage in zip(new, old, a, strict=True):
        now, before = math.exp(float(n.detach())), math.exp(float(o))
        bound = clip_high if advantage > 0 else clip_low
        onwards = now > before if advantage > 0 else now < before
        stands = far(now, before) > bound and onwards
        weight = min(float(ratio(n, o).detach()), clip_c)
        found.append(0.0 * n if stands else -advantage * weight * n)
    return found


def variation(now: float, before: float) -> float:
    """The total variation of "this token" and "another"."""
    return abs(now - before)


def binary_kl(now: float, before: float) -> float:
    """KL of the same two outcomes, from before to now."""
    least = 1e-8  # in place of the logarithm of nothing
    rest, rest_now = max(0.0, 1 - before), max(0.0, 1 - now)
    return before * math.log(before / now) + rest * math.log((rest + least) / (rest_now + least))


def sapo(new: Row, old: Row, a: Row, *, tau_pos: float, tau_neg: float) -> Row:
    """2511.20347: σ(τ (r − 1)) 4 / τ in place of r."""
    found = []
    for n, o, advantage in zip(new, old, a, strict=True):
        tau = tau_pos if advantage > 0 else tau_neg
        found.append(-advantage * 4 / tau / (1 + torch.exp(-tau * (ratio(n, o) - 1))))
    return found


def vespo(
    new: Row, old: Row, a: Row, *, k_pos: float, lambda_pos: float, k_neg: float, lambda_neg: float
) -> Row:
    """2602.10693: REINFORCE weighted by W^k e^{λ (1 − W)}, W the product of the sequence's ratios."""
    log_weight = math.fsum(float(held(n.detach() - o)) for n, o in zip(new, old, strict=True))
    weight = math.exp(max(-LIMIT, min(LIMIT, log_weight)))
    found = []
    for n, advantage in zip(new, a, strict=True):
        k, rate = (k_pos, lambda_pos) if advantage >= 0 else (k_neg, lambda_neg)
        found.append(-(weight**k) * math.exp(rate * (1 - weight)) * advantage * n)
    return found


def gpg(new: Row, old: Row, a: Row) -> Row:
    """REINFORCE; 2504.02546."""
    return [-advantage * n for n, advantage in zip(new, a, strict=True)]


def sppo(new: Row, old: Row, a: Row, *, eta: float) -> Row:
    """2405.00675, equation 4: the log-ratio of the whole sequence regressed onto η A."""
    log_ratio = sum((n - o for n, o in zip(new, old, strict=True)), torch.tensor(0.0, dtype=torch.float64))
    return [(log_ratio - eta * mean(a)) ** 2] * len(new)


def kl_cov(new: Row, old: Row, a: Row, *, ppo_kl_coef: float, held_back: Sequence[bool]) -> Row:
    """2505.22617, equation 12: −A r, and a penalty on |log r| for the tokens of highest covariance."""
    found = []
    for n, o, advantage, penalised in zip(new, old, a, held_back, strict=True):
        loss = -advantage * ratio(n, o)
        found.append(loss + ppo_kl_coef * abs(n - o) if penalised else loss)
    return found


def clip_cov(
    new: Row, old: Row, a: Row, *, clip_low: float, clip_high: float, left_out: Sequence[bool]
) -> Row:
    """2505.22617, equation 10: PPO's clip, and no gradient for some tokens of high covariance."""
    plain = ppo(new, old, a, clip_low=clip_low, clip_high=clip_high, clip_c=math.inf)
    return [0 * loss if out else loss for loss, out in zip(plain, left_out, strict=True)]


LOSSES: dict[str, Callable[..., Row]] = {
    "ppo": ppo,
    "gspo": gspo,
    "gmpo": gmpo,
    "cispo": cispo,
    "dppo_tv": partial(dppo, far=variation),
    "dppo_kl": partial(dppo, far=binary_kl),
    "sapo": sapo,
    "vespo": vespo,
    "gpg": gpg,
    "sppo": sppo,
    "kl_cov": kl_cov,
    "clip_cov": clip_cov,
}
OF_SEQUENCES = {"gmpo", "sppo"}  # the loss is of the sequence, and is averaged over sequences


def covariances(new: Rows, a: Rows) -> list[list[float]]:
    """Each token's part of Cov(log π, A) over the batch."""
    logs, worth = [float(x) for row in new for x in row], [float(x) for row in a for x in row]
    log_mean, worth_mean = math.fsum(logs) / len(logs), math.fsum(worth) / len(worth)
    return [
        [(float(n) - log_mean) * (float(x) - worth_mean) for n, x in zip(n_row, a_row, strict=True)]
        for n_row, a_row in zip(new, a, strict=True)
    ]


def divergence(name: str, new: Tensor, old: Tensor, ref: Tensor) -> Tensor:
    """One token's estimate of KL(π ‖ π_ref): Schulman's k1, k2 and k3, and the weighted k3 of 2512.02556.
    `+`: the value of the estimator, the gradient of k2."""
    d = new - ref
    value = {
        "k1": d,
        "abs": abs(d),
        "k2": d * d / 2,
        "k3": torch.exp(ref - new) - (ref - new) - 1,
        "unbiased": torch.exp(new - old) * (torch.exp(ref - new) - (ref - new) - 1),
    }[name.removesuffix("+")]
    return value.detach() + d * d / 2 - (d * d / 2).detach() if name.endswith("+") else value


def weights(old: Rows, sampled: Rows, *, mode: str, level: str, low: float, high: float) -> list[list[float]]:
    """π_old / π_sampled of tokens, of whole sequences or their geometric mean; capped, masked or rejected."""
    found = []
    for old_row, sampled_row in zip(old, sampled, strict=True):
        gaps = [float(o - s) for o, s in zip(old_row, sampled_row, strict=True)]
        if level == "sequence":
            gaps = [math.fsum(gaps)] * len(gaps)
        if level == "geometric":
            gaps = [math.fsum(gaps) / len(gaps)] * len(gaps)
        ratios = [math.exp(max(-LIMIT, min(LIMIT, gap))) for gap in gaps]
        inside = [low <= r <= high for r in ratios]
        if mode == "none":
            found.append([1.0 for r in ratios])
        elif mode == "truncate":
            found.append([min(r, high) for r in ratios])
        elif mode == "mask":
            found.append([r if kept else 0.0 for r, kept in zip(ratios, inside, strict=True)])
        else:
            found.append([1.0 if all(inside) else 0.0 for r in ratios])
    return found


def aggregate(mode: str, rows: Rows, norm: float) -> Tensor:
    """DAPO's mean over tokens, GRPO's mean of means, the mean of sums, and Dr. GRPO's with a constant."""
    zero = torch.tensor(0.0, dtype=torch.float64)
    sums = [sum(row, zero) for row in rows]
    if mode == "token-mean":
        return sum(sums, zero) / sum(len(row) for row in rows)
    if mode == "seq-mean-token-mean":
        return sum((total / len(row) for total, row in zip(sums, rows, strict=True)), zero) / len(rows)
    if mode == "seq-mean-token-sum":
        return sum(sums, zero) / len(rows)
    return sum(sums, zero) / (len(rows) * norm)


def objective(
    name: str,
    *,
    log_prob: Tensor,  # [sequences, tokens] float64, with gradient
    old_log_prob: Tensor,
    advantages: Tensor,
    mask: Tensor,
    by_token: list[list[float]] | None,  # weights
    aggregation: str,
    norm: float,
    chosen: Tensor | None,
    **params: Any,
) -> tuple[Tensor, Tensor]:
    """(loss, Σ of what was added without its signs). Sequences without a token are left out."""
    new, old, a = (rows_of(x, mask) for x in (log_prob, old_log_prob, advantages))
    picked = [] if chosen is None else rows_of(chosen, mask)
    losses = []
    for i in range(len(new)):
        more = dict(params)
        if chosen is not None:
            more["held_back" if name == "kl_cov" else "left_out"] = [bool(x) for x in picked[i]]
        row = LOSSES[name](new[i], old[i], a[i], **more)
        if by_token is not None:
            row = [loss * w for loss, w in zip(row, by_token[i], strict=True)]
        losses.append(row)
    mode = "seq-mean-token-mean" if name in OF_SEQUENCES else aggregation
    unsigned = aggregate(mode, [[abs(x.detach()) for x in row] for row in losses], norm)
    return aggregate(mode, losses, norm), unsigned


def rows_of(values: Tensor, mask: Tensor) -> Rows:
    """The tokens under the mask, sequence by sequence; none for a sequence that has none."""
    found = [[values[i, t] for t in range(mask.shape[1]) if mask[i, t]] for i in range(mask.shape[0])]
    return [row for row in found if row]
