"""Any other causal language model of `transformers`, run by its own forward behind the decoder's interface.

Most of them let their attention be handed in, as our own decoder does: then packed sequences, caches and
slots work as they do for it. Whether a model's numbers stay its own that way is tried when it is loaded, on
two sequences laid end to end. One that fails (attention that reaches only so far, a state that is carried
from token to token, …) is given whole sequences instead, for every new token anew: slow, and right.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from toolwright.failures import UserError
from toolwright.models import lora, weight_files
from toolwright.models.attention import PackedAttention
from toolwright.models.decoder import Decoder, DecoderWeights, Recompute, Shape
from toolwright.models.experts import Route, likeliest
from toolwright.models.folder import foreign_code, quiet_transformers, read_json
from toolwright.models.image_reader import ImageReader
from toolwright.models.layer import Attend, Split, split_heads
from toolwright.models.products import PackedMatrix, fixed, linear
from toolwright.models.vision import VisionInputs, enable_vision, has_turns, vision_probe

HANDED = "toolwright"  # our attention's name among those of `transformers`
PROBE = (13, 7)  # tokens of the sequences on which a model is tried
# Keys of a configuration that say how many tokens back some layer looks: too few to notice on a probe.
REACHES = (
    "sliding_window",
    "attention_chunk_size",
    "window_size",
    "local_attention_window",
    "attention_window",
)
DIGITS = 4  # a token id in bytes, which every type of number holds exactly


class Unfit(Exception):
    """This model's attention cannot be handed in."""


class AttentionContext:
    """The work of a model's attention layers at present, and their heads."""

    attend: Attend
    heads: tuple[int, int, int] | None = None  # of queries, of keys, and the size of one

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scaling: float | None) -> Tensor:
        """[1, heads, tokens, dim] each -> [1, tokens, heads, dim]"""
        heads = (q.shape[1], k.shape[1], q.shape[3])
        if self.heads not in (None, heads) or v.shape != k.shape:
            raise Unfit("its layers have different heads")
        self.heads = heads
        stretch = 1.0 if scaling is None else scaling * math.sqrt(q.shape[3])
        if not math.isclose(stretch, 1.0):
            q = q * stretch
        # In lower precision some leave what they have turned by its position in float32.
        q, k, v = (x[0].transpose(0, 1).to(v.dtype).contiguous() for x in (q, k, v))
        return self.attend(layer, q, k, v)[None]


def attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Any,
    scaling: float | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """As `transformers` calls it. What `more` holds beyond this is noticed by the probe."""
    if more.get("softcap") is not None or more.get("s_aux") is not None:
        raise Unfit("its attention is not a plain softmax")
    return module.toolwright(module.layer_idx, query, key, value, scaling), None


