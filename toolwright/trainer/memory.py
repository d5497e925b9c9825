"""The memory that a run will need, counted before anything is loaded and compared with what is free."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import torch

from toolwright.config import schema
from toolwright.config.block import require_number
from toolwright.engines import EngineMemory, PlannedModel, memory_of
from toolwright.failures import UserError
from toolwright.learner.budget import (
    ON_A_CPU,
    PASS_SHARE,
    SHARE,
    moment_bytes,
    pass_overhead,
    token_bytes,
)
from toolwright.models import adapter_folder, huggingface, quantised, weight_files
from toolwright.models.decoder import Recompute, Shape
from toolwright.rewards.builder import models_of
from toolwright.trainer import building, control_group
from toolwright.trainer.building import needs_role
from toolwright.trainer.teacher import teacher_model

log = logging.getLogger(__name__)

GIB = 1 << 30
LEAST_CONTEXT, LEAST_PASS = 256, 256  # tokens below which nothing is cut for want of memory


@dataclass(frozen=True)
class MemoryPlan:
    # Bytes by what they are for; what a pass leaves behind for the way back is not in it.
    parts: dict[str, int]
    engine: EngineMemory

    @property
    def total(self) -> int:
        return sum(self.parts.values())

    def __str__(self) -> str:
        return ", ".join(f"{name} {size / GIB:.1f}" for name, size in self.parts.items() if size >= GIB / 20)


def plan(config: schema.Config, *, learns: bool = True) -> MemoryPlan:
    """Plan the memory of a run in one process."""
    teaches = learns and needs_role(config.algorithm, "teacher")
    teacher = planned(teacher_model(config)) if teaches else None
    needed = counted(config, planned(config.model), learns=learns, teacher=teacher)
    return MemoryPlan({**needed.parts, **_scoring_models(config)}, needed.engine)


def _scoring_models(config: schema.Config) -> dict[str, int]:
    """Bytes of the models that the reward holds, in their own processes on the same device."""
    gpu, found = building.pick_device(config.model.device).type == "cuda", {}
    for name, settings in models_of(config.reward).items():
        folder = Path(str(settings.get("path"))).expanduser()
        asked = settings.get("device", "auto")
        if not folder.is_dir() or (asked != "auto" and str(asked).startswith("cuda") != gpu):
            continue
        half = settings.get("dtype", "auto") == "bfloat16" or (gpu and settings.get("dtype") != "float32")
        workers = config.reward.workers or 1
        found[f"scorer {name}"] = workers * weight_files.parameters(folder) * (2 if half else 4)
    return found


def counted(
    config: schema.Config, model: PlannedModel, *, learns: bool = True, teacher: PlannedModel | None = None
) -> MemoryPlan:
    """Plan the memory of a run with this model in place of the configuration's."""
    parts = {"weights": weight_bytes(model)}
    if learns:
        parts |= learner_parts(config, model)
    if teacher is not None:
        parts["teacher"] = weight_bytes(teacher)
    engine = memory_of(config.engine.name, model, slots=config.engine.slots, used=_rows(config, learns))
    return MemoryPlan({**parts, **engine.parts}, engine)


def learner_parts(config: schema.Config, model: PlannedModel) -> dict[str, int]:
    """Bytes that the learner needs beside the policy's weights."""
    rounded, trained = model.stored == "bfloat16" and not model.adapted, model.trained
    packs = config.update.optimizer_state == "int8" or rounded
    gradients, moments = trained * (2 if rounded else 4), int(trained * moment_bytes(packs=packs))
    parts = {"gradients": gradients, "optimiser": moments}
    # A new adapter that is turned off is a reference already.
    if needs_role(config.algorithm, "reference") and not model.fresh:
        parts["reference"] = 4 * trained if model.adapted else weight_bytes(model)
    if needs_role(config.algorithm, "critic"):
        parts["critic"] = weight_bytes(model) + gradients + moments
    if needs_role(config.algorithm, "process_reward"):  # and what it began as
        parts["process reward"] = 2 * weight_bytes(model) + gradients + moments
    return parts


def table_numbers(shape: Shape) -> int:
    """Numbers of the embedding, and of an output layer of its own."""
    return shape.vocab * shape.width * (1 if shape.tied else 2)


def weight_bytes(model: PlannedModel) -> int:
    """Bytes of a model's weights as they are stored."""
    if model.stored != "int8":
        return model.parameters * (2 if model.stored == "bfloat16" else 4)
    tables = table_numbers(model.shape)
    return 2 * tables + int((model.parameters - tables) * (1 + 4 / quantised.BLOCK))


def check(config: schema.Config, *, learns: bool = True) -> None:
    """Raise a UserError for a run that does not fit into memory."""
    needed, device = plan(config, learns=learns), building.pick_device(config.model.device)
    there = free(device)
    if needed.total <= there:
        return
    raise UserError(
        f"this run needs {needed.total / GIB:.1f} GiB of memory, and {there / GIB:.1f} are free on {device}: "
        f"{needed}; {_remedy(config, needed, there, learns)}"
    )


def fitted(config: schema.Config, *, learns: bool = True) -> schema.Config:
    """Check that the run fits. On a GPU, also give the engine the largest cache that leaves room for
    everything else in the run: the engine is built first, and would take memory that others need later."""
    check(config, learns=learns)
    device, needed = building.pick_device(config.model.device), plan(config, learns=learns)
    engine, stated = needed.engine, config.engine.params
    if engine.fit is None or "cache_tokens" in stated:
        return config
    tokens = engine.fit(config.engine.slots, free(device) - needed.total + engine.cache)
    context = require_number(config.model.context, "model.context")
    if tokens < _rows(config, learns) * context:
        log.info(
            "%s has room for a cache of %s tokens, %.1f sequences of model.context=%d: where sequences need "
            "more, some wait or are computed again", device, f"{tokens:,}", tokens / context, context,
        )  # fmt: skip
    return config.changed({"engine.params": {**stated, "cache_tokens": tokens}})


