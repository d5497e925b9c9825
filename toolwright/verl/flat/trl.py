"""TRL's scripts: `trl grpo`, `rloo`, `sft`, `dpo` and `kto`, and scripts that accelerate launches."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any

import yaml

from toolwright.failures import UserError, nearest
from toolwright.tasks import rows
from toolwright.tasks.mapped import HUB_NAME, data_files
from toolwright.verl.config import Machine, missing_for
from toolwright.verl.flat import FlatTable
from toolwright.verl.flat.supervised import HELD_OUT
from toolwright.verl.resuming import NOT_OURS, is_resumable, keep_all, run_of
from toolwright.verl.translation import Translation

Values = Mapping[str, Any]
# loss_type: our loss, and how tokens are added up.
LOSSES = {
    "grpo": ("ppo", "seq-mean-token-mean"),
    "bnpo": ("ppo", "token-mean"),
    "dapo": ("ppo", "token-mean"),
    "dr_grpo": ("ppo", "seq-mean-token-sum-norm"),
    "cispo": ("cispo", "token-mean"),
    "sapo": ("sapo", "seq-mean-token-mean"),
    "vespo": ("vespo", "token-mean"),
    "luspo": ("gspo", "seq-mean-token-sum"),
}
REWARDS = {"accuracy_reward": "math", "reasoning_accuracy_reward": "math"}
DECAYS = {"linear": "linear", "cosine": "cosine", "constant": "constant", "constant_with_warmup": "constant"}
SIZES = ("per_device_train_batch_size", "gradient_accumulation_steps", "num_processes", "num_machines")
TRUE = ("true", "yes", "1")


def read_options(words: list[str]) -> dict[str, Any]:
    """`--key value`, `--key=value`, `--flag` and lists; `--config FILE` gives what the line does not."""
    found: dict[str, Any] = {}
    place = 0
    while place < len(words):
        word = words[place]
        place += 1
        if not word.startswith("--"):
            raise UserError(f"{word}: expected an option such as --learning_rate 1e-6")
        name, equals, text = word[2:].partition("=")
        taken = [text] if equals else []
        while not equals and place < len(words) and not words[place].startswith("--"):
            taken.append(words[place])
            place += 1
        read = [_value(one) for one in taken]
        found[name.replace("-", "_")] = True if not read else read[0] if len(read) == 1 else read
    if "config" in found:
        file = Path(str(found.pop("config"))).expanduser()
        if not file.is_file():
            raise UserError(f"--config {file}: no such file")
        found = {**(yaml.safe_load(file.read_text(encoding="utf-8")) or {}), **found}
    return found


def _value(text: str) -> Any:
    """A value as YAML reads it; 1e-6 is a number too."""
    value = yaml.safe_load(text) if text else text
    with suppress(ValueError):
        return float(value) if isinstance(value, str) else value
    return value


def _data(values: Values, result: Translation, ours: str) -> None:
    """A file, a folder or a name of the hub; a plain script names files as well."""
    key = next((one for one in ("dataset_name", "data_files", "train_file") if values.get(one)), None)
    if key is None:
        result.refuse("--dataset_name is missing: a file, a folder or owner/name of the hub")
        return
    result.read(key)
    result.set(ours, values[key], key)


def _rows(values: Values) -> int | None:
    name = str(values.get("dataset_name") or "")
    if not name or not Path(name).expanduser().exists() or HUB_NAME.fullmatch(name):
        return None
    return sum(rows.count(file) for file in data_files(name, "train"))


def _schedule(result: Translation, block: str, steps: int | None) -> None:
    whole = result.whole
    name, betas = whole["lr_scheduler_type"], ("adam_beta1", "adam_beta2")
    if name not in DECAYS:
        result.near(f"cosine is the nearest of {', '.join(DECAYS)}", "lr_scheduler_type")
    result.set(f"{block}.decay", DECAYS.get(name, "cosine"), "lr_scheduler_type")
    key = "warmup_ratio" if "warmup_ratio" in whole else "warmup_steps"
    amount = float(whole[key])
    if 0 < amount < 1 and steps is None:
        result.note(f"becomes {block}.warmup_steps once the data is here", key)
    else:
        count = amount * steps if 0 < amount < 1 and steps is not None else amount
        result.set(f"{block}.warmup_steps", int(count), key)
    result.set(f"{block}.betas", [float(whole[beta]) for beta in betas], *betas)
    if str(whole.get("optim")).startswith("adamw"):
        result.note("the optimiser is AdamW", "optim")


def _precision(values: Values, result: Translation) -> None:
    """Number format and adapter. `fp16` is nearly bfloat16; on a CPU it is float32."""
    wanted = {key: values[key] for key in ("bf16", "fp16", "dtype", "torch_dtype") if key in values}
    names = {"bf16": "bfloat16", "fp16": "bfloat16", "bfloat16": "bfloat16", "float16": "bfloat16"}
    for key, value in wanted.items():
        chosen = names.get(key if str(value).lower() in TRUE else str(value), "float32")
        if key in ("bf16", "fp16") and str(value).lower() not in TRUE:
            continue
        if chosen == "bfloat16" and result.fit and Machine.here().devices == 0:
            result.near("float32 on a CPU", key)
            chosen = "float32"
        elif key == "fp16" or value == "float16":
            result.near("bfloat16, whose range needs no scaling of the loss", key)
        result.set("model.dtype", chosen, key)
    if _is_true(result, "use_peft"):
        _adapter(values, result)
    for key in ("lora_r", "lora_alpha", "lora_target_modules"):
        if key in values and "use_peft" not in values:
            result.note("without effect: --use_peft is not set", key)


def _run(values: Values, result: Translation, steps: int | None, *, size: int) -> None:
    """The run's folder, whether it continues there, and its checkpoints. A step learns from `size` rows."""
    if "output_dir" in values:
        result.set_folder(str(values["output_dir"]), "output_dir")
    key = "resume_from_checkpoint"
    result.read(key)
    if (said := values.get(key)) and str(said).lower() not in ("no", "false", "none"):
        named = values.get("output_dir", "") if str(said).lower() in TRUE else said
        place = run_of(Path(str(named)).expanduser())
        if not is_resumable(place):
            result.refuse(NOT_OURS.format("TRL"), key)
        result.set_folder(str(place), key)
        result.set("run.resume", True, key)
    strategy = str(values.get("save_strategy", "steps")).lower()
    result.read("save_strategy")
    if strategy in ("no", "false"):
        result.set("checkpoint.every", 0, "save_strategy")
        result.set("checkpoint.minutes", 0, "save_strategy")
    elif strategy == "epoch" and (found := _rows(values)):
        result.set("checkpoint.every", ceil(found / size), "save_strategy")
    elif strategy == "epoch":
        result.note("becomes checkpoint.every once the data is here", "save_strategy")
    elif strategy != "steps":
        result.near("checkpoints are written by the number of steps", "save_strategy")
    known = {one.ours: one.value for one in result.settings}
    every = known.get("checkpoint.every", values.get("save_steps"))
    if every and values.get("save_total_limit") is None:  # all are kept
        result.set("checkpoint.keep", keep_all(int(every), steps), "save_total_limit")