class OwnForward(Decoder):
    """A decoder with the model's own body and head behind our interface."""

    fast = False
    three_axes: bool  # its positions have three axes, where there are images

    def __init__(self, model: Any, shape: Shape, handed: AttentionContext | None) -> None:
        nn.Module.__init__(self)
        self.model, self.shape, self.handed = model, shape, handed
        # Whole sequences of other lengths side by side add up in another order.
        self.exact = handed is not None
        self.reader: ImageReader | None = None  # of its images, if it sees them
        self.no_vision_because = "it is a language model"  # why it sees none
        self.three_axes = has_turns(model)

    @property
    def device(self) -> torch.device:
        found: torch.device = self.model.device
        return found

    @property
    def layers(self) -> nn.ModuleList:  # type: ignore[override]
        return _layers(_body(self.model))

    @property
    def unembedding(self) -> Any:  # type: ignore[override]
        return self.model.get_output_embeddings()

    def recomputing(self, what: Recompute) -> OwnForward:
        """A layer as a whole, or nothing: where its feed-forward half begins is not known here."""
        self.recompute = bool(what)
        for layer in self.layers:
            layer.__dict__.pop("forward", None)
            if self.recompute:
                layer.forward = partial(
                    checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False
                )
        return self

    def initialise(self, seed: int) -> OwnForward:
        raise NotImplementedError("`toolwright model init` creates a model with its own forward")

    def weights(self, arrange: Callable[[Tensor], Tensor | PackedMatrix] = torch.t) -> DecoderWeights:
        """It reads them where they are."""
        nothing = torch.empty(0)
        return DecoderWeights(nothing, [], nothing, nothing)

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        attend: Attend,
        route: Route = likeliest,
        vision: VisionInputs | None = None,
    ) -> Tensor:
        if self.handed is None:
            return self._whole(tokens, attend)
        self.handed.attend = attend
        if vision is None:
            out = _body(self.model)(input_ids=tokens[None], position_ids=positions[None], use_cache=False)
        else:
            given = vision.body_arguments(self.model.get_input_embeddings()(tokens), positions)
            out = _body(self.model)(**given, use_cache=False)
        hidden: Tensor = out[0][0]
        return hidden

    def hidden(
        self,
        tokens: Tensor,
        positions: Tensor,
        attend: Attend,
        *,
        weights: DecoderWeights | None = None,
        split: Split = split_heads,
        vision: VisionInputs | None = None,
    ) -> Tensor:
        return self(tokens, positions, attend, vision=vision)

    def head(self, hidden: Tensor, *, weights: DecoderWeights | None = None) -> Tensor:
        """Compute logits by the model's own forward around an empty body: some models scale or cap."""
        with _standing_in(_body(self.model), hidden[None]):
            one = torch.zeros(1, len(hidden), dtype=torch.int64, device=hidden.device)
            logits: Tensor = self.model(input_ids=one, use_cache=False).logits[0]
        return logits.float()

    def _whole(self, tokens: Tensor, attend: Any) -> Tensor:
        """The cache holds tokens rather than keys: it gives back the sequences that they are of."""
        place = 256 ** torch.arange(DIGITS, device=tokens.device)
        digits = (tokens[:, None] // place) % 256
        rows = (attend.together(digits[:, None].float())[:, :, 0].long() * place).sum(-1)
        states: Tensor = _body(self.model)(input_ids=rows, use_cache=False)[0]
        apart: Tensor = attend.apart(states)
        return apart

    def to_hub(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The weights by the names that its files have; a tied one is there once."""
        from transformers.core_model_loading import revert_weight_conversion

        tied = getattr(self.model, "all_tied_weights_keys", None) or {}
        named = {name.removeprefix("model."): tensor for name, tensor in state.items()}
        own = {name: tensor for name, tensor in named.items() if name not in tied}
        found: dict[str, Tensor] = revert_weight_conversion(self.model, own)
        return found

    def to_config(self) -> dict[str, Any]:
        config: dict[str, Any] = self.model.config.to_dict()
        return {**config, "architectures": [type(self.model).__name__], "dtype": "float32"}

    @property
    def declared_shape(self) -> Shape:
        return _shape(self.model.config, self.shape.context)

    def save(self, folder: Path, *, state: dict[str, Tensor] | None = None) -> None:
        found = self.state_dict() if state is None else state
        whole = {name.removeprefix("model."): tensor.detach().cpu() for name, tensor in found.items()}
        self.model.save_pretrained(folder, state_dict=whole)

    def adaptable(self) -> list[str]:
        head = self.unembedding
        return [
            name.removesuffix(".inner")
            for name, module in self.model.named_modules()
            if _is_linear(module) and module is not head
        ]

    def adapt(self, adapter: lora.Adapter, modules: Collection[str]) -> Iterator[lora.LowRank]:
        for name in [name for name in self.adaptable() if name in modules]:
            inner = self.model.get_submodule(name)
            transposed = not isinstance(inner, nn.Linear)
            rows = inner.weight.shape[1 if transposed else 0]
            low = lora.LowRank(adapter, [lora.MatrixRows(name, 0, rows)], inner.weight, transposed=transposed)
            parent, _, last = name.rpartition(".")
            setattr(self.model.get_submodule(parent), last, lora.AdaptedLinear(inner, low))
            yield low

    def matrix_of(self, adapter: str) -> str:
        return adapter.removesuffix(".low") + ".inner.weight"


def vision_model(decoder: Decoder) -> OwnForward:
    """The decoder, if it takes images; else a UserError that says why not."""
    if not isinstance(decoder, OwnForward) or decoder.reader is None:
        why = decoder.no_vision_because if isinstance(decoder, OwnForward) else "it is a language model"
        raise UserError(f"the prompt has images, but the model takes none: {why}")
    return decoder


def load(folder: Path, *, context: int | None = None) -> OwnForward:
    """The folder's weights in a model of `transformers`."""
    for path in weight_files.files(folder):
        weight_files.header(path)
    transformers = _transformers()
    with foreign_code(f"transformers cannot load {folder}"):
        kind = _auto_class(transformers.AutoConfig.from_pretrained(folder))
        model, found = kind.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    if found["missing_keys"]:
        raise UserError(f"{folder} is incomplete: it has no tensor {min(found['missing_keys'])}")
    if found["mismatched_keys"]:
        raise UserError(
            f"{folder}: its weights do not fit its config.json: {min(found['mismatched_keys'])[0]}"
        )
    weight_files.check_finite(folder, model.named_parameters())
    _freeze_vision(model)
    reader = ImageReader.of(folder)
    probe = vision_probe(model, reader, model.config.get_text_config().vocab_size)
    with foreign_code(f"{folder}: its own forward fails"):  # sizes that do not go together, say
        decoder = wrapped(model, context=context, avoid=-1 if reader is None else reader.token)
        enable_vision(decoder, reader, probe)
    return decoder


def read_shape(folder: Path, *, context: int | None = None) -> Shape:
    """Read the shape from the configuration; how the model's heads really are is known once it is loaded."""
    transformers = _transformers()
    kind = read_json(folder / "config.json").get("model_type")
    reader = f"transformers {transformers.__version__}"
    with foreign_code(f"{folder} holds a {kind!r} model, which {reader} cannot read"):
        config = transformers.AutoConfig.from_pretrained(folder)
    if _auto_class(config) is None:
        raise UserError(f"{folder} holds a {config.model_type!r} model, which is not a causal language model")
    return _shape(config, context)


@torch.no_grad()
def wrapped(model: Any, *, context: int | None = None, avoid: int = -1) -> OwnForward:
    """Put a model behind the decoder's interface. The ways to run it are tried in turn, and the first is
    taken that gives its own forward's numbers on two packed sequences. `avoid`: a token id that is not text.
    """
    model.eval()
    fix_products(model)
    shape, before = _shape(model.config, context), model.config.get_text_config()._attn_implementation
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randint(0, shape.vocab, (n,), generator=generator) for n in PROBE]
    rows = [row[row != avoid][: shape.context].to(model.device) for row in rows]
    alone = torch.cat([model(input_ids=row[None], use_cache=False).logits[0] for row in rows])
    for build in (_handed, _whole):
        try:
            decoder = build(model, shape, rows)
            attend = PackedAttention([len(row) for row in rows], model.device)
            together = decoder.head(decoder(torch.cat(rows), attend.positions, attend))
        except Exception:  # a model that was not made for it may fail in any way
            together = torch.empty(0)
        if together.shape == alone.shape and torch.allclose(together, alone, rtol=1e-3, atol=1e-3):
            return decoder
        _choose_attention(model, before)
    raise UserError(
        f"a {model.config.model_type!r} model computes other numbers in parts than as a whole, so its hidden "
        "states cannot be separated from its logits"
    )


def _handed(model: Any, shape: Shape, rows: Sequence[Tensor]) -> OwnForward:
    """Its attention handed in. Its heads are known once it has run."""
    handed = AttentionContext()
    _choose_attention(model, HANDED)
    if model.config.get_text_config()._attn_implementation != HANDED or _reach(model.config) < shape.context:
        raise Unfit("its attention cannot be chosen, or looks less far than ours")
    for module in model.modules():
        module.toolwright = handed
    attend = PackedAttention([len(rows[0])], model.device)
    OwnForward(model, shape, handed)(rows[0], attend.positions, attend)
    heads, kv_heads, head_dim = handed.heads or (0, 0, 0)
    return OwnForward(model, replace(shape, heads=heads, kv_heads=kv_heads, head_dim=head_dim), handed)


def _whole(model: Any, shape: Shape, rows: Sequence[Tensor]) -> OwnForward:
    """Given whole sequences. Of each token its digits are kept, as if they were the keys of one layer."""
    return OwnForward(model, replace(shape, layers=1, heads=1, kv_heads=1, head_dim=DIGITS), None)


def _auto_class(config: Any) -> Any:
    """The Auto class of `transformers` that builds this model; None if the model does not generate text."""
    transformers = _transformers()
    kinds = (transformers.AutoModelForCausalLM, transformers.AutoModelForImageTextToText)
    return next((kind for kind in kinds if type(config) in kind._model_mapping), None)


def _choose_attention(model: Any, name: str) -> None:
    """Set the attention of the text layers. A vision tower attends in both directions, and keeps its own."""
    config = model.config
    text = config.get_text_config()
    inner = next((key for key in config.sub_configs if getattr(config, key, None) is text), None)
    model.set_attn_implementation(name if inner is None else {inner: name})


def _freeze_vision(model: Any) -> None:
    """Freeze the vision tower if model.config.freeze_vision_tower is true: only what reads and writes text is
    learned."""
    if getattr(model.config, "freeze_vision_tower", False):
        learned = {id(p) for part in (_body(model), model.get_output_embeddings()) for p in part.parameters()}
        for parameter in model.parameters():
            parameter.requires_grad_(id(parameter) in learned)


def _shape(config: Any, context: int | None) -> Shape:
    text = config.get_text_config()
    limit = int(getattr(text, "max_position_embeddings", None) or context or 2048)
    limit = min(limit, _unstretched(text))
    heads = int(getattr(text, "num_attention_heads", None) or 1)
    return Shape(
        vocab=text.vocab_size,
        layers=text.num_hidden_layers,
        width=text.hidden_size,
        heads=heads,
        kv_heads=int(getattr(text, "num_key_value_heads", None) or heads),
        ffn=0,
        context=min(limit, context or limit),
        head_dim=int(getattr(text, "head_dim", None) or text.hidden_size // heads),
        tied=bool(getattr(text, "tie_word_embeddings", False)),
        family=config.model_type,
    )


def _unstretched(config: Any) -> int:
    """`longrope` turns otherwise once anything in a batch is longer than this, and all beside it as well."""
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = [rope, *(one for one in rope.values() if isinstance(one, dict))]
    longest = [
        one.get("original_max_position_embeddings") for one in kinds if one.get("rope_type") == "longrope"
    ]
    return min((int(most) for most in longest if most), default=sys.maxsize)


def _reach(config: Any) -> float:
    """Count the tokens that the layer with the shortest window looks back."""
    text = config.get_text_config()
    if getattr(text, "use_sliding_window", True) is False:
        return math.inf
    found = [getattr(text, key, None) for key in REACHES]
    return min((float(reach) for reach in found if isinstance(reach, int)), default=math.inf)


def _body(model: Any) -> Any:
    """The body that the forward puts its head on."""
    found = model.get_decoder()
    return model.base_model if found is None or found is model else found


def _layers(model: Any) -> nn.ModuleList:
    """The longest list of modules in it."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    return max(lists, key=len, default=nn.ModuleList())


class _FixedProduct:
    """A linear layer whose product does not depend on how many rows it has."""

    def forward(self: Any, x: Tensor) -> Tensor:
        if not fixed(x):
            plain: Tensor = super().forward(x)  # type: ignore[misc]
            return plain
        matrix = self.weight.t() if isinstance(self, nn.Linear) else self.weight
        return linear(x.reshape(-1, x.shape[-1]), matrix, self.bias).view(*x.shape[:-1], -1)


def fix_products(model: Any) -> None:
    """Make the model's linear layers independent of how many rows they are given."""
    layers = [module for module in model.modules() if _is_linear(module)]
    kinds = {type(layer) for layer in layers}
    fixed_kinds = {kind: type(kind.__name__, (_FixedProduct, kind), {}) for kind in kinds}
    for layer in layers:
        layer.__class__ = fixed_kinds[type(layer)]


def _is_linear(module: nn.Module) -> bool:
    """A matrix: torch's own, or GPT-2's, which has it the other way round."""
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


class _States(tuple[Tensor]):
    """The output of a body, with its last states alone."""

    @property
    def last_hidden_state(self) -> Tensor:
        return self[0]

    def keys(self) -> list[str]:
        """The fields, for a model that passes on everything that its body returned."""
        return ["last_hidden_state"]

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(0 if key == "last_hidden_state" else key)

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


@contextmanager
def _standing_in(body: Any, states: Tensor) -> Iterator[None]:
    body.forward = lambda *_, **__: _States((states,))
    try:
        yield
    finally:
        del body.forward


def _transformers() -> Any:
    """The library, with our attention registered among its own."""
    from transformers.modeling_utils import AttentionInterface

    AttentionInterface.register(HANDED, attention)
    return quiet_transformers()
