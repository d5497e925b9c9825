"""Say what fits on a GPU or several: settings, memory by part, seconds a step.

Examples:
  toolwright plan model=7b                               on one H200: all weights, and an adapter
  toolwright plan model=7b gpus=8
  toolwright plan model=models/qwen2.5-0.5b gpu=rtx4090
  toolwright plan model=32b memory=80 context=8192       a GPU of 80 GB, otherwise as gpu=h200
  toolwright plan model=1.5b context=32768 answer=16384 slots=16

Sizes are Qwen2.5's, 0.5b to 72b, and 30b-a3b; or a model's folder. `train` decides by the same estimates.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from toolwright.failures import UserError, nearest
from toolwright.trainer.gpus import GPUS

if TYPE_CHECKING:
    from toolwright.trainer.forecast import Forecast

GIB = 1 << 30
# Each key with its default and what it means.
KEYS: dict[str, tuple[str | int | float, str]] = {
    "model": ("", "a size (0.5b 1.5b 3b 7b 14b 32b 72b 30b-a3b) or a folder"),
    "gpus": (1, "how many GPUs; with several, some learn and the others sample"),
    "gpu": ("h200", f"the kind of GPU: {', '.join(GPUS)}"),
    "memory": (0.0, "gigabytes of each; by default what such a GPU has"),
    "rank": (16, "the rank of the adapter"),
    "context": (4_096, "tokens of the longest sequence"),
    "prompts": (64, "tasks a step"),
    "samples": (16, "attempts at each"),
    "prompt": (512, "tokens of a prompt, on average"),
    "answer": (1_024, "tokens of all turns of an attempt, on average"),
    "slots": (256, "sequences generated side by side on a GPU"),
}


def main(argv: list[str]) -> int:
    if not argv or any(word in ("-h", "--help") for word in argv):
        print(_help())
        return 0
    given = _read(argv)
    if given["gpu"] not in GPUS:
        raise UserError(f"gpu={given['gpu']} is not known; {nearest(str(given['gpu']), GPUS)}")
    gpu = GPUS[str(given["gpu"])]
    if given["memory"]:
        gpu = replace(gpu, memory=float(given["memory"]) * 0.993)
    from toolwright.trainer.forecast import Workload, forecasts, model_of

    numbers = {name: int(given[name]) for name in Workload.__dataclass_fields__}
    if numbers["prompt"] + numbers["answer"] > numbers["context"]:
        raise UserError(
            f"prompt={numbers['prompt']} and answer={numbers['answer']} exceed context={numbers['context']} "
            "tokens; raise context, or lower one of them"
        )
    work, gpus = Workload(**numbers), int(given["gpus"])
    model = model_of(str(given["model"]), context=work.context)
    found = forecasts(model, gpu, gpus=gpus, rank=int(given["rank"]), work=work)
    print(
        f"{given['model']}: {model.parameters / 1e9:.2f} billion parameters on {gpus} × {given['gpu']} of "
        f"{gpu.memory:.0f} GiB; a step of {work.prompts} × {work.samples} attempts, {work.prompt:,} + "
        f"{work.answer:,} tokens each, context {work.context:,}"
    )
    for one in found:
        print()
        print("\n".join(_lines(one, gpus, work.attempts * work.answer)))
    print("\nSeconds are estimates from the datasheet and measured efficiencies, good to about a third.")
    return 0


def _lines(one: Forecast, gpus: int, sampled: int) -> list[str]:
    economy, there = one.economy, f"{one.there / GIB:.0f}"
    if not one.fits:
        sampler = f"; of a GPU that samples: {_gib(one.sampler)}" if one.sampler else ""
        return [f"{one.way}: does not fit; GiB needed of {there}: {_gib(one.parts)}{sampler}"]
    keys = [f"model.dtype={economy.dtype}", f"update.optimizer_state={economy.optimizer_state}"]
    keys.append(f"model.gradient_checkpointing={str(economy.recompute).lower()}")
    if one.way.startswith("LoRA"):
        keys.append(f"model.lora.rank={one.way.split()[-1]}")
    where = "fits; auto chooses" if one.auto else "faster, and fits as well"
    if gpus > 1:
        where = f"fits; {one.ranks} GPU{'s' * (one.ranks > 1)} learn, {gpus - one.ranks} sample"
        keys += ["runtime=ray", f"runtime.placement.policy.ranks={one.ranks}"]
    free = f"{(one.there - one.peak) / GIB:.1f} of {there} free"
    return [
        f"{one.way}: {where}",
        f"  settings  {' '.join(keys)}",
        f"  GiB       {_gib(one.parts)}; {free}",
        *([f"  sampling  {_gib(one.sampler)}"] if one.sampler else []),
        f"  passes    {one.micro_tokens:,} tokens a micro-batch; {one.slots} sequences side by side",
        f"  a step    {one.step_s:.0f} s: sampling {one.sample_s:.0f}, learning {one.learn_s:.0f}; "
        f"{sampled / one.step_s:,.0f} sampled tokens a second",
    ]


def _gib(parts: dict[str, int]) -> str:
    return ", ".join(f"{name} {size / GIB:.1f}" for name, size in parts.items() if size >= GIB / 20)


def _read(argv: list[str]) -> dict[str, str | int | float]:
    given = {key: default for key, (default, _) in KEYS.items()}
    for word in argv:
        key, equals, value = word.partition("=")
        if not equals:
            raise UserError(f"{word}: expected KEY=VALUE, such as model=7b")
        if key not in KEYS:
            raise UserError(f"{word}: unknown key; {nearest(key, KEYS)}")
        kind = type(given[key])
        try:
            given[key] = kind(value.replace("_", "") if kind is not str else value)
        except ValueError:
            raise UserError(f"{word}: expected a{' whole' * (kind is int)} number") from None
        if kind is not str and not 0 < float(given[key]) < 1e9:
            raise UserError(f"{word}: expected a number above 0")
    if not given["model"]:
        raise UserError("name a model: model=7b, or a folder")
    return given


def _help() -> str:
    keys = "\n".join(
        f"  {key:<8} {meaning}" + (f" ({default})" if default else "")
        for key, (default, meaning) in KEYS.items()
    )
    return f"usage: toolwright plan model=NAME [KEY=VALUE …]\n\n{__doc__}\nKeys:\n{keys}"
