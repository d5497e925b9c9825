"""A forecast of what fits on given GPUs and how long a step takes. It uses the estimates that a run uses."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from pathlib import Path

import torch

from toolwright.config import schema
from toolwright.engines import PlannedModel
from toolwright.failures import UserError, nearest
from toolwright.learner.budget import SHARE, layer_numbers, tokens_in
from toolwright.models import huggingface, weight_files
from toolwright.models.decoder import Recompute, Shape
from toolwright.models.known import SIZES
from toolwright.trainer import memory
from toolwright.trainer.economy import Economy, chosen_economy, economies
from toolwright.trainer.gpus import GPU

GIB = 1 << 30
RESERVED = 1.5 * GIB  # the driver's, and libraries'

# Measured on an H200 with 1.5B's shape: the part of the peak that an update reaches, by tokens a sequence.
LEARNING = ((512, 0.52), (8_192, 0.435), (32_768, 0.37))
# Measured there with 0.1B to 7B: of bandwidth or peak, and the rest of a step of decoding, for each layer.
DECODING, LAYER_S = 0.75, 55e-6
PREFILL = 0.5
FASTER = 0.95  # of the seconds of what `auto` is, to be worth a mention
SHARDED = 0.85  # of one rank's rate: what gathering over a fast link leaves


@dataclass(frozen=True)
class Workload:
    """The work of a step. Token counts are those of an average attempt."""

    context: int = 4_096
    prompts: int = 64
    samples: int = 16
    prompt: int = 512
    answer: int = 1_024
    slots: int = 256

    @property
    def attempts(self) -> int:
        return self.prompts * self.samples

    @property
    def learned(self) -> int:
        """Tokens of an update: a prompt is computed once for its attempts."""
        return self.prompts * self.prompt + self.attempts * self.answer


@dataclass(frozen=True)
class Forecast:
    """A way to train on these GPUs, with its memory and time."""

    way: str
    fits: bool
    economy: Economy
    ranks: int  # GPUs that learn; the others sample. With a single GPU it does both
    parts: dict[str, int]  # bytes of a GPU that learns, by what they are for
    there: int
    micro_tokens: int
    slots: int
    sample_s: float
    learn_s: float
    sampler: dict[str, int] = field(default_factory=dict)  # bytes of a GPU that only samples
    auto: bool = True  # what a run would choose by itself

    @property
    def step_s(self) -> float:
        return self.sample_s + self.learn_s

    @property
    def peak(self) -> int:
        return sum(self.parts.values())


def model_of(name: str, *, context: int) -> PlannedModel:
    """Plan a model, given as a named size or a folder, as one GPU would hold it."""
    if name in SIZES:
        shape = huggingface.shape_of(SIZES[name], context, name)
        count, fast, half = _parameters(shape), True, True
    elif Path(name).is_dir():
        shape = huggingface.read_shape(Path(name), context=context)
        count, half = weight_files.parameters(Path(name)), weight_files.in_bfloat16(Path(name))
        fast = huggingface.is_fast(Path(name), context=context)
    else:
        raise UserError(f"model={name} is neither a folder nor a size; {nearest(name, SIZES)}")
    gpu = torch.device("cuda")
    return PlannedModel(shape, count, torch.bfloat16, gpu, fast=fast, adapted=False, trained=count, half=half)


def _parameters(shape: Shape) -> int:
    """Count the parameters, biases of attention aside."""
    routed = 0 if shape.experts is None else shape.width * shape.experts.count  # a row for each expert
    of_layers = shape.layers * (layer_numbers(shape) + routed + 2 * shape.width) + shape.idle_parameters
    return of_layers + memory.table_numbers(shape) + shape.width


def forecasts(
    model: PlannedModel, gpu: GPU, *, gpus: int = 1, rank: int = 16, work: Workload | None = None
) -> list[Forecast]:
    """Forecast training all weights and training an adapter: with a run's own defaults, and on one GPU also
    with settings that are faster but less exact."""
    work = work or Workload()
    low = memory.adapter_parameters(model.shape, rank)
    adapted = replace(model, adapted=True, trained=low, fresh=True)
    found = []
    for way, kept in (("all weights", model), (f"LoRA of rank {rank}", adapted)):
        found += _alone(way, kept, gpu, work) if gpus == 1 else [_best(way, kept, gpu, gpus, work)]
    return found


def _best(way: str, model: PlannedModel, gpu: GPU, gpus: int, work: Workload) -> Forecast:
    every = [_sharded(way, model, gpu, ranks, gpus - ranks, work) for ranks in range(1, gpus)]
    return min(every, key=lambda one: (not one.fits, one.step_s if one.fits else one.peak))


def _config(work: Workload) -> schema.Config:
    return schema.Config(
        model=schema.Model(context=work.context),
        engine=schema.EngineConfig(slots=work.slots),
        rollout=schema.RolloutConfig(prompts=work.prompts, samples=work.samples, max_tokens="auto"),
    )


def _alone(way: str, model: PlannedModel, gpu: GPU, work: Workload) -> list[Forecast]:
    """Forecast one GPU that samples and learns in turns: first what `auto` picks, then faster settings that
    fit too."""
    config, there = _config(work), _room(gpu)
    tried = economies(config, model, "bfloat16")
    chosen, fits = chosen_economy(config, model, there, tried)
    found = [_economical(way, model, gpu, work, chosen, fits=fits)]
    for kind, same in groupby(tried, key=lambda one: (one.dtype, one.optimizer_state)):
        other, fits = chosen_economy(config, model, there, list(same))
        if fits and kind != (chosen.dtype, chosen.optimizer_state):
            found.append(_economical(way, model, gpu, work, other, auto=False))
    return [found[0], *(one for one in found[1:] if one.step_s < FASTER * found[0].step_s)]


def _economical(
    way: str,
    model: PlannedModel,
    gpu: GPU,
    work: Workload,
    economy: Economy,
    *,
    fits: bool = True,
    auto: bool = True,
) -> Forecast:
    config, there = economy.applied(_config(work)), _room(gpu)
    model = replace(model, stored=config.model.stored)
    needed = memory.counted(config, model)
    parts, slots = _engine_parts(needed, there, work, fits=fits)
    tokens = _pass(model, economy.recompute, there - sum(parts.values()), parts)
    sample_s = sampling_seconds(model, gpu, work, rows=max(1, slots))
    learn_s = learning_seconds(model, gpu, work, economy.recompute)
    return Forecast(way, fits, economy, 1, parts, there, tokens, slots, sample_s, learn_s, auto=auto)


def _engine_parts(
    needed: memory.MemoryPlan, there: int, work: Workload, *, fits: bool = True
) -> tuple[dict[str, int], int]:
    """Plan the engine's memory with the largest cache that fits, and count the average attempts that it
    holds. Attempts of one group share their prompt."""
    engine, size, slots = needed.engine, needed.engine.cache, 0
    if fits and engine.fit is not None:
        tokens = engine.fit(work.slots, there - needed.total + size)
        size = max(size, tokens * engine.token_bytes)
        slots = min(work.slots, max(1, int(tokens / (work.prompt / work.samples + work.answer))))
    parts = {name: bytes_ for name, bytes_ in needed.parts.items() if not name.startswith("cache")}
    return {**parts, "cache": size}, slots


def _sharded(way: str, model: PlannedModel, gpu: GPU, ranks: int, engines: int, work: Workload) -> Forecast:
    """Forecast several GPUs: some learn, each with a part of the weights, gradients and moments, and the
    others sample."""
    config, there = _config(work), _room(gpu)
    learner = {"weights": memory.weight_bytes(model), **memory.learner_parts(config, model)}
    parts = {name: size // ranks for name, size in learner.items()}
    left = int((there - sum(parts.values())) / SHARE)  # no cache is beside it
    again: tuple[Recompute, ...] = (False, "ffn", True)
    chosen = next((one for one in again if memory.passes(model, one, left) >= work.context), True)
    fits = memory.passes(model, chosen, left) >= work.context
    tokens = _pass(model, chosen, there - sum(parts.values()), parts)
    sampling = memory.counted(config, model, learns=False)
    try:
        sampler, slots = _engine_parts(sampling, there, work)
    except UserError:  # not even the fewest fit
        sampler, slots, fits = sampling.parts, 0, False
    share = replace(work, prompts=-(-work.prompts // engines))
    sample_s = sampling_seconds(model, gpu, share, rows=max(1, slots))
    learn_s = learning_seconds(model, gpu, work, chosen) / ranks / (SHARDED if ranks > 1 else 1)
    economy = Economy("bfloat16", "float32", chosen)
    return Forecast(way, fits, economy, ranks, parts, there, tokens, slots, sample_s, learn_s, sampler)


def _room(gpu: GPU) -> int:
    return int(gpu.memory * GIB - RESERVED)


def _pass(model: PlannedModel, recompute: Recompute, left: int, parts: dict[str, int]) -> int:
    """Return the tokens of a micro-batch, and add the memory of its pass to the parts."""
    overhead, each = memory.overhead(model, recompute), memory.pass_bytes(model, recompute)
    tokens = tokens_in(left - overhead, each)
    parts["a pass"] = overhead + max(tokens, model.shape.context) * each
    return tokens


def update_flops(shape: Shape, tokens: int, length: int, recompute: Recompute = False) -> float:
    """Count the operations of an update: each weight once forward and twice backward, plus attention and
    recomputation."""
    inner, layers = shape.heads * shape.head_dim, shape.layers * layer_numbers(shape)
    attention = 4 * shape.layers * inner * length / 2
    again = 0.0
    if recompute == "ffn":
        again = 4.0 * shape.layers * shape.width * shape.token_ffn
    elif recompute is True:
        again = 2 * layers + attention
    return tokens * (6 * (layers + shape.vocab * shape.width) + 3 * attention + again)


def learning_seconds(model: PlannedModel, gpu: GPU, work: Workload, recompute: Recompute) -> float:
    length = work.prompt + work.answer
    work_done = update_flops(model.shape, work.learned, length, recompute)
    small = min(1.0, (model.parameters / 1.5e9) ** 0.2)
    return work_done / (gpu.flops * small * _reached(length))


def _reached(length: int) -> float:
    """Interpolate the reached share of the peak between the lengths that were measured."""
    (first, rate), (last, least) = LEARNING[0], LEARNING[-1]
    if not first < length < last:
        return rate if length <= first else least
    for (low, high_rate), (high, low_rate) in pairwise(LEARNING):
        if length <= high:
            way = math.log(length / low) / math.log(high / low)
            return high_rate + way * (low_rate - high_rate)
    return least


def sampling_seconds(model: PlannedModel, gpu: GPU, work: Workload, *, rows: int) -> float:
    """Estimate the time to sample all attempts with this many side by side: each group's prompt once, then
    one token of each attempt at a time."""
    shape = model.shape
    active = shape.layers * layer_numbers(shape) + shape.vocab * shape.width
    rows = min(rows, work.attempts)
    rounds = work.attempts / rows  # a slot is filled again as its sequence ends
    read = model.parameters if rows * active > model.parameters else active  # experts that some row needs
    kept = 4 * shape.layers * shape.kv_heads * shape.head_dim * (work.prompt + work.answer / 2)
    by_bytes = (2 * read + rows * kept) / gpu.bandwidth
    by_products = 2 * active * rows / gpu.flops
    token_s = max(by_bytes, by_products) / DECODING + shape.layers * LAYER_S
    prompts_s = 2 * active * work.prompts * work.prompt / (gpu.flops * PREFILL)
    return prompts_s + rounds * work.answer * token_s
