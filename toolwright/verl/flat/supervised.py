"""`verl.trainer.sft_trainer` and `fsdp_sft_trainer`, as `toolwright sft`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from toolwright.tasks import rows
from toolwright.tasks.mapped import data_files
from toolwright.verl.flat import FlatTable
from toolwright.verl.translation import Translation

DECAYS = {"cosine": "cosine", "constant": "constant", "linear": "linear", "wsd": "constant"}
COLUMNS = "data.prompt_key", "data.response_key", "data.prompt_dict_keys", "data.response_dict_keys"
READ = {"prompt", "question", "response", "answer", "completion", "extra_info"}
HELD_OUT = "held-out figures are those of the task that `sft` has by default; name yours as task=…"
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
    source = "trainer.total_training_steps"
    steps = whole.get(source)
    if not steps:
        source, steps = f"trainer.total_epochs={whole['trainer.total_epochs']}", _steps(files[0], whole)
    if steps is None:
        result.note(f"{source}: becomes steps once {files[0]} is here")
    else:
        result.set("steps", int(steps), source)
    result.note(HELD_OUT)
    _columns(values, result)
    if isinstance(values.get("optim.betas"), str):  # a list in quotes, which verl reads as one
        result.set("optimizer.betas", yaml.safe_load(values["optim.betas"]), "optim.betas")
    _schedule(values, result, steps)
    folder = "trainer.default_local_dir"
    if folder in values:
        result.read(folder, "trainer.experiment_name")
        result.set_folder(str(values[folder]), folder)


def _steps(file: str, whole: Mapping[str, Any]) -> int | None:
    if not Path(file).expanduser().exists():
        return None
    count = sum(rows.count(one) for one in data_files(file, "train"))
    most = int(whole.get("data.train_max_samples") or -1)
    count = min(count, most) if most > 0 else count
    batch = min(int(whole["data.train_batch_size"]), count)
    return max(1, count // batch) * int(whole["trainer.total_epochs"])


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
