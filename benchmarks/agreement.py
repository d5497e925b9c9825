"""Our losses beside TRL's: the greatest difference in loss and in the whole gradient, objective by objective.

    .venv-trl/bin/python benchmarks/agreement.py

Both sides get the same made-up numbers: 24 sequences of up to 40 tokens with tool output between turns,
log-ratios with a deviation of 0.5, advantages of both signs, three seeds. TRL's side is
`GRPOTrainer._compute_loss` itself; only the model is replaced, by log-probabilities and entropies.
Differences of the gradient are divided by its largest number, those of the loss by Σ |∂L/∂x| |x|, which is at
least as large as its terms. `--json FILE` writes the figures.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from trl import GRPOTrainer

from toolwright.algorithms import aggregate, entropy, kl, losses
from toolwright.algorithms.aggregate import Totals

SEEDS = (0, 1, 2)
ROWS, WIDTH = 24, 40
CAP = 3.0  # of the dual clip


@dataclass(frozen=True)
class Numbers:
    log_prob: Tensor
    old: Tensor
    reference: Tensor
    advantages: Tensor  # [sequences]
    entropies: Tensor
    weights: Tensor
    mask: Tensor


def numbers(seed: int, dtype: torch.dtype) -> Numbers:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    lengths = torch.randint(6, WIDTH + 1, (ROWS,), generator=generator)
    mask = (torch.arange(WIDTH)[None] < lengths[:, None]).to(dtype)
    mask[:, 3:5] = 0
    mask[::2, 9:14] = 0
    # The two choose a fraction of the tokens by slightly different rules, which agree for multiples of five.
    for extra in range(int(mask.sum()) % 5):
        mask[int((mask.sum(-1) > extra + 4).nonzero()[extra, 0]), 0] = 0
    old = -normal(ROWS, WIDTH).abs() - 0.05
    return Numbers(
        log_prob=old + 0.5 * normal(ROWS, WIDTH),
        old=old,
        reference=old + 0.5 * normal(ROWS, WIDTH),
        advantages=normal(ROWS),
        entropies=normal(ROWS, WIDTH).abs(),
        weights=(0.3 * normal(ROWS, WIDTH)).exp().clamp(max=2),
        mask=mask,
    )


@dataclass(frozen=True)
class Compared:
    """One objective in both words."""

    loss: str
    aggregation: str
    theirs: dict[str, Any]
    params: dict[str, Any] = field(default_factory=dict)
    kl: str | None = None
    weighted: bool = False
    top: float = 1.0


PPO = {"clip_low": 0.2, "clip_high": 0.28, "clip_c": CAP}
CLIPS = {"epsilon_low": 0.2, "epsilon_high": 0.28, "delta": CAP}
GRPO = ("ppo", "seq-mean-token-mean", {"loss_type": "grpo", **CLIPS}, PPO)
SEQUENCES = {"importance_sampling_level": "sequence", "epsilon_low": 0.05, "epsilon_high": 0.08}
GSPO = {"clip_low": 0.05, "clip_high": 0.08}
OBJECTIVES = {
    "grpo": Compared(*GRPO),
    "bnpo": Compared("ppo", "token-mean", {"loss_type": "bnpo", **CLIPS}, PPO),
    "dapo": Compared("ppo", "token-mean", {"loss_type": "dapo", **CLIPS}, PPO),
    "dr_grpo": Compared("ppo", "seq-mean-token-sum-norm", {"loss_type": "dr_grpo", **CLIPS}, PPO),
    "cispo": Compared(
        "cispo",
        "token-mean",
        {"loss_type": "cispo", "epsilon_high": 1.28},
        {"clip_low": 1.0, "clip_high": 0.28},
    ),
    "sapo": Compared("sapo", "seq-mean-token-mean", {"loss_type": "sapo"}),
    "gspo": Compared("gspo", "seq-mean-token-mean", {"loss_type": "grpo", **SEQUENCES}, GSPO),
    "luspo": Compared("gspo", "seq-mean-token-sum", {"loss_type": "luspo", **SEQUENCES}, GSPO),
    "vespo": Compared("vespo", "token-mean", {"loss_type": "vespo"}),
    "grpo, importance weights": Compared(*GRPO, weighted=True),
    "grpo, top fifth by entropy": Compared(*GRPO, top=0.2),
    "grpo, k3": Compared(*GRPO, kl="k3"),
    "grpo, unbiased KL (TRL's default)": Compared(*GRPO, kl="unbiased"),
}
BETA = 0.04


class Alone:
    """What of `accelerate` the loss asks for, in one process."""

    num_processes, sync_gradients = 1, True

    def gather(self, value: Tensor) -> Tensor:
        return value

    def reduce(self, value: Tensor, reduction: str) -> Tensor:
        return value

    def pad_across_processes(self, value: Tensor, **rest: Any) -> Tensor:
        return value


class Bare(GRPOTrainer):
    """TRL's trainer without a model: its `_compute_loss` is given log-probabilities."""

    def __init__(self, leaf: Tensor, entropies: Tensor, compared: Compared) -> None:
        self.leaf, self.entropies = leaf, entropies
        own = {"delta": None, "epsilon_low": 0.2, "epsilon_high": 0.2, "importance_sampling_level": "token"}
        own |= compared.theirs
        self.args = SimpleNamespace(
            delta=own.pop("delta"),
            sapo_temperature_pos=1.0,
            sapo_temperature_neg=1.05,
            vespo_k_pos=2.0,
            vespo_lambda_pos=3.0,
            vespo_k_neg=3.0,
            vespo_lambda_neg=2.0,
            use_bias_correction_kl=compared.kl == "unbiased",
            steps_per_generation=1,
        )
        self.__dict__ |= own
        self.model = SimpleNamespace(training=True)
        self.accelerator = Alone()
        self.beta = BETA if compared.kl else 0.0
        self.top_entropy_quantile = compared.top
        self.use_vllm = self.vllm_importance_sampling_correction = compared.weighted
        self.off_policy_mask_threshold = None
        self.aux_loss_enabled = self._entropy_bonus_enabled = False
        self.current_gradient_accumulation_steps = 1
        self.max_completion_length = WIDTH
        self._metrics: dict[str, Any] = {"train": defaultdict(list)}

    def _get_per_token_logps_and_entropies(self, *given: Any, **rest: Any) -> tuple[Tensor, Tensor, None]:
        return self.leaf, self.entropies, None


