"""A Llama-family decoder whose attention is handed in, so that learner and engine run the same code."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from toolwright.models import kernels, lora
from toolwright.models.attention import PackedAttention
from toolwright.models.elementwise import rms_norm, turns
from toolwright.models.experts import Route, arranged, likeliest
from toolwright.models.layer import (
    Attend,
    LayerWeights,
    Split,
    attention,
    feed_forward,
    layer,
    split_heads,
)
from toolwright.models.products import PackedMatrix, linear
from toolwright.models.quantised import QuantisedMatrix
from toolwright.models.shape import Shape as Shape

if TYPE_CHECKING:
    from toolwright.models.parallel import Cut, SequenceGroup
    from toolwright.models.tensor_group import TensorGroup

# Our fused matrices, and what the hub calls the pieces of each.
PIECES = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "out": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}


# What a layer computes again on the way back rather than keeps: nothing, its feed-forward half, or all of it.
Recompute = Literal[False, "ffn", True]
ROWS_AT_ONCE = 8_192  # tokens of a feed-forward half that is computed again
# How matrices are kept. In bfloat16 updates are rounded at random; eight bits are for an adapter's base.
Stored = Literal["float32", "bfloat16", "int8"]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.bfloat16}  # of embeddings


@dataclass(frozen=True)
class DecoderWeights:
    """The weights of a decoder in the form that a pass reads."""

    embedding: Tensor
    layers: list[LayerWeights]
    norm: Tensor
    unembedding: Tensor | PackedMatrix  # [width, vocab]


class BlankMatrix(nn.Linear):
    """An uninitialised matrix, to be filled from a file. Skipping the initialisation is faster."""

    def reset_parameters(self) -> None:
        pass


class BlankTable(nn.Embedding):
    def reset_parameters(self) -> None:
        pass


class Layer(nn.Module):
    """The parameters of a layer; `layer` is what is done with them.

    Within a head of queries or keys the two numbers that turn together lie side by side, 2i and 2i + 1; the
    hub has them half a head apart.
    """

    tensor: TensorGroup | None = None  # that each hold a part of it; `shape` is then that of the part

    def __init__(
        self,
        shape: Shape,
        index: int,
        *,
        blank: bool = False,
        stored: Stored = "float32",
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        self.shape, self.index = shape, index

        def matrix(columns: int, rows: int, *, bias: bool) -> Any:
            if stored == "int8":
                return QuantisedMatrix(columns, rows, bias=bias, device=device)
            kind = BlankMatrix if blank else nn.Linear
            made = kind(columns, rows, bias=bias, dtype=DTYPES[stored], device=device)
            if bias:
                made.bias.data = made.bias.data.float()
            return made

        self.recompute: Recompute = False
        q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.attention_norm = nn.Parameter(torch.ones(shape.width))
        self.qkv = matrix(shape.width, q + 2 * kv, bias=shape.qkv_bias)
        self.out = matrix(q, shape.width, bias=False)
        self.ffn_norm = nn.Parameter(torch.ones(shape.width))
        self.experts = shape.experts if shape.has_experts(index) else None
        count, ffn = (1, shape.ffn) if self.experts is None else (self.experts.count, self.experts.ffn)
        if self.experts is not None:
            self.router = matrix(shape.width, count, bias=False)
        self.gate_up = matrix(shape.width, count * 2 * ffn, bias=False)  # experts one below the other
        self.down = matrix(ffn, count * shape.width, bias=False)
        if shape.qk_norm:
            self.q_norm = nn.Parameter(torch.ones(shape.head_dim))
            self.k_norm = nn.Parameter(torch.ones(shape.head_dim))
        self.adapters = nn.ModuleDict()  # by the matrix that each is of

    def forward(self, x: Tensor, turn: Tensor, attend: Attend, route: Route = likeliest) -> Tensor:
        if self.recompute is True and torch.is_grad_enabled():
            out: Tensor = checkpoint(
                self._pass, x, turn, attend, route, use_reentrant=False, preserve_rng_state=False
            )
            return out
        return self._pass(x, turn, attend, route)

    def _pass(self, x: Tensor, turn: Tensor, attend: Attend, route: Route) -> Tensor:
        learns = torch.is_grad_enabled() and self.tensor is None and self.experts is None
        if learns and kernels.usable(x) and isinstance(attend, PackedAttention):
            return self._learned(x, turn, attend)
        weights = self.weights(torch.t)
        if self.recompute != "ffn" or not torch.is_grad_enabled():
            return layer(self.index, x, weights, turn, attend, route=route)
        x = attention(self.index, x, weights, turn, attend)
        again = partial(checkpoint, feed_forward, use_reentrant=False, preserve_rng_state=False)
        # A route is that of the whole pass.
        parts = x.split(ROWS_AT_ONCE) if self.experts is None else (x,)
        done = [again(rows, weights, self.index, route) for rows in parts]
        return done[0] if len(done) == 1 else torch.cat(done)

    def _learned(self, x: Tensor, turn: Tensor, attend: PackedAttention) -> Tensor:
        from toolwright.models.kernels import layer as fused

        s = self.shape
        added: list[fused.AddedRows] = []

        def matrix(name: str) -> Tensor:
            if name not in self.adapters:
                return self._matrix(name)
            low: Any = self.adapters[name]
            added.extend(fused.AddedRows(name, *piece) for piece in low.added_rows())
            with torch.no_grad():
                return self._matrix(name)

        parameters = fused.Parameters(
            attention_norm=self.attention_norm,
            qkv=matrix("qkv"),
            qkv_bias=self.qkv.bias,
            q_norm=self.q_norm if s.qk_norm else None,
            k_norm=self.k_norm if s.qk_norm else None,
            out=matrix("out"),
            ffn_norm=self.ffn_norm,
            gate_up=matrix("gate_up"),
            down=matrix("down"),
        )
        counts = (s.heads, s.kv_heads)
        rows = ROWS_AT_ONCE if self.recompute == "ffn" else None
        return fused.layer(
            x, turn, attend.packed, parameters, counts=counts, eps=s.norm_eps, rows=rows, added=added
        )

    def weights(self, arrange: Callable[[Tensor], Tensor | PackedMatrix]) -> LayerWeights:
        s = self.shape
        qk_norm = None
        if s.qk_norm:
            q_norm, k_norm = (
                norm if self.tensor is None else self.tensor.copied(norm)
                for norm in (self.q_norm, self.k_norm)
            )
            qk_norm = torch.cat((q_norm.expand(s.heads, -1), k_norm.expand(s.kv_heads, -1)))
        gate_up, down = (self._ffn(name, arrange) for name in ("gate_up", "down"))
        return LayerWeights(
            attention_norm=self.attention_norm,
            qkv=arrange(self._matrix("qkv")),
            qkv_bias=self.qkv.bias,
            qk_norm=qk_norm,
            out=arrange(self._matrix("out")),
            ffn_norm=self.ffn_norm,
            gate_up=gate_up,
            down=down,
            heads=s.heads,
            kv_heads=s.kv_heads,
            norm_eps=s.norm_eps,
            tensor=self.tensor,
            router=None if self.experts is None else arrange(self.router.weight),
            experts=self.experts,
        )

    def _ffn(self, name: str, arrange: Callable[[Tensor], Tensor | PackedMatrix]) -> Any:
        weight = self._matrix(name)
        return arrange(weight) if self.experts is None else arranged(weight, self.experts.count, arrange)

    def _matrix(self, name: str) -> Tensor:
        module = getattr(self, name)
        if name in self.adapters:
            low: Any = self.adapters[name]
            added: Tensor = low.added(module)
            return added
        weight: Tensor = module.weight
        return weight

    def pieces(self, name: str) -> list[tuple[str, int]]:
        """The hub's name and the number of rows of each adaptable part of one of our matrices."""
        s = self.shape
        if self.experts is not None and name in ("gate_up", "down"):
            return []
        q, kv = s.heads * s.head_dim, s.kv_heads * s.head_dim
        rows = {"qkv": (q, kv, kv), "out": (s.width,), "gate_up": (s.ffn, s.ffn), "down": (s.width,)}[name]
        names = [f"model.layers.{self.index}.{piece}" for piece in PIECES[name]]
        return list(zip(names, rows, strict=True))


