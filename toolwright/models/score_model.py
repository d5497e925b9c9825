"""A model that gives a whole sequence a number: a decoder with a head, as a Hugging Face folder holds it.

Read are the folders of `ForSequenceClassification` and `ForTokenClassification`, and decoders whose head has
another name, as verl and OpenRLHF save them. Written is `ForSequenceClassification` with one label.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from toolwright.failures import UserError
from toolwright.models import huggingface, own_forward, weight_files
from toolwright.models.attention import PackedAttention
from toolwright.models.decoder import Decoder, Stored
from toolwright.models.folder import foreign_code, quiet_transformers
from toolwright.models.precision import autocast
from toolwright.models.products import linear

# What heads are called: by transformers, by OpenRLHF, by TRL, and by those who put one in lm_head's place.
HEADS = ("score", "value_head", "v_head.summary", "v_head", "reward_head", "lm_head")
AT_ONCE = 16_384  # tokens of one pass

T = TypeVar("T")


@dataclass(frozen=True)
class ScoreScale:
    """(score − mean) / deviation, if the model's folder states both."""

    mean: float = 0.0
    deviation: float = 1.0

    @classmethod
    def of(cls, config: dict[str, Any]) -> ScoreScale:
        if not config.get("normalize_reward") or "mean" not in config:
            return cls()
        return cls(float(config["mean"]), float(config.get("std", 1.0)))


class ScoreModel(nn.Module):
    """A decoder with a head on the state of each sequence's last token."""

    def __init__(
        self,
        body: Decoder,
        head: nn.Linear,
        *,
        dtype: torch.dtype = torch.float32,
        scale: ScoreScale | None = None,
        padding: int | None = None,
    ) -> None:
        """`padding`: the token that transformers takes for none at the end of a sequence."""
        super().__init__()
        self.body, self.head, self.dtype, self.padding = body, head.to(body.device), dtype, padding
        self.scale = scale or ScoreScale()

    @classmethod
    def fresh(cls, body: Decoder, *, dtype: torch.dtype, padding: int | None = None) -> ScoreModel:
        """A head of zeros: it prefers nothing yet, whatever the decoder knows."""
        head = nn.Linear(body.shape.width, 1, bias=False)
        nn.init.zeros_(head.weight)
        return cls(body, head, dtype=dtype, padding=padding)

    @property
    def labels(self) -> int:
        return self.head.out_features

    @property
    def context(self) -> int:
        return self.body.shape.context

    def forward(self, sequences: Sequence[Sequence[int]]) -> Tensor:
        """[sequences, labels] in one pass, with a way back."""
        device, lengths = self.body.device, [len(one) for one in sequences]
        attend = PackedAttention(lengths, device)
        tokens = torch.tensor([token for one in sequences for token in one], device=device)
        with autocast(device, self.dtype):
            hidden = self.body(tokens, attend.positions, attend)
        starts = torch.tensor([0, *lengths[:-1]]).cumsum(0)
        last = torch.tensor([self._last(one) for one in sequences]) + starts
        states = hidden.index_select(0, last.to(device)).float()
        return linear(states, self.head.weight.float().t(), self.head.bias)

    def _last(self, tokens: Sequence[int]) -> int:
        """The place whose state counts."""
        place = len(tokens) - 1
        while place > 0 and tokens[place] == self.padding:
            place -= 1
        return place

    @torch.no_grad()
    def scores(self, sequences: Sequence[Sequence[int]]) -> Tensor:
        """Score sequences. On a GPU each has a pass of its own: larger products round differently."""
        together = self.body.exact and self.dtype == torch.float32 and self.body.device.type == "cpu"
        parts = runs(sequences, AT_ONCE if together else 1, size=len)
        found = torch.cat([self(part).cpu() for part in parts])
        return (found - self.scale.mean) / self.scale.deviation


class OwnClassifier:
    """A classifier of transformers by its own forward, a sequence at a time and therefore without padding."""

    def __init__(self, model: Any, *, by_token: bool) -> None:
        self.model, self.by_token = model, by_token
        own_forward.fix_products(model)
        text = model.config.get_text_config()
        self.labels = int(model.config.num_labels)
        self.context = int(getattr(text, "max_position_embeddings", None) or 2048)

    @torch.no_grad()
    def scores(self, sequences: Sequence[Sequence[int]]) -> Tensor:
        return torch.cat([self._score(one) for one in sequences])

    def _score(self, tokens: Sequence[int]) -> Tensor:
        rows = torch.tensor([list(tokens)], device=self.model.device)
        logits: Tensor = self.model(input_ids=rows, attention_mask=torch.ones_like(rows)).logits.float().cpu()
        return logits[:, -1] if self.by_token else logits


