"""Mixture of experts (Qwen3-MoE's): a router sends each token to a few of many SwiGLU layers.

Tokens are sorted by expert, and every expert that has any computes its own in one product. On a CPU, in
float32, those are the products of `product_kernel`: what a token gets does not depend on which others share
its experts, so engine and learner agree to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from toolwright.failures import UserError
from toolwright.models.elementwise import swiglu
from toolwright.models.products import PackedMatrix, linear

# (layer, probabilities [tokens, experts], how many to use) -> experts of each token, [tokens, used]
Route = Callable[[int, Tensor, int], Tensor]


@dataclass(frozen=True)
class ExpertShape:
    """The extra sizes of a model with experts."""

    count: int
    used: int  # by each token
    ffn: int  # width of one
    normalised: bool = False  # the shares of those that are used add up to 1
    dense: tuple[int, ...] = ()  # layers that have a plain feed-forward half instead
    balance: float = 0.0  # weight of the loss that spreads tokens over experts

    @classmethod
    def of(cls, config: Mapping[str, Any], source: object) -> ExpertShape | None:
        """Read the shape from a config.json; None for a model without experts."""
        count = config.get("num_experts", config.get("num_local_experts"))
        if count is None:
            return None
        used, layers = config["num_experts_per_tok"], config["num_hidden_layers"]
        if used > count:
            raise UserError(f"{source}: num_experts_per_tok={used} is more than num_experts={count}")
        every, plain = config.get("decoder_sparse_step", 1), config.get("mlp_only_layers") or ()
        dense = tuple(i for i in range(layers) if i in plain or (i + 1) % every)
        balances = config.get("output_router_logits", False)
        return cls(
            count=count,
            used=used,
            ffn=config["moe_intermediate_size"],
            normalised=bool(config.get("norm_topk_prob", False)),
            dense=dense,
            balance=float(config.get("router_aux_loss_coef", 0.001)) if balances else 0.0,
        )

    def config(self) -> dict[str, Any]:
        """Its part of a config.json."""
        return {
            "num_experts": self.count,
            "num_experts_per_tok": self.used,
            "moe_intermediate_size": self.ffn,
            "norm_topk_prob": self.normalised,
            "decoder_sparse_step": 1,
            "mlp_only_layers": list(self.dense),
        }

    def names(self, mlp: str) -> dict[str, tuple[str, ...]]:
        """Our tensors to the hub's, which has each expert's apart; `mlp` is how the layer's begin there."""
        each = [f"{mlp}experts.{number}." for number in range(self.count)]
        both = tuple(f"{one}{part}_proj.weight" for one in each for part in ("gate", "up"))
        down = tuple(f"{one}down_proj.weight" for one in each)
        return {"router.weight": (f"{mlp}gate.weight",), "gate_up.weight": both, "down.weight": down}


