"""`verl.trainer.sft_trainer` and `fsdp_sft_trainer`, as `toolwright sft`."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from pathlib import Path
from typing import Any

import yaml

from toolwright.tasks import rows
from toolwright.tasks.mapped import data_files
from toolwright.verl.flat import FlatTable
from toolwright.verl.resuming import FROM, MODE, begin_or_resume, keep_all
from toolwright.verl.translation import Translation

DECAYS = {"cosine": "cosine", "constant": "constant", "linear": "linear", "wsd": "constant"}
COLUMNS = "data.prompt_key", "data.response_key", "data.prompt_dict_keys", "data.response_dict_keys"
READ = {"prompt", "question", "response", "answer", "completion", "extra_info"}
HELD_OUT = "no task is attempted before and after, unless you name one as task=…"
FOLDER, NAME = "trainer.default_local_dir", "trainer.experiment_name"
LORA = ("model.lora_rank", "model.lora_alpha", "model.target_modules")


def _special(values: Mapping[str, Any], result: Translation) -> None:
    """Keys that are read together: files and lengths make steps, and a schedule is several keys."""
    whole = result.whole
    files = whole["data.train_files"]
    files = [files] if isinstance(files, str) else list(files)
    result.set("demonstrations", files[0], "data.train_files")
    if len(files) > 1:
        result.refuse("one file; `toolwright data mix` makes one of several", "data.train_files")
    if int(whole.get("model.lora_rank") or 0) == 0:  # all matrices learn
        result.read(*LORA)
    steps = _length(files[0], result)
    result.note(HELD_OUT)
    _columns(values, result)
    if isinstance(values.get("optim.betas"), str):  # a list in quotes, which verl reads as one
        result.set("optimizer.betas", yaml.safe_load(values["optim.betas"]), "optim.betas")
    _schedule(values, result, steps)
    _saving(values, result, steps, epoch=_epoch(files[0], whole))
    _folder(values, result)


def _length(file: str, result: Translation) -> int | None:
    """Set how long the run is, and return its steps if they are known."""
    whole, key, most = result.whole, "trainer.total_training_steps", "data.train_max_samples"
    if steps := whole.get(key):
        result.set("steps", int(steps), key)
        return int(steps)
    key, rows_used, epochs = "trainer.total_epochs", _rows(file), int(whole["trainer.total_epochs"])
    limit = int(whole.get(most) or -1)
    if limit > 0 and (rows_used is None or limit < rows_used):
        result.near("every row is learned from; `toolwright data mix --size` makes a smaller file", most)
    result.set("steps", "auto", key)  # of a run that is resumed
    result.set("epochs", epochs, key)
    if rows_used is None:
        return None
    steps = ceil(epochs * rows_used / int(whole["data.train_batch_size"]))
    if epochs * _epoch(file, whole) != steps:
        result.note(f"{steps} steps: the rows at the end of an epoch are learned too, where verl drops them")
    return steps


def _rows(file: str) -> int | None:
    here = Path(file).expanduser().exists()
    return sum(rows.count(one) for one in data_files(file, "train")) if here else None


def _epoch(file: str, whole: Mapping[str, Any]) -> int:
    """verl's steps of an epoch; 0 if the file is not here."""
    return (_rows(file) or 0) // int(whole["data.train_batch_size"])


def _saving(values: Mapping[str, Any], result: Translation, steps: int | None, *, epoch: int) -> None:
    """`save_freq`: in steps, -1 for the end alone, or after_each_epoch."""
    key, keep = "trainer.save_freq", "trainer.max_ckpt_to_keep"
    result.read(keep)
    if values.get(keep):
        result.set("checkpoint.keep", int(values[keep]), keep)
    if key not in values:
        return
    often = values[key]
    if often == "after_each_epoch" and not epoch:
        result.note("becomes checkpoint.every once the data is here", key)
        return
    every = epoch if often == "after_each_epoch" else max(int(often or 0), 0)
    result.set("checkpoint.every", every, key)
    result.set("checkpoint.minutes", 0, key)
    if every and not values.get(keep):
        result.set("checkpoint.keep", keep_all(every, steps), keep)


def _folder(values: Mapping[str, Any], result: Translation) -> None:
    """The folder of the run, and whether it continues there. Without either key, its name alone is set."""
    if not {FOLDER, MODE, FROM} & values.keys():
        return
    result.read(FOLDER, NAME, MODE, FROM)
    named = values.get(FOLDER) or f"runs/{values.get(NAME, 'sft')}"
    mode, place = str(result.whole[MODE]), values.get(FROM)
    begin_or_resume(result, Path(str(named)).expanduser(), mode=mode, resume_from=place, source=FOLDER)


def _columns(values: Mapping[str, Any], result: Translation) -> None:
    for key in COLUMNS:
        if key not in values:
            continue
        named = values[key] if isinstance(values[key], list) else [values[key]]
        unknown = [str(name) for name in named if name is not None and name not in READ]
        if unknown:
            result.refuse(
                "columns are `messages`, or `prompt` or `question` with `response`, `answer` or "
                "`completion`, also within `extra_info`: rename it in the file",
                key,
            )
        else:
            result.note("nothing to set: the column is found by its name", key)


def _first(values: Mapping[str, Any], *keys: str) -> str | None:
    return next((key for key in keys if key in values), None)


def _schedule(values: Mapping[str, Any], result: Translation, steps: int | None) -> None:
    names = ("optim.lr_scheduler", "optim.lr_scheduler_type", "optim.lr_decay_style", "optim.warmup_style")
    name = _first(values, *names) or names[0]
    result.read(name)
    chosen = result.whole[name]
    if chosen in DECAYS:
        result.set("optimizer.decay", DECAYS[chosen], name)
        if chosen == "wsd":
            text = "the rate stays as it is, where verl's falls over the last tenth of a run"
            result.near(f"{name}=wsd: {text}")
    else:
        result.refuse(f"{name}={chosen}: expected {', '.join(DECAYS)}")
    lowest = _first(values, "optim.min_lr", "optim.lr_min", "optim.min_lr_ratio")
    if lowest is not None:
        result.read(lowest)
        lr = 1.0 if lowest == "optim.min_lr_ratio" else float(result.whole["optim.lr"])
        ratio = float(values[lowest] or 0) / lr
        result.set("optimizer.min_lr_ratio", min(ratio, 1.0), f"{lowest}={values[lowest]}")
    part = _first(values, "optim.lr_warmup_steps_ratio", "optim.warmup_steps_ratio")
    result.read(*([part] if part else []))
    if int(values.get("optim.lr_warmup_steps") or -1) > 0:
        return
    result.read("optim.lr_warmup_steps")
    part = part or "optim.lr_warmup_steps_ratio"
    ratio = float(result.whole[part])
    if steps is None and ratio:
        result.note(f"{part}={ratio}: becomes optimizer.warmup_steps once the data is here")
    else:
        result.set("optimizer.warmup_steps", int(ratio * (steps or 0)), part)


SFT = FlatTable("verl_sft", _special)
SFT_OF_THE_ENGINE = FlatTable("verl_sft", _special, own_defaults="of_the_engine")