def load(
    folder: Path, *, context: int | None = None, dtype: torch.dtype, device: torch.device
) -> ScoreModel | OwnClassifier:
    """The folder's model, by our own layers where they compute the same."""
    config = huggingface.read_config(folder)
    by_token = "TokenClassification" in str(config.get("architectures"))
    if huggingface.slow_because(folder, context=context) is not None:
        return _own(folder, by_token=by_token, dtype=dtype, device=device)
    head = head_of(folder, config)
    stored: Stored = "float32" if dtype == torch.float32 else "bfloat16"
    body, weights = huggingface.load_body(folder, head, context=context, stored=stored, device=device)
    weight = weights[f"{head}.weight"].float()
    if weight.shape[1] != body.shape.width:
        raise UserError(
            f"{folder}: its head {head} reads {weight.shape[1]} numbers, its decoder has {body.shape.width}"
        )
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=f"{head}.bias" in weights)
    made.load_state_dict({name.removeprefix(f"{head}."): t.float() for name, t in weights.items()})
    # Only transformers' own classifier of sequences looks for padding; the others take the last token.
    whole = "SequenceClassification" in str(config.get("architectures"))
    padding = config.get("pad_token_id") if whole else None
    scale = ScoreScale.of(config)
    model = ScoreModel(body, made, dtype=dtype, scale=scale, padding=padding)
    return model.requires_grad_(False)


def head_of(folder: Path, config: dict[str, Any] | None = None) -> str:
    """Find the name of the folder's head; a UserError for a folder without one."""
    headers = map(weight_files.header, weight_files.files(folder))
    tensors = {name: one["shape"] for header in headers for name, one in header.items()}
    config = huggingface.read_config(folder) if config is None else config
    vocabulary = config.get("vocab_size")
    for name in (config.get("value_head_prefix"), *HEADS):
        shape = tensors.get(f"{name}.weight")
        if shape is not None and len(shape) == 2 and shape[0] != vocabulary:
            return str(name)
    raise UserError(
        f"{folder} is a language model and has no head that scores a sequence ({', '.join(HEADS[:-1])}); "
        "`toolwright rm` trains one from preferences, and scorer `judge_model` asks a language model"
    )


def _own(folder: Path, *, by_token: bool, dtype: torch.dtype, device: torch.device) -> OwnClassifier:
    transformers = quiet_transformers()
    kind = (
        transformers.AutoModelForTokenClassification
        if by_token
        else transformers.AutoModelForSequenceClassification
    )
    with foreign_code(f"transformers cannot load {folder} as a classifier"):
        model, found = kind.from_pretrained(folder, dtype=dtype, output_loading_info=True)
    if found["missing_keys"]:
        raise UserError(
            f"{folder} is an incomplete classifier: it has no tensor {min(found['missing_keys'])}; "
            "`toolwright rm` trains one from preferences"
        )
    return OwnClassifier(model.eval().requires_grad_(False).to(device), by_token=by_token)


def save(model: ScoreModel, folder: Path) -> None:
    """A folder that transformers loads as `AutoModelForSequenceClassification`, with one label."""
    body = model.body
    if not body.fast:
        _save_own(model, folder)
        return
    folder.mkdir(parents=True, exist_ok=True)
    weights = huggingface.hub_weights(body)
    weights.pop("lm_head.weight", None)
    weights["score.weight"] = model.head.weight
    config = huggingface.config_of(body)
    (kind,) = config["architectures"]
    named = {"architectures": [kind.replace("CausalLM", "SequenceClassification")], **_LABELS}
    config |= {**named, "pad_token_id": model.padding}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    plain = {name: tensor.detach().contiguous().cpu() for name, tensor in weights.items()}
    save_file(plain, folder / weight_files.SINGLE, metadata={"format": "pt"})
    weight_files.copy_permissions(folder, "config.json")


_LABELS = {"num_labels": 1, "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}


def _save_own(model: ScoreModel, folder: Path) -> None:
    """Save it with transformers' own class for such a model, which must apply its head to the same states."""
    transformers, body = quiet_transformers(), model.body
    causal: Any = body.get_submodule("model")
    config = type(causal.config).from_dict({**causal.config.to_dict(), **_LABELS})
    config.pad_token_id = model.padding
    family = causal.config.model_type
    with foreign_code(f"transformers has no classifier for a {family!r} model to be saved as"):
        made = transformers.AutoModelForSequenceClassification.from_config(config)
        made.base_model.load_state_dict(causal.base_model.state_dict())
        made.get_submodule("score").load_state_dict(model.head.state_dict())
    made.save_pretrained(folder)


def runs(items: Sequence[T], most: int, size: Callable[[T], int]) -> list[list[T]]:
    """Runs of items with at most so many tokens together; one that has more stands alone."""
    found: list[list[T]] = []
    total = 0
    for one in items:
        if not found or total + size(one) > most:
            found.append([])
            total = 0
        found[-1].append(one)
        total += size(one)
    return found