def apart(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """A folder's tensors, every expert's under a name of its own even where `transformers` joined them."""
    found: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        place, _, last = name.rpartition(".")
        if not place.endswith(".experts") or last not in ("gate_up_proj", "down_proj"):
            found[name] = tensor
            continue
        for number, one in enumerate(tensor):
            if last == "down_proj":
                found[f"{place}.{number}.down_proj.weight"] = one
            else:
                gate, up = one.chunk(2)
                found |= {f"{place}.{number}.gate_proj.weight": gate, f"{place}.{number}.up_proj.weight": up}
    return found


def arranged(
    weight: Tensor, count: int, arrange: Callable[[Tensor], Tensor | PackedMatrix]
) -> Tensor | Sequence[PackedMatrix]:
    """A parameter, [experts · out, in], as a pass reads it: a view [experts, in, out], or each laid out."""
    each = weight.unflatten(0, (count, -1))
    if arrange is torch.t:
        return each.transpose(1, 2)
    packed = (arrange(one) for one in each)
    return [one for one in packed if isinstance(one, PackedMatrix)]


def likeliest(layer: int, probabilities: Tensor, used: int) -> Tensor:
    """The route of a token that nobody else decides on."""
    return probabilities.topk(used, dim=-1).indices


def mixture(
    h: Tensor,
    router: Tensor | PackedMatrix,
    gate_up: Tensor | Sequence[PackedMatrix],
    down: Tensor | Sequence[PackedMatrix],
    shape: ExpertShape,
    *,
    layer: int,
    route: Route = likeliest,
) -> Tensor:
    """[tokens, width] -> [tokens, width]: Σ over a token's experts of share · down(silu(gate) · up)."""
    probabilities = linear(h, router).float().softmax(-1)
    chosen = route(layer, probabilities, shape.used)
    share = probabilities.gather(1, chosen)
    if shape.normalised:
        share = share / share.sum(-1, keepdim=True)
    order = chosen.flatten().argsort(stable=True)
    groups = ExpertGroups.of(chosen, shape.count)
    rows = h.index_select(0, order // shape.used)
    done = groups.product(swiglu(groups.product(rows, gate_up)), down)
    places = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
    parts = done.index_select(0, places).view(*chosen.shape, -1)
    # A product and a sum: fused, they would round differently at the end of a vector.
    return (parts * share.to(parts.dtype).unsqueeze(-1)).sum(1)


@dataclass(frozen=True)
class ExpertGroups:
    """Rows that are sorted by expert: how many each has."""

    counts: Tensor  # [experts]

    @classmethod
    def of(cls, chosen: Tensor, experts: int) -> ExpertGroups:
        """Without asking the device how many there are, so that a graph can record it."""
        flat = chosen.flatten()
        return cls(flat.new_zeros(experts).scatter_add_(0, flat, torch.ones_like(flat)))

    def product(self, x: Tensor, matrices: Tensor | Sequence[PackedMatrix]) -> Tensor:
        """Each row by its expert's matrix."""
        if not isinstance(matrices, Tensor):
            return _one_by_one(x, matrices, self.counts.tolist())
        aligned = x.shape[1] % 8 == 0 and matrices.shape[2] % 8 == 0
        if x.is_cuda and x.dtype == torch.bfloat16 and aligned:
            ends = self.counts.cumsum(0, dtype=torch.int32)
            return F.grouped_mm(x, matrices.to(x.dtype), offs=ends)
        if torch.is_grad_enabled() and (x.requires_grad or matrices.requires_grad):
            out: Tensor = _Grouped.apply(x, matrices, self.counts.tolist())
            return out
        return _one_by_one(x, matrices, self.counts.tolist())


def _one_by_one(x: Tensor, matrices: Tensor | Sequence[PackedMatrix], counts: list[int]) -> Tensor:
    pieces = zip(x.split(counts), matrices, strict=True)
    done = [linear(rows, matrix) for rows, matrix in pieces if len(rows)]
    return torch.cat(done)


class _Grouped(torch.autograd.Function):
    """Multiplies expert by expert. Experts without tokens cost nothing on the way back but their zeros."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, matrices: Tensor, counts: list[int]) -> Tensor:
        ctx.save_for_backward(x, matrices)
        ctx.counts = counts
        return _one_by_one(x, matrices, counts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, matrices = ctx.saved_tensors
        given = gradients[0].to(matrices.dtype)
        of_x = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        # As the parameter is stored, [experts, out, in]: its view's gradient is then its own.
        of_matrices = matrices.new_zeros(matrices.mT.shape) if ctx.needs_input_grad[1] else None
        start = 0
        for number, count in enumerate(ctx.counts):
            rows = slice(start, start + count)
            start += count
            if not count:
                continue
            if of_x is not None:
                of_x[rows] = given[rows].mm(matrices[number].t())
            if of_matrices is not None:
                torch.mm(given[rows].t(), x[rows].to(given.dtype), out=of_matrices[number])
        return of_x, None if of_matrices is None else of_matrices.mT, None


@dataclass
class RouterLog:
    """Counts where the router sent the tokens of one pass of the learner."""

    shape: ExpertShape
    counts: dict[int, Tensor] = field(default_factory=dict)  # tokens of each expert, by layer
    means: dict[int, Tensor] = field(default_factory=dict)  # of each expert's probability

    def __call__(self, layer: int, probabilities: Tensor, used: int) -> Tensor:
        chosen = likeliest(layer, probabilities.detach(), used)
        if layer not in self.counts:  # a layer that is computed again on the way back counts once
            self.counts[layer] = ExpertGroups.of(chosen, self.shape.count).counts
            self.means[layer] = probabilities.mean(0)
        return chosen

    def imbalance(self) -> Tensor:
        """experts · Σ (share of tokens · mean probability), which is `used` if all experts are alike (arXiv
        2101.03961)."""
        counts, means = torch.stack([*self.counts.values()]), torch.stack([*self.means.values()])
        shares = counts.sum(0) * self.shape.used / counts.sum()
        return self.shape.count * (shares * means.mean(0)).sum()

    def metrics(self) -> dict[str, Tensor]:
        """Measure how evenly the experts are used. The entropy is 1 if all are alike; `max_share` is the part
        of a layer's tokens that its busiest expert has."""
        counts = torch.stack([*self.counts.values()]).float()
        shares = counts / counts.sum(1, keepdim=True)
        entropy = torch.special.entr(shares).sum(1).mean() / math.log(max(2, self.shape.count))
        return {"expert_entropy": entropy, "expert_max_share": shares.amax()}
