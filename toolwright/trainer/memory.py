"""What a run will need of a device's memory, counted before anything is loaded, against what is free."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import torch

from toolwright.config import schema
from toolwright.config.block import require_number
from toolwright.engines import EngineMemory, PlannedModel, memory_of
from toolwright.failures import UserError
from toolwright.learner.budget import ON_A_CPU, SHARE, moment_bytes, pass_overhead, token_bytes
from toolwright.models import adapter_folder, huggingface, quantised, weight_files
from toolwright.models.decoder import Recompute, Shape
from toolwright.trainer import building
from toolwright.trainer.learning import needs_critic, needs_reference
from toolwright.trainer.teacher import needs_teacher, teacher_model

log = logging.getLogger(__name__)

GIB = 1 << 30
LEAST_CONTEXT, LEAST_PASS = 256, 256  # tokens below which nothing is cut for want of memory
GOOD_PASS = 8_192  # tokens of a pass that keeps a GPU busy
ADAPTED = 12  # an adapter has rank × (in + out) parameters a matrix: about this many for each of its width


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
    """Of a run in one process."""
    model = planned(config.model)
    trained = _adapter_parameters(config.model, model.shape) if model.adapted else model.parameters
    fresh = model.adapted and building.folders(config.model)[1] is None
    counted = learner_parts(config, model, trained, fresh=fresh) if learns else {}
    if learns and needs_teacher(config.algorithm):
        counted["teacher"] = weight_bytes(planned(teacher_model(config)))
    engine = memory_of(config.engine.name, model, slots=config.engine.slots, used=_rows(config, learns))
    return MemoryPlan({"weights": weight_bytes(model), **counted, **engine.parts}, engine)


def learner_parts(config: schema.Config, model: PlannedModel, trained: int, *, fresh: bool) -> dict[str, int]:
    """Bytes of a learner beside the policy's weights. `trained` parameters; `fresh`: of a new adapter."""
    packs = config.update.optimizer_state == "int8" or (model.stored == "bfloat16" and not model.adapted)
    gradients = trained * (2 if model.stored == "bfloat16" and not model.adapted else 4)
    moments = int(trained * moment_bytes(packs=packs))
    parts = {"gradients": gradients, "optimiser": moments}
    if needs_reference(config.algorithm) and not fresh:  # a new adapter turned off is one already
        parts["reference"] = 4 * trained if model.adapted else weight_bytes(model)
    if needs_critic(config.algorithm):
        parts["critic"] = weight_bytes(model) + gradients + moments
    return parts


def weight_bytes(model: PlannedModel) -> int:
    """Of a model's weights as they are stored."""
    if model.stored != "int8":
        return model.parameters * (2 if model.stored == "bfloat16" else 4)
    shape = model.shape
    tables = shape.vocab * shape.width * (1 if shape.tied else 2)
    return 2 * tables + int((model.parameters - tables) * (1 + 4 / quantised.BLOCK))