class Decoder(nn.Module):
    """Token ids to hidden states; `head` turns the chosen ones into logits."""

    fast = True  # not so a model that comes with a forward of its own
    exact = True  # whether a token's numbers are the same alone and among others
    adapter: lora.Adapter | None = None
    recompute: Recompute = False
    stored: Stored = "float32"
    # Where several ranks compute it together: those that divide a pass's tokens, and those that divide its
    # matrices, with this rank's part of each parameter.
    sequence: SequenceGroup | None = None
    tensor: TensorGroup | None = None
    cuts: Mapping[str, Cut] = MappingProxyType({})

    def __init__(
        self,
        shape: Shape,
        *,
        blank: bool = False,
        stored: Stored = "float32",
        device: torch.device | None = None,
    ) -> None:
        """`blank`: leave the parameters uninitialised until a state is loaded."""
        super().__init__()
        self.shape, self.stored = shape, stored
        table = partial(BlankTable if blank else nn.Embedding, dtype=DTYPES[stored], device=device)
        self.embedding = table(shape.vocab, shape.width)
        self.layers = nn.ModuleList(
            Layer(shape, index, blank=blank, stored=stored, device=device) for index in range(shape.layers)
        )
        self.norm = nn.Parameter(torch.ones(shape.width))
        self.unembedding = self.embedding if shape.tied else table(shape.vocab, shape.width)
        self.register_buffer("turns", turns(shape), persistent=False)
        self.to(device)

    turns: Tensor

    @property
    def device(self) -> torch.device:
        """The device that it computes on; its parameters may rest elsewhere between two passes."""
        return self.turns.device

    @property
    def declared_shape(self) -> Shape:
        """The shape in its configuration. `shape` is what our engine caches."""
        return self.shape

    def recomputing(self, what: Recompute) -> Decoder:
        """Gradient checkpointing: of a layer, or of its feed-forward half, only the input is kept for the way
        back."""
        self.recompute = what
        for one in self._layers:
            one.recompute = what
        return self

    def initialise(self, seed: int) -> Decoder:
        """Fresh weights; residual outputs are scaled down by depth (GPT-2), so that deep ones start calm."""
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if parameter.dim() < 2:
                    parameter.fill_(0.0 if name.endswith("bias") else 1.0)
                    continue
                std = 0.02
                if "embedding" not in name:
                    std = parameter.shape[1] ** -0.5
                if name.endswith(("out.weight", "down.weight")):
                    std /= math.sqrt(2 * self.shape.layers)
                parameter.normal_(0.0, std, generator=generator)
        return self

    def weights(self, arrange: Callable[[Tensor], Tensor | PackedMatrix] = torch.t) -> DecoderWeights:
        """The parameters as a pass reads them; `arrange` makes a matrix of [in, out] of one of [out, in]."""
        layers = [one.weights(arrange) for one in self._layers]
        return DecoderWeights(self.embedding.weight, layers, self.norm, arrange(self.unembedding.weight))

    def forward(self, tokens: Tensor, positions: Tensor, attend: Attend, route: Route = likeliest) -> Tensor:
        """The learner's pass: layer by layer as modules, so that whoever holds their parameters elsewhere
        (`learner/sharding.py`) has a place to bring them."""
        x, turn = self.entered(tokens, positions, self.embedding.weight)
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        for module in self.layers:
            x = module(x, turn, attend, route)
        return rms_norm(x, self.norm, self.shape.norm_eps)

    def hidden(
        self,
        tokens: Tensor,
        positions: Tensor,
        attend: Attend,
        *,
        weights: DecoderWeights | None = None,
        split: Split = split_heads,
    ) -> Tensor:
        """[tokens], [tokens] -> [tokens, width], normalised and ready for `head`: the engine's pass."""
        weights = weights or self.weights()
        x, turn = self.entered(tokens, positions, weights.embedding)
        for index, of_layer in enumerate(weights.layers):
            x = layer(index, x, of_layer, turn, attend, split)
        return rms_norm(x, weights.norm, self.shape.norm_eps)

    def entered(self, tokens: Tensor, positions: Tensor, embedding: Tensor) -> tuple[Tensor, Tensor]:
        """The start of every pass: the tokens' embeddings, and the rotation of each."""
        turn = self.turns.index_select(0, positions).unsqueeze(1)
        if self.tensor is not None:
            from toolwright.models.tensor_group import embedded

            return embedded(embedding, tokens, self.first_token, self.tensor), turn
        return torch.embedding(embedding, tokens), turn

    def head(self, hidden: Tensor, *, weights: DecoderWeights | None = None) -> Tensor:
        """Logits in float32, whatever the layers ran in: log-probabilities do not survive less. A rank that
        holds a part of the vocabulary has those of that part."""
        if self.tensor is not None:
            hidden = self.tensor.copied(hidden)
        unembedding = weights.unembedding if weights else self.unembedding.weight.t()
        if isinstance(unembedding, PackedMatrix):
            return linear(hidden, unembedding)
        unembedding = unembedding.to(hidden.dtype)
        if hidden.dtype == torch.float32 or (hidden.is_cuda and torch.is_grad_enabled()):
            return linear(hidden, unembedding).float()
        return kernels.wide(hidden, unembedding)

    @property
    def first_token(self) -> int:
        """The first token of the part of the vocabulary that this rank holds."""
        return int(self.cuts["embedding.weight"].places[0])

    def adaptable(self) -> list[str]:
        """The names of the matrices that an adapter can attach to, as on the Hugging Face hub."""
        return [name for one in self._layers for matrix in PIECES for name, _ in one.pieces(matrix)]

    def adapt(self, adapter: lora.Adapter, modules: Collection[str]) -> Iterator[lora.LowRank]:
        """Room for an adapter of these."""
        for one in self._layers:
            for matrix in PIECES:
                start, pieces = 0, []
                for name, rows in one.pieces(matrix):
                    turned = name.endswith(("q_proj", "k_proj"))
                    pieces.append(lora.MatrixRows(name, start, rows, name in modules, turned))
                    start += rows
                if any(piece.adapted for piece in pieces):
                    base = getattr(one, matrix)
                    like = base.codes if isinstance(base, QuantisedMatrix) else base.weight
                    one.adapters[matrix] = low = lora.LowRank(adapter, pieces, like, transposed=False)
                    yield low

    def matrix_of(self, adapter: str) -> str:
        """The name of the parameter that the low-rank matrix of this name is added to."""
        return adapter.replace(".adapters.", ".") + ".weight"

    def learned_state(self) -> dict[str, Tensor]:
        """The state that training changes: the adapter's if there is one, else everything."""
        return self.state_dict() if self.adapter is None else lora.learned(self)

    def load_learned(self, state: Mapping[str, Tensor]) -> None:
        if self.adapter is None:
            self.load_state_dict(state)
        else:
            lora.restore(self, state)

    @property
    def _layers(self) -> list[Layer]:
        return [one for one in self.layers if isinstance(one, Layer)]
