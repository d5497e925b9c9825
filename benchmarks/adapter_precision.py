"""How much of an adapter's first update survives in bfloat16, in a run's own learner, on a CPU or a GPU.

    python benchmarks/adapter_precision.py [--model FOLDER] [--device cuda] [--lr 5e-5 1e-4 5e-4] [--seeds 3]

FOLDER holds a model of the fast path, say SmolLM2-135M (`toolwright model get smollm2-135m`). Without one it
is a model of that shape with random weights. They are rounded to bfloat16 first, as the hub stores them. The
first update makes sequences of English text, drawn by the seed, likelier and less likely in turn. Asked is by
how much their log-probabilities change:

- float32: a run with model.dtype=float32, on the CPU; all others are compared with it
- bfloat16: a run with model.dtype=bfloat16, whose base is loosened (`models/precision.py`)
- bfloat16 base: the same with the base kept in bfloat16 too, and loosened in every pass
- not loosened: the first without that; W + B A is rounded to bfloat16 where it stands

along: how far the change goes in the direction of float32's, as a share of that; far: its whole length as a
share; alike: their cosine. Hidden states are rounded as well, in all three, and differently once they have
moved: that noise has no direction, so `far` has it and `along` does not. Its length is in the first line of a
rate. Each figure is the mean over the seeds, with the lowest and the highest.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from toolwright.batch import Batch
from toolwright.config import schema
from toolwright.learner.objective import Objective
from toolwright.learner.policy import Policy
from toolwright.models import huggingface, lora
from toolwright.models.decoder import Stored
from toolwright.models.making import make
from toolwright.models.tokenizer import Tokenizer
from toolwright.trajectory import Segment, Task, Trajectory

BF16 = torch.bfloat16
SEQUENCES, LENGTH, PROMPT = 8, 48, 12
TEXT = Path(__file__).parents[1] / "docs" / "architecture.md"
WAYS = ("bfloat16", "bfloat16 base", "not loosened")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", type=Path, help="its folder; none: random weights in SmolLM2-135M's shape")
    parser.add_argument("--device", default="cpu", help="of the ways in bfloat16")
    parser.add_argument("--lr", type=float, nargs="+", default=[5e-5, 1e-4, 5e-4])
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        if options.model is None:
            options.model = Path(made)
            make(options.model, "smollm2-135m", {}, tokenizer=None, seed=0)
        measure(options)


def measure(options: argparse.Namespace) -> None:
    text = Tokenizer.load(options.model).encode(TEXT.read_text(encoding="utf-8"))
    batches = [sequences(text, seed) for seed in range(options.seeds)]
    for lr in options.lr:
        wanted, at_first = changes(policy_of(options.model, "float32", "cpu", options.rank, lr), batches)
        length = torch.stack(wanted).square().mean().sqrt()
        print(f"lr {lr:g}: log-probabilities change by {length:.4f} (rms) in float32", flush=True)
        for way in WAYS:
            policy = policy_of(options.model, way, options.device, options.rank, lr)
            found, before = changes(policy, batches)
            noise = (torch.stack(before) - torch.stack(at_first)).square().mean().sqrt()
            print(f"  {way:<14} {compared(wanted, found)}  noise of states {noise:.4f}", flush=True)


def policy_of(folder: Path, way: str, device: str, rank: int, lr: float) -> Policy:
    """A run's own, over a base as the hub has it and an adapter that adds nothing yet."""
    stored: Stored = "bfloat16" if way == "bfloat16 base" else "float32"
    decoder = huggingface.load(folder, context=LENGTH, stored=stored)
    round_matrices(decoder)
    targets = lora.matched(decoder, "all-linear")
    lora.attach(decoder, lora.Adapter(rank, 2.0 * rank, 2.0), targets, seed=0)
    policy = Policy(
        decoder.to(device),
        schema.OptimizerConfig(lr=lr),
        total_updates=1,
        temperature=1.0,
        micro_tokens=SEQUENCES * LENGTH,
        dtype=torch.float32 if way == "float32" else BF16,
    )
    if way == "not loosened":
        round_matrices(decoder)
    return policy


@torch.no_grad()
def round_matrices(decoder: torch.nn.Module) -> None:
    for name, parameter in decoder.named_parameters():
        if ".adapters." not in name:
            parameter.copy_(parameter.to(BF16))


def sequences(text: Sequence[int], seed: int) -> Batch:
    """Prompts and continuations out of the text; every other one is better than the rest."""
    generator = torch.Generator().manual_seed(seed)
    attempts: list[Trajectory] = []
    for start in torch.randint(len(text) - LENGTH, (SEQUENCES,), generator=generator).tolist():
        tokens = list(text[start : start + LENGTH])
        attempt = Trajectory(Task("text", []), str(len(attempts)))
        attempt.append(Segment("prompt", tokens[:PROMPT], []))
        attempt.append(Segment("policy", tokens[PROMPT:], [0.0] * (LENGTH - PROMPT)))
        attempts.append(attempt)
    batch = Batch.pack(attempts)
    batch.columns["advantages"] = batch.spread(torch.tensor([1.0, -1.0] * (SEQUENCES // 2)))
    return batch


def changes(policy: Policy, batches: Sequence[Batch]) -> tuple[list[Tensor], list[Tensor]]:
    """Of each batch, by how much the first update changes its log-probabilities, and what they were."""
    begin = copy.deepcopy(policy.state_dict())
    found, before = [], []
    for batch in batches:
        policy.load_state_dict(copy.deepcopy(begin))
        before.append(policy.statistics(batch)["log_prob"].cpu())
        batch.columns["sampled_log_prob"] = before[-1]
        policy.update(batch, Objective(schema.Algorithm(), norm_tokens=LENGTH))
        found.append(policy.statistics(batch)["log_prob"].cpu() - before[-1])
    return found, before


def compared(wanted: Sequence[Tensor], found: Sequence[Tensor]) -> str:
    pairs = list(zip(wanted, found, strict=True))
    figures = {
        "along": [float(f @ w / w.square().sum()) for w, f in pairs],
        "far": [float(f.norm() / w.norm()) for w, f in pairs],
        "alike": [float(torch.cosine_similarity(f, w, dim=0)) for w, f in pairs],
    }
    return "  ".join(
        f"{name} {sum(values) / len(values):.3f} ({min(values):.3f} to {max(values):.3f})"
        for name, values in figures.items()
    )


if __name__ == "__main__":
    main()
