"""Convert a run's checkpoint to a Hugging Face folder, whether one process or several ranks wrote it."""

from __future__ import annotations

from pathlib import Path

from toolwright.failures import UserError
from toolwright.learner import checkpoints
from toolwright.models import adapter_folder, huggingface
from toolwright.models.tokenizer import Tokenizer
from toolwright.trainer import building


def from_checkpoint(checkpoint: Path, folder: Path, *, like: Path | None = None) -> None:
    """Convert a checkpoint. `like` is a model folder with the shape and the tokenizer; the default is the
    run's own `model/`. The checkpoint of an adapter becomes an adapter folder."""
    if not (checkpoint / checkpoints.STATE).is_file():
        raise UserError(f"{checkpoint} is not a checkpoint: it has no {checkpoints.STATE}")
    like = like or checkpoint.resolve().parents[1] / "model"
    if not like.is_dir():
        raise UserError(f"{like} is not a folder; name one of the same model with --like")
    _, tensors = checkpoints.load(checkpoint)
    adapts = adapter_folder.is_adapter(like)
    base = adapter_folder.base_of(like) if adapts else like
    try:
        learned = tensors["policy"]["model"]
        # A run by a model's own forward has the names of that; a folder does not tell how it was run.
        fast = None if any(name.startswith("layers.") for name in learned) else False
        decoder = huggingface.load(base, fast=fast)
        if adapts:
            adapter_folder.load(decoder, like, base=base)
        decoder.load_learned(learned)
    except (KeyError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:300]
        raise UserError(f"the checkpoint {checkpoint} is of another model than {like}: {reason}") from None
    building.export(decoder, Tokenizer.load(like), folder)
