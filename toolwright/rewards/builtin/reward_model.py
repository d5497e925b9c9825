"""A reward model: a classifier that reads a whole attempt and gives it a number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from toolwright.failures import TaskFailure, UserError
from toolwright.rewards import SCORERS
from toolwright.rewards.judgement import CutRule, cut, retold

if TYPE_CHECKING:
    import torch

    from toolwright.models.tokenizer import Tokenizer

TINY_PARAMETERS = 4_000_000
PROBE = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]


@SCORERS.register("reward_model", needs=["process"])
class RewardModel:
    """The number of the model in `path`, a Hugging Face folder with a head of its own; `cut` is 1 where the
    conversation was longer than the model reads."""

    def __init__(
        self,
        *,
        path: str,
        tokenizer: str | None = None,
        chat_template: str | None = None,
        max_tokens: Annotated[int, Field(gt=0)] | None = None,
        cut: CutRule = "left",
        label: Annotated[int, Field(ge=0)] | None = None,
        sigmoid: bool = False,
        dtype: Literal["auto", "float32", "bfloat16"] = "auto",
        device: str = "auto",
    ) -> None:
        """`label`: which of several numbers counts. `sigmoid`: between 0 and 1, as a probability."""
        from toolwright.models import score_model

        folder = folder_of("path", path, model="the reward model")
        words = folder_of("tokenizer", tokenizer, model="the reward model") if tokenizer else folder
        self._tokenizer = tokenizer_of(words, chat_template)
        place = device_of(device)
        self._model = score_model.load(folder, context=max_tokens, dtype=dtype_of(dtype, place), device=place)
        use_threads(self._model)
        self._rule: CutRule = cut
        self._most = min(max_tokens or self._model.context, self._model.context)
        self._label, self._sigmoid = self._chosen(label, folder), sigmoid
        self([PROBE])  # a template that cannot write, or numbers that do not fit, are noticed now

    def __call__(self, conversations: Sequence[Sequence[dict[str, Any]]]) -> list[Any]:
        """A score for each; in place of it the failure of one that cannot be written or is too long."""
        written = [self._written(messages) for messages in conversations]
        whole = [one for one in written if not isinstance(one, Exception)]
        scores = iter(self._model.scores([tokens for tokens, _ in whole])[:, self._label] if whole else ())
        return [
            one if isinstance(one, Exception) else self._verdict(float(next(scores)), one[1])
            for one in written
        ]

    def _written(self, messages: Sequence[dict[str, Any]]) -> tuple[list[int], bool] | Exception:
        try:
            tokens = self._tokenizer.conversation(retold(messages, self._tokenizer.chat))
            kept = cut(tokens, self._most, self._rule)
        except (TaskFailure, UserError) as error:
            return TaskFailure(f"the reward model cannot read this attempt: {error}")
        return kept, len(kept) < len(tokens)

    def _verdict(self, score: float, was_cut: bool) -> dict[str, float]:
        if self._sigmoid:
            score = 1 / (1 + math.exp(-score)) if score > -700 else 0.0
        return {"score": score, "cut": float(was_cut)}

    def _chosen(self, label: int | None, folder: Path) -> int:
        labels = self._model.labels
        if (label is None and labels > 1) or (label or 0) >= labels:
            raise UserError(
                f"{folder} gives {labels} numbers: set the scorer's label to the one that counts, "
                f"0 to {labels - 1}"
            )
        return label or 0


def folder_of(key: str, path: str, *, model: str) -> Path:
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise UserError(f"{key}={path} of {model} is not a folder; `toolwright model get` fetches one")
    return folder


def tokenizer_of(folder: Path, chat_template: str | None) -> Tokenizer:
    from toolwright.models.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(folder)
    if chat_template is not None:
        file = Path(chat_template).expanduser()
        if not file.is_file():
            raise UserError(f"chat_template={chat_template} is not a file with a Jinja template")
        tokenizer.config["chat_template"] = file.read_text(encoding="utf-8")
    return tokenizer


def device_of(name: str) -> torch.device:
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.device(name)
    except RuntimeError:
        raise UserError(f"device={name!r} is not a device; write auto, cpu, cuda or cuda:N") from None


def dtype_of(name: str, device: torch.device) -> torch.dtype:
    import torch

    low = name == "bfloat16" or (name == "auto" and device.type == "cuda")
    return torch.bfloat16 if low else torch.float32


def use_threads(model: Any) -> None:
    """A tiny model's products are over before a second thread has woken up."""
    import torch

    inner = getattr(model, "model", model)
    if sum(p.numel() for p in inner.parameters()) < TINY_PARAMETERS:
        torch.set_num_threads(1)
