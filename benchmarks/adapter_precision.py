"""How much of an adapter's first update survives in bfloat16, by the way that it is added to its base.

    python benchmarks/adapter_precision.py --model FOLDER [--lr 1e-4 5e-4] [--rank 16] [--seed 0]

FOLDER holds a model of the fast path, say SmolLM2-135M (`toolwright model get smollm2-135m`), whose weights
are rounded to bfloat16 first. The update is AdamW's first in float32: sequences of English text, chosen by
the seed, are made likelier and less likely in turn. Each way is then asked by how much the log-probabilities
have changed:

- rounded sum: W + B A, rounded to bfloat16 with W as it was stored
- loosened sum: the same with W loosened (`models/precision.py`), which is what a run does
- two products: x W + (x A) B, the first rounded before the second is added
- one product: [x, x A] · [W; B], rounded once

far: the length of the change, beside float32's; along: its share in that direction; alike: their cosine.
States are rounded in all of them, which adds noise of the length in the first line.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from toolwright.models import huggingface, lora
from toolwright.models import layer as layers
from toolwright.models.attention import PackedAttention
from toolwright.models.decoder import PIECES, Decoder, Layer
from toolwright.models.precision import autocast, loosen
from toolwright.models.products import PackedMatrix, linear
from toolwright.models.tokenizer import Tokenizer

BF16 = torch.bfloat16
SEQUENCES, LENGTH, PROMPT = 8, 48, 12
TEXT = Path(__file__).parents[1] / "docs" / "architecture.md"


class Beside(NamedTuple):
    """A matrix [in, out] and what is multiplied beside it: A [in, ranks] and α/r B [ranks, out]."""

    weight: Tensor
    a: Tensor
    b: Tensor
    at_once: bool

    def product(self, x: Tensor, plus: Tensor | None) -> Tensor:
        x = x.to(BF16)
        if self.at_once:
            return linear(torch.cat((x, x @ self.a), 1), torch.cat((self.weight, self.b)), plus)
        return torch.addmm(linear(x, self.weight, plus), x @ self.a, self.b)


def either(x: Tensor, matrix: Tensor | PackedMatrix | Beside, plus: Tensor | None = None) -> Tensor:
    return matrix.product(x, plus) if isinstance(matrix, Beside) else linear(x, matrix, plus)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", required=True, type=Path)
    parser.add_argument("--lr", type=float, nargs="+", default=[1e-4, 5e-4])
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    decoder = stored(options.model, options.rank)
    ask = Asked(Tokenizer.load(options.model), options.seed)
    gradients = ask.gradients(decoder)
    loose = copy.deepcopy(decoder)
    loosen(loose, BF16)
    ways: dict[str, Callable[[], Tensor]] = {
        "rounded sum": lambda: ask(decoder, BF16),
        "loosened sum": lambda: ask(loose, BF16),
        "two products": lambda: ask(decoder, BF16, beside=False),
        "one product": lambda: ask(decoder, BF16, beside=True),
    }
    before, at_first = ask(decoder, torch.float32), ask(decoder, BF16)
    print(f"noise of states in bfloat16: {rms(at_first - before):.4f}")
    for lr in options.lr:
        for one in (decoder, loose):
            step(one, gradients, lr)
        wanted = ask(decoder, torch.float32) - before
        print(f"lr {lr:g}: log-probabilities change by {rms(wanted):.4f} in float32")
        for name, way in ways.items():
            found = way() - at_first
            far, along = found.norm() / wanted.norm(), found @ wanted / wanted.square().sum()
            alike = torch.cosine_similarity(found, wanted, dim=0)
            print(f"  {name:<14} far {far:.3f}  along {along:.3f}  alike {alike:.3f}", flush=True)


def stored(folder: Path, rank: int) -> Decoder:
    """As the hub has it, with an adapter that adds nothing."""
    decoder = huggingface.load(folder, context=LENGTH)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.copy_(parameter.to(BF16))
    lora.attach(decoder, lora.Adapter(rank, 32.0, 32 / rank), lora.matched(decoder, "all-linear"), seed=0)
    return decoder


@torch.no_grad()
def step(decoder: Decoder, gradients: dict[str, Tensor], lr: float) -> None:
    """AdamW's first, from the beginning, where B is zero and A has no gradient."""
    for name, parameter in decoder.named_parameters():
        if ".b." in name:
            parameter.copy_(-lr * gradients[name] / (gradients[name].abs() + 1e-8))


def rms(x: Tensor) -> float:
    return float(x.square().mean().sqrt())


class Asked:
    """Sequences, and the log-probabilities of their tokens after the prompts."""

    def __init__(self, tokenizer: Tokenizer, seed: int) -> None:
        text = tokenizer.encode(TEXT.read_text(encoding="utf-8"))
        starts = torch.randint(
            len(text) - LENGTH, (SEQUENCES,), generator=torch.Generator().manual_seed(seed)
        )
        self.tokens = torch.tensor([token for i in starts.tolist() for token in text[i : i + LENGTH]])
        self.actions = torch.cat([torch.arange(PROMPT, LENGTH) + i * LENGTH for i in range(SEQUENCES)])

    def gradients(self, decoder: Decoder) -> dict[str, Tensor]:
        sign = torch.tensor([1.0, -1.0]).repeat(SEQUENCES // 2).repeat_interleave(LENGTH - PROMPT)
        attend = PackedAttention([LENGTH] * SEQUENCES, decoder.device)
        (self._log_probs(decoder, decoder(self.tokens, attend.positions, attend)) * -sign).mean().backward()
        return {name: p.grad for name, p in decoder.named_parameters() if p.grad is not None}

    @torch.no_grad()
    def __call__(self, decoder: Decoder, dtype: torch.dtype, *, beside: bool | None = None) -> Tensor:
        """`beside`: the adapter not added to the weights; True: in one product."""
        attend = PackedAttention([LENGTH] * SEQUENCES, decoder.device)
        with autocast(decoder.device, dtype):
            if beside is None:
                return self._log_probs(decoder, decoder(self.tokens, attend.positions, attend))
            assert decoder.adapter is not None
            x, turn = decoder.entered(self.tokens, attend.positions, decoder.embedding.weight)
            x, layers.linear = x.to(dtype), either
            for index, module in enumerate(decoder.layers):
                assert isinstance(module, Layer)
                matrices = {name: _beside(module, name, at_once=beside) for name in PIECES}
                with decoder.adapter.off():
                    weights = module.weights(torch.t)._replace(**matrices)  # type: ignore[arg-type]
                x = layers.layer(index, x, weights, turn, attend)
            layers.linear = linear
            return self._log_probs(decoder, layers.rms_norm(x, decoder.norm, decoder.shape.norm_eps))

    def _log_probs(self, decoder: Decoder, hidden: Tensor) -> Tensor:
        logits = decoder.head(hidden.index_select(0, self.actions - 1))
        return logits.log_softmax(-1).gather(1, self.tokens[self.actions, None])[:, 0]


def _beside(module: Layer, name: str, *, at_once: bool) -> Beside:
    low, weight = module.adapters[name], getattr(module, name).weight
    assert isinstance(low, lora.LowRank)
    b = torch.block_diag(*low.b) * low.adapter.scale
    return Beside(weight.t().to(BF16), torch.cat(list(low.a)).t().to(BF16), b.t().to(BF16), at_once)


if __name__ == "__main__":
    main()