def theirs(given: Numbers, compared: Compared) -> tuple[Tensor, Tensor]:
    leaf = given.log_prob.clone().requires_grad_()
    whole = torch.ones_like(given.mask)
    inputs = {
        "prompt_ids": torch.zeros(ROWS, 1, dtype=torch.int64),
        "prompt_mask": whole[:, :1],
        "completion_ids": torch.zeros(ROWS, WIDTH, dtype=torch.int64),
        "completion_mask": whole,
        "tool_mask": given.mask,
        "advantages": given.advantages,
        "old_per_token_logps": given.old,
        "ref_per_token_logps": given.reference,
        "num_items_in_batch": given.mask.sum(),
    }
    if compared.weighted:
        inputs["importance_sampling_ratio"] = given.weights
    loss = Bare(leaf, given.entropies, compared)._compute_loss(SimpleNamespace(training=True), inputs)
    return loss.detach(), torch.autograd.grad(loss, leaf)[0]


def ours(given: Numbers, compared: Compared) -> tuple[Tensor, Tensor]:
    leaf = given.log_prob.clone().requires_grad_()
    totals = Totals.of(given.mask)
    weights = given.weights if compared.weighted else None
    if compared.top < 1:
        weights = entropy.top(given.entropies, given.mask, compared.top).to(leaf.dtype)
    loss, _ = losses.compute(
        compared.loss,
        log_prob=leaf,
        old_log_prob=given.old,
        advantages=given.advantages[:, None].expand_as(leaf),
        mask=given.mask,
        aggregate=compared.aggregation,
        weights=weights,
        totals=totals,
        norm_tokens=WIDTH,
        **compared.params,
    )
    if compared.kl:
        away = kl.compute(compared.kl, leaf, given.reference, given.mask, old_log_prob=given.old)
        loss = loss + BETA * aggregate.compute(
            compared.aggregation, away, given.mask, totals=totals, norm_tokens=WIDTH
        )
    return loss.detach(), torch.autograd.grad(loss, leaf)[0]


def apart(compared: Compared, dtype: torch.dtype) -> tuple[float, float]:
    """The greatest differences over the seeds: (of the loss, of the gradient)."""
    worst = (0.0, 0.0)
    for seed in SEEDS:
        given = numbers(seed, dtype)
        (our_loss, our_gradient), (their_loss, their_gradient) = (
            ours(given, compared),
            theirs(given, compared),
        )
        # Σ |∂L/∂x| |x| is at least as large as the terms of the loss, whatever their signs.
        scale = max(float(their_loss.abs()), float((their_gradient * given.log_prob).abs().sum()))
        of_loss = float((our_loss - their_loss).abs()) / scale
        of_gradient = float((our_gradient - their_gradient).abs().max() / their_gradient.abs().max())
        worst = max(worst[0], of_loss), max(worst[1], of_gradient)
    return worst


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    found: dict[str, dict[str, float]] = {}
    print(f"TRL {version('trl')}, torch {torch.__version__}, seeds {', '.join(map(str, SEEDS))}")
    print(f"{'':36}{'float64':>20}{'float32':>20}")
    print(f"{'objective':36}{'loss':>10}{'gradient':>10}{'loss':>10}{'gradient':>10}")
    for name, compared in OBJECTIVES.items():
        wide, narrow = apart(compared, torch.float64), apart(compared, torch.float32)
        print(f"{name:36}" + "".join(f"{value:10.1e}" for value in (*wide, *narrow)))
        keys = ("loss_float64", "gradient_float64", "loss_float32", "gradient_float32")
        found[name] = dict(zip(keys, (*wide, *narrow), strict=True))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