def _adapter_parameters(model: schema.Model, shape: Shape) -> int:
    _, adapter = building.folders(model)
    if adapter is not None and (weights := adapter / adapter_folder.WEIGHTS).is_file():
        return weight_files.count(weights)
    return (model.lora.rank or 8) * shape.layers * shape.width * ADAPTED


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
    device, needed = building.pick_device(config.model.device), plan(config, learns=learns)
    engine, asked = needed.engine, config.engine.slots
    if engine.fit is None:
        return config
    slots = engine.fit(asked, free(device) - needed.total + engine.rows * engine.row_bytes)
    if slots < _rows(config, learns):
        log.warning(
            "%s has room for %d sequences of model.context=%s tokens at a time, fewer than engine.slots=%d: "
            "the others wait for one of them to end", device, slots, config.model.context, asked,
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


def _holds(config: schema.Config, *, learns: bool, every_slot: bool, tokens: int = 0) -> bool:
    """Whether there is room for the run, and for the way back through one of its longest sequences, or so
    many `tokens`."""
    needed = plan(config, learns=learns)
    left, engine = free(building.pick_device(config.model.device)) - needed.total, needed.engine
    if every_slot:
        left = int(left * engine.share) - max(0, config.engine.slots - engine.rows) * engine.row_bytes
    if not learns:
        return left >= 0
    model = planned(config.model)
    return passes(model, config.model.recomputes, left) >= max(model.shape.context, tokens)


def passes(model: PlannedModel, recompute: Recompute, left: int) -> int:
    """Tokens that a pass with its way back can have, where so many bytes are left."""
    return int((left - overhead(model, recompute)) * SHARE) // pass_bytes(model, recompute)


def overhead(model: PlannedModel, recompute: Recompute) -> int:
    """What a pass takes whatever its tokens; on a CPU, logits are of few rows and nothing is cast."""
    if model.device.type != "cuda":
        return 0
    return pass_overhead(model.shape, model.stored, adapted=model.adapted, recompute=recompute)


def economised(config: schema.Config, *, learns: bool = True) -> tuple[schema.Config, list[str]]:
    """Decide what is `auto` in how weights and moments are kept and what is computed twice: the first of
    `economies` that leaves room for passes of a good size; the last if none does. And what is to be said."""
    gpu = building.pick_device(config.model.device).type == "cuda"
    counts = gpu and config.runtime.name == "local"
    tried = economies(config, fast=not counts or planned(config.model).fast, counts=counts, learns=learns)

    def spacious(one: Economy) -> bool:
        return _holds(one.applied(config), learns=learns, every_slot=False, tokens=GOOD_PASS)

    chosen = tried[0] if len(tried) == 1 else next(filter(spacious, tried), tried[-1])
    return chosen.applied(config), chosen.lines(tried[0])


@dataclass(frozen=True)
class Economy:
    """One way to keep weights and moments, and what is computed again."""

    dtype: str
    optimizer_state: str
    recompute: Recompute

    def applied(self, config: schema.Config) -> schema.Config:
        model = {"dtype": self.dtype, "gradient_checkpointing": self.recompute}
        update = {"optimizer_state": self.optimizer_state}
        return config.model_copy(
            update={
                "model": config.model.model_copy(update=model),
                "update": config.update.model_copy(update=update),
            }
        )

    def lines(self, plain: Economy) -> list[str]:
        """What differs from the plain way."""
        said = []
        if self.optimizer_state != plain.optimizer_state:
            said.append("AdamW's state in 8 bits, for want of memory (update.optimizer_state)")
        if self.recompute != plain.recompute:
            what = "layers" if self.recompute is True else "feed-forward halves of layers"
            said.append(f"{what} computed twice, for want of memory (model.gradient_checkpointing)")
        return said


def economies(config: schema.Config, *, fast: bool, counts: bool, learns: bool = True) -> list[Economy]:
    """What may be chosen, the most exact and then the fastest first. What is stated stays; without `counts`
    nothing is saved that is not asked for."""
    model, state = config.model, config.update.optimizer_state
    dtype, adapts = building.precision(model), building.adapts(model)
    found = []
    for stored in (dtype, "bfloat16_weights", "int8_weights"):
        if stored != dtype and (model.dtype != "auto" or dtype != "bfloat16" or not fast or not counts):
            continue
        if stored == "int8_weights" and not adapts:
            continue
        rounded = stored == "bfloat16_weights" and not adapts
        states = ["float32", "int8"] if counts and learns and not adapts else ["float32"]
        states = [state] if state != "auto" else ["int8"] if rounded else states
        if rounded and states == ["float32"]:
            continue
        again: list[Recompute] = [False, "ffn", True] if fast else [False, True]
        if model.gradient_checkpointing != "auto" or not counts or not learns:
            again = [model.recomputes]
        found += [Economy(stored, one, what) for one in states for what in again]
    return found


def micro_tokens(config: schema.Config) -> int:
    """Of one pass on a CPU, where a pass that is too large is not an error to recover from but the end."""
    tokens = passes(
        planned(config.model), config.model.recomputes, free(torch.device("cpu")) - plan(config).total
    )
    return min(ON_A_CPU, max(LEAST_PASS, 1 << max(tokens, 1).bit_length() - 1))


def pass_bytes(model: PlannedModel, recompute: Recompute) -> int:
    """What a token leaves behind for the way back."""
    return token_bytes(model.shape, recompute) * model.dtype.itemsize // 2


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


def planned(model: schema.Model) -> PlannedModel:
    """The model from what is written about it rather than loaded."""
    fast = True
    if model.path is not None:
        base, _ = building.folders(model)
        cut, asked = building.cut_of(model), building.FAST[model.fast]
        shape = huggingface.read_shape(base, context=cut, fast=asked)
        count, fast = weight_files.parameters(base), huggingface.is_fast(base, context=cut, fast=asked)
    else:
        # A character-level vocabulary is some hundred tokens, next to nothing.
        shape = Shape(
            vocab=128,
            layers=model.layers,
            width=model.width,
            heads=model.heads,
            kv_heads=model.kv_heads,
            ffn=model.ffn,
            context=require_number(model.context, "model.context"),
            head_dim=model.width // model.heads,
        )
        count = shape.parameters
    device, dtype = building.pick_device(model.device), building.dtype_of(model)
    adapted = building.adapts(model)
    return PlannedModel(shape, count, dtype, device, fast=fast, adapted=adapted, stored=model.stored)


def _rows(config: schema.Config, learns: bool) -> int:
    """Slots that will be in use: memory that nobody writes to is not taken."""
    tried = config.task.held_out_size * config.eval.samples
    sampled = config.rollout.prompts * config.rollout.samples if learns else 0
    return min(config.engine.slots, max(tried, sampled))


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
