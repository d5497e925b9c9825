"""verl's entry points beside training: generation, evaluation, merging of checkpoints, preparing data."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolwright.failures import UserError
from toolwright.tasks.datasets import DATASETS
from toolwright.verl.flat import FlatTable
from toolwright.verl.flat.supervised import SFT, SFT_OF_THE_ENGINE
from toolwright.verl.translation import Translation

# Data sets of verl's examples under a name of ours.
PREPARED = {
    "gsm8k": "gsm8k",
    "gsm8k_multiturn_sft": "gsm8k",
    "gsm8k_multiturn_w_tool": "gsm8k",
    "gsm8k_multiturn_w_interaction": "gsm8k",
    "gsm8k_tool_agent_loop": "gsm8k",
    "math_dataset": "math500",
    "preprocess_search_r1_dataset": "search_qa",
    "search_r1": "search_qa",
}


def _generated(values: Mapping[str, Any], result: Translation) -> None:
    result.arguments.append("task=file")
    for key in ("data.path", "data.train_files"):
        if isinstance(values.get(key), list):
            result.set("task.held_out", list(values[key]), key)
    for block in ("rollout", "actor_rollout_ref.rollout"):
        if (most := result.whole.get(f"{block}.top_k")) is not None:
            result.read(f"{block}.top_k")
            result.set("eval.sampling.top_k", max(int(most), 0), f"{block}.top_k")
        if values.get(f"{block}.do_sample") is False:
            result.read(f"{block}.do_sample", f"{block}.temperature")
            result.set("eval.temperature", 0.0, f"{block}.do_sample")
    output = "data.output_path"
    if output in values:
        name = Path(str(values[output])).stem
        result.set("run.name", name, output)
        result.near(f"attempts are kept in the folder of run {name}, as Parquet", output)


GENERATION = FlatTable("verl_generation", _generated, own_defaults="of_generation")
SERVED = FlatTable("verl_generation", _generated, own_defaults="of_server")
# The module's short name, the command of ours, and the table of its keys.
TABLES: dict[str, tuple[str, FlatTable]] = {
    "trainer.sft_trainer": ("sft", SFT_OF_THE_ENGINE),
    "trainer.sft_trainer_ray": ("sft", SFT_OF_THE_ENGINE),
    "trainer.main_sft": ("sft", SFT_OF_THE_ENGINE),
    "trainer.fsdp_sft_trainer": ("sft", SFT),
    "trainer.main_generation": ("eval", GENERATION),
    "trainer.main_generation_server": ("eval", SERVED),
}


def is_other_command(module: str) -> bool:
    return _short(module) in TABLES or _kind(module) is not None


def table_of(module: str) -> tuple[str, FlatTable] | None:
    """Our command and the table of keys, of a module that has keys."""
    return TABLES.get(_short(module))


def arguments_for(module: str, words: list[str], *, fit: bool) -> Translation:
    """Translate a script that takes options instead of keys."""
    kind = _kind(module)
    if kind == "merge":
        return _merge(words, fit=fit)
    if kind == "eval":
        raise UserError(
            f"{module}: it scores answers that are in a file; `toolwright eval` samples and scores in one, "
            "and `toolwright replay RUN` scores what a run has kept once more"
        )
    return _prepare(module, words, fit=fit)


def _short(module: str) -> str:
    short = module.removesuffix(".py").replace("/", ".").lstrip(".")
    return short.removeprefix("verl.")


def _kind(module: str) -> str | None:
    short = _short(module)
    if short.startswith("model_merger") or short.endswith(("model_merger", "legacy_model_merger")):
        return "merge"
    if short.endswith(".main_eval"):
        return "eval"
    return "prepare" if "data_preprocess." in short or short.rpartition(".")[2] in PREPARED else None


def _merge(words: list[str], *, fit: bool) -> Translation:
    """A checkpoint of ours becomes a Hugging Face folder by `toolwright model convert`."""
    parser = _Options(prog="verl.model_merger")
    parser.add_argument("operation", nargs="?", default="merge")
    for name in ("backend", "local_dir", "target_dir", "hf_model_path", "hf_upload_path", "test_hf_dir"):
        parser.add_argument(f"--{name}")
    for name in ("tie-word-embedding", "is-value-model", "private", "use_cpu_initialization"):
        parser.add_argument(f"--{name}", action="store_true")
    args = parser.parse_args(words)
    result = Translation(fit=fit, command="model")
    if args.operation != "merge":
        result.refuse(f"{args.operation}: a folder is written, and not compared with another")
    if args.local_dir is None:
        raise UserError("--local_dir is missing: the checkpoint, such as runs/NAME/checkpoints/step_N")
    result.arguments += ["convert", args.local_dir]
    result.arguments += ["--out", args.target_dir or f"{args.local_dir.rstrip('/')}-hf"]
    for name in ("backend", "hf_model_path", "tie_word_embedding", "use_cpu_initialization", "private"):
        if getattr(args, name):
            result.note(f"--{name}: not used: a checkpoint of ours says what it holds")
    result.near("a checkpoint of verl's is read by verl alone: --local_dir is one of ours")
    for name in ("hf_upload_path", "test_hf_dir", "is_value_model"):
        if getattr(args, name):
            result.refuse(f"--{name}: has no equivalent: the folder is written here and nowhere else")
    return result


def _prepare(module: str, words: list[str], *, fit: bool) -> Translation:
    """`examples/data_preprocess/gsm8k.py --local_dir …` as `toolwright data prepare gsm8k --out …`."""
    name = _short(module).rpartition(".")[2]
    known = PREPARED.get(name) or (name if name in DATASETS.names() else None)
    if known is None:
        raise UserError(
            f"{module}: no data set of that name; `toolwright data prepare` has "
            f"{', '.join(DATASETS.names())}, and any data set of the hub by its columns (docs/data.md)"
        )
    parser = _Options(prog=module)
    for option in ("--local_dir", "--local_save_dir", "--local_dataset_path", "--hdfs_dir"):
        parser.add_argument(option)
    args, rest = parser.parse_known_args(words)
    result = Translation(fit=fit, command="data")
    out = args.local_save_dir or args.local_dir or f"~/data/{name}"
    result.arguments += ["prepare", known, "--out", str(Path(out).expanduser())]
    if args.local_dataset_path:
        result.arguments += ["--from", args.local_dataset_path]
    if known != name:
        result.near(f"{module}: the rows of `{known}`; the words around a question are ours")
    result.notes += [f"files are called {known}_train.parquet and {known}_test.parquet"]
    if args.hdfs_dir:
        result.refuse(f"--hdfs_dir={args.hdfs_dir}: has no equivalent: files are written here")
    result.problems += [f"{word}: not an option that is known here" for word in rest if re.match("--", word)]
    return result


class _Options(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise UserError(f"{self.prog}: {message}")