def _adapter(values: Values, result: Translation) -> None:
    """TRL's adapter, where the line does not say otherwise: peft adapts two matrices of a layer."""
    for key, ours, value in (
        ("lora_r", "model.lora.rank", 16),
        ("lora_alpha", "model.lora.alpha", 32),
        ("lora_target_modules", "model.lora.targets", ["q_proj", "v_proj"]),
    ):
        if values.get(key) is None:
            result.set(ours, value, f"--use_peft: --{key} {value} (TRL's default)")
    if float(values.get("lora_dropout", 0.05)):
        result.near("adapters have no dropout (--lora_dropout)", "use_peft")


def _batch(whole: Values) -> int:
    """Sequences an optimiser update, over all processes that accelerate would start."""
    each = int(whole["per_device_train_batch_size"]) * int(whole["gradient_accumulation_steps"])
    return each * int(whole.get("num_processes", 1) or 1)


def _set_steps(result: Translation, key: str, size: int, updates: int = 1) -> int | None:
    """Set how long the run is. TRL counts optimiser updates; a step has so many of them and `size` rows."""
    most, found = int(result.whole.get("max_steps") or -1), _rows(result.values)
    if most <= 0 and found is None:
        result.note(f"--num_train_epochs: becomes {key} once the data is here")
        return None
    rows_in_all = int((found or 0) * float(result.whole["num_train_epochs"]))
    steps = ceil(most / updates) if most > 0 else max(1, rows_in_all // size)
    result.set(key, steps, "--max_steps" if most > 0 else "--num_train_epochs")
    return steps


def _set_epochs(result: Translation, batch: int) -> int | None:
    """Set how long the run is, and return its steps if they are known. An epoch is not rounded up to whole
    batches."""
    if int(result.whole.get("max_steps") or -1) > 0:
        return _set_steps(result, "steps", batch)
    epochs, found = result.whole["num_train_epochs"], _rows(result.values)
    result.set("steps", "auto", "num_train_epochs")  # of a run that is resumed
    result.set("epochs", epochs, "num_train_epochs")
    return None if found is None else ceil(float(epochs) * found / batch)


def _is_true(result: Translation, key: str) -> bool:
    return str(result.whole.get(key, "")).lower() in TRUE


def _grpo(values: Values, result: Translation) -> None:
    whole = result.whole
    result.arguments += ["task=file", "algorithm=grpo"]
    _data(values, result, "task.train")
    batch, samples = _batch(whole), int(whole["num_generations"])
    once = int(whole["gradient_accumulation_steps"])
    rounds = int(whole.get("steps_per_generation") or once)
    drawn = int(whole.get("generation_batch_size") or batch * rounds // once)
    sources = ", ".join(f"--{key}" for key in (*SIZES[:2], "num_generations"))
    if drawn % samples:
        result.refuse(f"{sources}: {drawn} completions are not a multiple of the {samples} of a prompt")
    prompts, updates = max(1, drawn // samples), max(1, drawn // batch)
    result.set("rollout.prompts", prompts, sources)
    result.set("update.minibatches", updates, sources)
    steps = _set_steps(result, "train.steps", prompts, updates * int(whole["num_iterations"]))
    _objective(values, whole, result)
    _rewards(values, result)
    _schedule(result, "update.policy", steps)
    _precision(values, result)
    _run(values, result, steps, size=prompts)
    _sampling(values, result)


def _objective(values: Values, whole: Values, result: Translation) -> None:
    kind = str(whole["loss_type"])
    if kind not in LOSSES:
        raise UserError(f"--loss_type {kind}: {nearest(kind, LOSSES)}")
    loss, aggregate = LOSSES[kind]
    sources = ["loss_type"]
    if str(whole["importance_sampling_level"]).startswith("sequence") and loss == "ppo":
        loss, sources = "gspo", [*sources, "importance_sampling_level"]
    result.set("algorithm.loss", loss, *sources)
    result.set("algorithm.aggregate", aggregate, *sources)
    if aggregate == "seq-mean-token-sum-norm":
        result.set("algorithm.norm_tokens", int(whole["max_completion_length"]), *sources)
    beta = float(whole["beta"])
    result.set("algorithm.kl.where", "loss" if beta else "none", "beta")
    if beta:
        result.set("algorithm.kl.coef", beta, "beta")
        unbiased = "use_bias_correction_kl"
        result.set("algorithm.kl.estimator", "unbiased" if _is_true(result, unbiased) else "k3", unbiased)
    scale = str(whole["scale_rewards"]).lower()
    if scale == "batch":
        result.near("rewards are divided by the deviation of their group", "scale_rewards")
    by_std = scale not in ("none", "false", "no")
    result.set("algorithm.normalize_by_std", by_std, "scale_rewards")
    high = whole.get("epsilon_high") or whole["epsilon"]
    result.set("algorithm.clip_high", float(high), f"--epsilon_high {high}")
    if "mask_truncated_completions" in values:
        masked = _is_true(result, "mask_truncated_completions")
        result.set("reward.truncated", "mask" if masked else "keep", "mask_truncated_completions")
    if whole.get("multi_objective_aggregation") == "normalize_then_sum":
        result.set("algorithm.adv_estimator", "gdpo", "multi_objective_aggregation")
    if _is_true(result, "use_adaptive_entropy"):
        result.near("a bonus that holds a target (algorithm=adaptive_entropy)", "use_adaptive_entropy")
        result.set("algorithm.entropy_target", float(values.get("entropy_target", 0.2)), "--entropy_target")


def _rewards(values: Values, result: Translation) -> None:
    """Functions by name: `accuracy_reward` is our `math`; yours is `package.module.name`."""
    named = values.get("reward_funcs")
    if named is None:
        return
    named = named if isinstance(named, list) else [named]
    weights = values.get("reward_weights") or [1.0] * len(named)
    weights = weights if isinstance(weights, list) else [weights]
    found: dict[str, str] = {}
    for name in named:
        if name in REWARDS:
            result.near(f"--reward_funcs {name}: the scorer `{REWARDS[name]}`")
            found[str(name)] = REWARDS[name]
        elif "." in str(name):
            module, _, function = str(name).rpartition(".")
            found[function] = f"{module}:{function}"
        else:
            known = " or ".join(REWARDS)
            result.refuse(f"--reward_funcs {name}: name a function as package.module.name, or {known}")
    if len(found) == 1:
        result.set("reward.function", next(iter(found.values())), f"--reward_funcs {named[0]}")
        return
    for (label, function), weight in zip(found.items(), weights, strict=False):
        result.set(f"reward.parts.{label}", float(weight), "--reward_funcs, --reward_weights")
        result.set(f"reward.params.{label}.function", function, f"--reward_funcs {label}")


def _sampling(values: Values, result: Translation) -> None:
    if _is_true(result, "use_vllm"):
        if result.fit and missing_for("vllm") is not None:
            result.near("the package vllm is not installed: the native engine", "use_vllm")
        else:
            result.set("engine.name", "vllm", "use_vllm")
            _engine_gap(values, result)
    if "shuffle_dataset" in values:
        shuffled = _is_true(result, "shuffle_dataset")
        result.set("task.order", "shuffled" if shuffled else "as_listed", "shuffle_dataset")
    if "max_tool_calling_iterations" in values:
        turns = int(values["max_tool_calling_iterations"]) + 1
        result.set("rollout.max_turns", turns, "--max_tool_calling_iterations, + 1 for the turn that answers")
    _evaluation(result)


def _engine_gap(values: Values, result: Translation) -> None:
    """TRL weighs by the gap between vLLM and the policy, and leaves sequences beyond a bound out."""
    on, kind = "vllm_importance_sampling_correction", "vllm_importance_sampling_mode"
    bound, least = "vllm_importance_sampling_clip_max", "vllm_importance_sampling_clip_min"
    result.read(on, kind, bound, least)
    if not _is_true(result, on):
        result.set("algorithm.correction.mode", "none", on)
        return
    level, _, mode = str(result.whole[kind]).partition("_")
    result.set("algorithm.correction.mode", mode, kind)
    result.set("algorithm.correction.level", level, kind)
    result.set("algorithm.correction.high", float(values.get(bound) or 3.0), f"--{bound}")
    if mode == "mask":
        result.set("algorithm.correction.low", float(values.get(least) or 0.0), f"--{least}")


def _evaluation(result: Translation) -> None:
    """TRL evaluates nothing unless it is told to, so that every task is learned from."""
    if result.whole["eval_strategy"] in (False, "no"):
        result.set("task.held_out", [], "eval_strategy")
    else:
        result.note("every `--eval_steps`", "eval_strategy")


def _every_token(result: Translation) -> None:
    """TRL learns from all of a conversation in `messages`, and from the completion beside a prompt."""
    if _is_true(result, "assistant_only_loss"):
        result.note("--assistant_only_loss: nothing to set: the assistant's turns are what is learned")
    elif not _is_true(result, "completion_only_loss"):
        result.near(
            "--assistant_only_loss False: of `messages` the assistant's turns are learned, where TRL learns "
            "every token; of a prompt and its completion the completion, as in TRL"
        )


def _supervised(values: Values, result: Translation) -> None:
    _every_token(result)
    _data(values, result, "demonstrations")
    result.note(HELD_OUT)
    batch = _batch(result.whole)
    result.set("batch", batch, ", ".join(f"--{key}" for key in SIZES[:2]))
    steps = _set_epochs(result, batch)
    _schedule(result, "optimizer", steps)
    _precision(values, result)
    _run(values, result, steps, size=batch)


def _preferences(values: Values, result: Translation, loss: str, arguments: tuple[str, ...]) -> None:
    result.arguments += ["task=preferences", f"algorithm={loss}"]
    whole = result.whole
    _data(values, result, "task.train")
    batch = _batch(whole)
    result.set("rollout.prompts", batch, ", ".join(f"--{key}" for key in SIZES[:2]))
    result.read(*arguments)
    for name in ("beta", *arguments):
        if name in whole:
            result.set(f"algorithm.params.{loss}.{name}", float(whole[name]), name)
    kind = values.get("loss_type")
    if kind not in (None, "sigmoid", "kto"):
        result.refuse(f"has no equivalent: {loss} here is the paper's own", "loss_type")
    steps = _set_steps(result, "train.steps", batch)
    _evaluation(result)
    _schedule(result, "update.policy", steps)
    _precision(values, result)
    _run(values, result, steps, size=batch)


_dpo = partial(_preferences, loss="dpo", arguments=("label_smoothing",))
_kto = partial(_preferences, loss="kto", arguments=("desirable_weight", "undesirable_weight"))
# The script, our command, and the table of its options.
TABLES: dict[str, tuple[str, FlatTable]] = {
    script: (command, FlatTable(name, special, library="TRL", form="--{} {}"))
    for script, command, name, special in (
        ("grpo", "train", "trl_grpo", _grpo),
        ("sft", "sft", "trl_sft", _supervised),
        ("dpo", "train", "trl_dpo", _dpo),
        ("kto", "train", "trl_dpo", _kto),
    )
}


def usage() -> str:
    """The usage of the command, with every option of each script."""
    lines = ["usage: toolwright trl SCRIPT [--option value …] [--config FILE] [--show] [--fit]", ""]
    lines += ["  --show     print what each option becomes and stop"]
    lines += ["  --fit      accept what is done nearly so; prints a line each"]
    for script, (_, table) in TABLES.items():
        options = sorted({*table.keys(), *table.rows()["together"]})
        listed = " ".join(f"--{option}" for option in options)
        columns = shutil.get_terminal_size().columns - 2
        lines += ["", f"{script}:", textwrap.indent(textwrap.fill(listed, columns), "  ")]
    return "\n".join(lines)
