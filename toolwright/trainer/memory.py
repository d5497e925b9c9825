"""What a run will need of a device's memory, counted before anything is loaded, against what is free."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import torch

from toolwright.config import schema
from toolwright.config.block import require_number
from toolwright.engines import vllm
from toolwright.engines.native import by_graphs, decoding
from toolwright.engines.native.cache import GPU_SHARE, CacheRows, fitting, slot_bytes
from toolwright.engines.native.engine import ROWS, ROWS_OF_GRAPHS
from toolwright.failures import UserError
from toolwright.learner.budget import ON_A_CPU, SHARE, token_bytes
from toolwright.models import huggingface, weight_files
from toolwright.models.decoder import Shape
from toolwright.models.products import panel_columns
from toolwright.trainer import building
from toolwright.trainer.learning import needs_critic, needs_reference

log = logging.getLogger(__name__)

GIB = 1 << 30
WEIGHT, GRADIENT, MOMENTS = 4, 4, 8  # bytes of a parameter in float32, of its gradient, of AdamW's two
LEAST_CONTEXT, LEAST_PASS = 256, 256  # tokens below which nothing is cut for want of memory
ADAPTED = 12  # an adapter has rank × (in + out) parameters a matrix: about this many for each of its width


@dataclass(frozen=True)
class MemoryPlan:
    parts: dict[
        str, int
    ]  # bytes by what they are for; what a pass leaves behind for the way back is not in it

    @property
    def total(self) -> int:
        return sum(self.parts.values())

    def __str__(self) -> str:
        return ", ".join(f"{name} {size / GIB:.1f}" for name, size in self.parts.items() if size >= GIB / 20)


def plan(config: schema.Config, *, learns: bool = True) -> MemoryPlan:
    """Of a run in one process."""
    model = config.model
    shape, count = _measured(model)
    adapts, dtype = building.adapts(model), building.dtype_of(model)
    trained = (model.lora.rank or 8) * shape.layers * shape.width * ADAPTED if adapts else count
    parts = {"weights": WEIGHT * count}
    if learns:
        parts["gradients"] = GRADIENT * trained
        parts["optimiser"] = MOMENTS * trained
        if needs_reference(config.algorithm) and not adapts:
            parts["reference"] = WEIGHT * count
        if needs_critic(config.algorithm):
            parts["critic"] = WEIGHT * count + (GRADIENT + MOMENTS) * trained
    if config.engine.name == "native":
        parts["matrices of the engine's own"] = _kept(model, shape, adapts)
        rows = _cached(config, shape, learns)
        parts[f"cache of {rows} × {shape.context} tokens"] = rows * slot_bytes(shape, dtype)
    if config.engine.name == "vllm" and building.pick_device(model.device).type == "cpu":
        parts["vLLM's weights"] = dtype.itemsize * count
        parts["vLLM's cache"] = vllm.cache_bytes(shape, config.engine.slots, dtype)
    return MemoryPlan(parts)


def check(config: schema.Config, *, learns: bool = True) -> None:
    """A UserError for a run that there is no room for."""
    needed, device = plan(config, learns=learns), building.pick_device(config.model.device)
    there = free(device)
    if needed.total <= there:
        return
    raise UserError(
        f"this run needs {needed.total / GIB:.1f} GiB of memory, and {there / GIB:.1f} are free on {device}: "
        f"{needed}; {_remedy(config, needed, there, learns)}"
    )


def fitted(config: schema.Config, *, learns: bool = True) -> schema.Config:
    """Checked, and on a GPU with as many slots as there is room for beside all that the run will keep: the
    engine is there first, and would take what others need later."""
    check(config, learns=learns)
    device = building.pick_device(config.model.device)
    if device.type != "cuda" or config.engine.name != "native":
        return config
    shape, _ = _measured(config.model)
    dtype, asked = building.dtype_of(config.model), config.engine.slots
    cached = _cached(config, shape, learns) * slot_bytes(shape, dtype)
    left = free(device) - plan(config, learns=learns).total + cached
    slots = fitting(asked, shape, dtype, rows=_engine_rows(config.model, shape), free=left)
    if slots < _rows(config, learns):
        log.warning(
            "%s has room for %d sequences of model.context=%d tokens at a time, fewer than engine.slots=%d: "
            "the others wait for one of them to end", device, slots, shape.context, asked,
        )  # fmt: skip
    return config.model_copy(update={"engine": config.engine.model_copy(update={"slots": slots})})


def longest_context(
    config: schema.Config, wanted: int, *, learns: bool = True, every_slot: bool = False
) -> int:
    """So many tokens, or where there is no room for them the largest power of two that there is room for:
    not what is free to the byte, so that a run that is started again most likely has the same.
    `every_slot`: all of them at once, on a GPU too, where else there are as many as fit."""
    context = wanted
    while context > LEAST_CONTEXT:
        longer = config.model_copy(update={"model": config.model.model_copy(update={"context": context})})
        if _holds(longer, learns=learns, every_slot=every_slot):
            break
        context = max(LEAST_CONTEXT, 1 << (context - 1).bit_length() - 1)
    return context


def _holds(config: schema.Config, *, learns: bool, every_slot: bool) -> bool:
    """Whether there is room for the run, and for the way back through one of its longest sequences."""
    model, device = config.model, building.pick_device(config.model.device)
    shape, _ = _measured(model)
    left = free(device) - plan(config, learns=learns).total
    if every_slot:
        more = config.engine.slots - _cached(config, shape, learns)
        share = GPU_SHARE if device.type == "cuda" else 1.0
        left = int(left * share) - max(0, more) * slot_bytes(shape, building.dtype_of(model))
    return left >= 0 and (not learns or left * SHARE >= shape.context * pass_bytes(model))


def micro_tokens(config: schema.Config) -> int:
    """Of one pass on a CPU, where a pass that is too large is not an error to recover from but the end."""
    left = free(torch.device("cpu")) - plan(config).total
    tokens = int(max(0, left) * SHARE / pass_bytes(config.model))
    return min(ON_A_CPU, max(LEAST_PASS, 1 << max(tokens, 1).bit_length() - 1))


def pass_bytes(model: schema.Model) -> int:
    """What a token leaves behind for the way back."""
    shape, _ = _measured(model)
    kept = token_bytes(shape)  # as if in two bytes a number
    if model.gradient_checkpointing:
        kept = kept // shape.layers + 2 * shape.layers * shape.width
    return kept * building.dtype_of(model).itemsize // 2


def _remedy(config: schema.Config, needed: MemoryPlan, there: int, learns: bool) -> str:
    """What would help, and only that."""
    cache = sum(size for name, size in needed.parts.items() if "cache" in name)
    if needed.total - cache <= there:
        return "lower engine.slots or model.context"
    if learns and config.model.path is not None and not building.adapts(config.model):
        return "learn an adapter with model.lora.rank=16, or take a smaller model"
    return "take a smaller model"


def free(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return min(_of_machine(), _of_group())


def _measured(model: schema.Model) -> tuple[Shape, int]:
    """The shape and the number of parameters, from what is written rather than loaded."""
    if model.path is not None:
        base, _ = building.folders(model)
        shape = huggingface.read_shape(base, context=building.cut_of(model), fast=building.FAST[model.fast])
        return shape, weight_files.parameters(base)
    head_dim = model.width // model.heads
    # A character-level vocabulary is some hundred tokens, next to nothing.
    shape = Shape(
        vocab=128,
        layers=model.layers,
        width=model.width,
        heads=model.heads,
        kv_heads=model.kv_heads,
        ffn=model.ffn,
        context=require_number(model.context, "model.context"),
        head_dim=head_dim,
    )
    return shape, parameters(shape)


def parameters(shape: Shape) -> int:
    """Counted rather than made: on torch's `meta` device even that imports its compiler, for a second."""
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    a_layer = shape.width * (2 * q + 2 * kv + 3 * shape.ffn + 2)  # its matrices, and two norms
    return shape.width * (shape.vocab + 1) + shape.layers * a_layer