def longest_context(
    config: schema.Config, wanted: int, *, learns: bool = True, every_slot: bool = False
) -> int:
    """The wanted number of tokens, or the largest power of two below it that fits into memory. A power of two
    rather than all that is free, so that a run that is started again most likely gets the same.
    `every_slot`: every slot has a whole context at once, also on a GPU."""
    context = wanted
    while context > LEAST_CONTEXT:
        one = config.changed({"model.context": context})
        there, needed = free(building.pick_device(one.model.device)), plan(one, learns=learns)
        # The backward pass of a longest sequence is to fit as well.
        if fits(one, planned(one.model), needed, there, learns=learns, every_slot=every_slot):
            break
        context = max(LEAST_CONTEXT, 1 << (context - 1).bit_length() - 1)
    return context


def fits(
    config: schema.Config,
    model: PlannedModel,
    needed: MemoryPlan,
    there: int,
    *,
    learns: bool = True,
    every_slot: bool = False,
    tokens: int = 0,
) -> bool:
    """Return True if this many bytes are enough. `tokens` is the size of a pass, if larger than one
    sequence."""
    left, engine = there - needed.total, needed.engine
    if every_slot:
        whole = config.engine.slots * model.shape.context * engine.token_bytes
        left = int(left * engine.share) - max(0, whole - engine.cache)
    if not learns:
        return left >= 0
    return passes(model, config.model.recomputes, left) >= max(model.shape.context, tokens)


def passes(model: PlannedModel, recompute: Recompute, left: int) -> int:
    """Return the tokens that a forward and backward pass can have if this many bytes are left for it and for
    caches."""
    room = left * SHARE
    if model.device.type == "cuda":
        room = (room - overhead(model, recompute)) * PASS_SHARE
    return int(room) // pass_bytes(model, recompute)


def overhead(model: PlannedModel, recompute: Recompute) -> int:
    """Bytes that a pass on a GPU needs regardless of its number of tokens."""
    matrices = model.parameters - table_numbers(model.shape)
    return pass_overhead(model.shape, matrices, model.stored, adapted=model.adapted, recompute=recompute)


def micro_tokens(config: schema.Config) -> int:
    """Return the tokens of one pass on a CPU, where a pass that is too large would end the process."""
    tokens = passes(
        planned(config.model), config.model.recomputes, free(torch.device("cpu")) - plan(config).total
    )
    return min(ON_A_CPU, max(LEAST_PASS, 1 << max(tokens, 1).bit_length() - 1))


def pass_bytes(model: PlannedModel, recompute: Recompute) -> int:
    """Bytes that a forward pass keeps for each token until its backward pass."""
    return token_bytes(model.shape, recompute) * model.dtype.itemsize // 2


def _remedy(config: schema.Config, needed: MemoryPlan, there: int, learns: bool) -> str:
    """Suggest settings that would help, and no others."""
    cache = sum(size for name, size in needed.parts.items() if "cache" in name)
    if needed.total - cache <= there:
        return "lower engine.slots or model.context"
    if learns and config.model.path is not None and not building.adapts(config.model):
        return "learn an adapter with model.lora.rank=16, or take a smaller model"
    return "take a smaller model"


def free(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    group = control_group.memory_left()
    return min(_of_machine(), group[1]) if group else _of_machine()


def planned(model: schema.Model) -> PlannedModel:
    """Plan the model from its configuration files, without loading it."""
    fast, half = True, False
    if model.path is not None:
        base, _ = building.folders(model)
        cut, asked = building.cut_of(model), building.FAST[model.fast]
        shape = huggingface.read_shape(base, context=cut, fast=asked)
        half = weight_files.in_bfloat16(base)
        count, fast = weight_files.parameters(base), huggingface.is_fast(base, context=cut, fast=asked)
    else:
        # A character-level vocabulary is some hundred tokens, next to nothing.
        shape = building.fresh_shape(model, vocab=128)
        count = shape.parameters
    device, dtype = building.pick_device(model.device), building.dtype_of(model)
    adapted = building.adapts(model)
    return PlannedModel(
        shape,
        count,
        dtype,
        device,
        fast=fast,
        adapted=adapted,
        stored=model.stored,
        trained=_adapter_parameters(model, shape) if adapted else count,
        fresh=adapted and building.folders(model)[1] is None,
        half=half,
    )


def _adapter_parameters(model: schema.Model, shape: Shape) -> int:
    _, adapter = building.folders(model)
    if adapter is not None and (weights := adapter / adapter_folder.WEIGHTS).is_file():
        return weight_files.count(weights)
    return adapter_parameters(shape, model.lora.rank or 8)


def adapter_parameters(shape: Shape, rank: int) -> int:
    """Count the parameters of a new adapter on every matrix except the experts': rank × (rows + columns)
    each."""
    q, kv, width = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim, shape.width
    dense = shape.layers if shape.experts is None else len(shape.experts.dense)
    attention = 2 * (width + q) + 2 * (width + kv)
    return rank * (shape.layers * attention + dense * 3 * (width + shape.ffn))


def _rows(config: schema.Config, learns: bool) -> int:
    """Count the slots that will be used. Memory that nothing writes to is never taken."""
    tried = config.task.held_out_size * config.eval.samples
    sampled = config.rollout.prompts * config.rollout.samples if learns else 0
    return min(config.engine.slots, max(tried, sampled))


def _of_machine() -> int:
    """Memory that the kernel can provide without swapping."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return 1 << 62  # not Linux: unknown