def _rows(config: schema.Config, learns: bool) -> int:
    """Slots that will be in use: memory that nobody writes to is not taken."""
    tried = config.task.held_out_size * config.eval.samples
    sampled = config.rollout.prompts * config.rollout.samples if learns else 0
    return min(config.engine.slots, max(tried, sampled))


def _kept(model: schema.Model, shape: Shape, adapts: bool) -> int:
    """Of an adapter's matrices as if every one had one; a forward of another's reads the model's own."""
    if not _is_fast(model):
        return 0
    on_cpu, dtype = building.pick_device(model.device).type == "cpu", building.dtype_of(model)
    panel = panel_columns() if on_cpu and dtype == torch.float32 else None
    size = WEIGHT * decoding.kept(shape, panel=panel, adapted=adapts)
    if _has_graphs(model, shape):  # which read copies, of embedding and output layer apart
        matrices = decoding.kept(shape, panel=1, adapted=False) + shape.vocab * shape.width
        size += dtype.itemsize * matrices
    return size


def _is_fast(model: schema.Model) -> bool:
    if model.path is None:
        return True
    base, _ = building.folders(model)
    return huggingface.is_fast(base, context=building.cut_of(model), fast=building.FAST[model.fast])


def _has_graphs(model: schema.Model, shape: Shape) -> bool:
    device, dtype = building.pick_device(model.device), building.dtype_of(model)
    return by_graphs(shape, fast=_is_fast(model), dtype=dtype, device=device)


def _engine_rows(model: schema.Model, shape: Shape) -> CacheRows:
    return ROWS_OF_GRAPHS if _has_graphs(model, shape) else ROWS


def _cached(config: schema.Config, shape: Shape, learns: bool) -> int:
    """Sequences whose keys and values are kept; on a GPU the fewest there can be, see `fitted`."""
    if building.pick_device(config.model.device).type == "cpu":
        return _rows(config, learns)
    return _engine_rows(config.model, shape).least


def _of_machine() -> int:
    """What the kernel would give without swapping."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return 1 << 62  # not Linux: unknown


def _of_group() -> int:
    """What the control group, a container say, leaves of its limit."""
    root = Path("/sys/fs/cgroup")
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            return int((root / limit).read_text()) - int((root / used).read_text())
        except (OSError, ValueError):
            continue  # no such file, or "max"
    return 1 << 62
