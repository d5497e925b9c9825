"""Ways to save memory: the precision of weights and optimizer moments, and recomputation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from toolwright.config import schema
from toolwright.engines import PlannedModel
from toolwright.models.decoder import Recompute
from toolwright.trainer import building
from toolwright.trainer.memory import counted, fits, free, plan, planned

GOOD_PASS = 8_192  # tokens of a pass that keeps a GPU busy


@dataclass(frozen=True)
class Economy:
    """A way to save memory: the precision of weights and moments, and what is computed twice."""

    dtype: str
    optimizer_state: str
    recompute: Recompute

    def applied(self, config: schema.Config) -> schema.Config:
        values = {"model.dtype": self.dtype, "model.gradient_checkpointing": self.recompute}
        return config.changed({**values, "update.optimizer_state": self.optimizer_state})

    def lines(self, plain: Economy) -> list[str]:
        """A line for each difference from the plain settings."""
        said = []
        if self.optimizer_state != plain.optimizer_state:
            said.append("AdamW's state in 8 bits, for want of memory (update.optimizer_state)")
        if self.recompute != plain.recompute:
            what = "layers" if self.recompute is True else "feed-forward halves of layers"
            said.append(f"{what} computed twice, for want of memory (model.gradient_checkpointing)")
        return said


def economised(config: schema.Config, *, learns: bool = True) -> tuple[schema.Config, list[str]]:
    """Decide how weights and moments are kept and what is recomputed, where that is `auto`, and report the
    choice."""
    device, dtype = building.pick_device(config.model.device), building.precision(config.model)
    if device.type != "cuda" or config.runtime.name != "local":
        state, again = config.update.optimizer_state, config.model.recomputes
        plain = Economy(dtype, "float32" if state == "auto" else state, again)
        if config.model.stored == "bfloat16" and state == "auto" and not building.adapts(config.model):
            plain = replace(plain, optimizer_state="int8")
        return plain.applied(config), []
    model = planned(config.model)
    tried = economies(config, model, dtype, learns=learns)
    there = free(device) - plan(config, learns=learns).parts.get("teacher", 0)
    chosen, _ = chosen_economy(config, model, there, tried, learns=learns)
    return chosen.applied(config), chosen.lines(tried[0])


def chosen_economy(
    config: schema.Config, model: PlannedModel, there: int, tried: Sequence[Economy], *, learns: bool = True
) -> tuple[Economy, bool]:
    """Return the first economy that leaves room for passes of a good size, else the first that fits at all,
    else the last. Also returns whether it fits."""
    for tokens in (GOOD_PASS, 0):
        for one in tried:
            economical, kept = (
                one.applied(config),
                replace(model, stored=schema.STORED.get(one.dtype, "float32")),
            )
            needed = counted(economical, kept, learns=learns)
            if fits(economical, kept, needed, there, learns=learns, tokens=tokens):
                return one, True
    return tried[-1], False


def economies(
    config: schema.Config, model: PlannedModel, dtype: str, *, learns: bool = True
) -> list[Economy]:
    """List the possible economies, the most exact first and then the fastest. Settings that are given stay.
    `dtype` replaces `auto` if there is room for it."""
    state, stated, adapted = config.update.optimizer_state, config.model.gradient_checkpointing, model.adapted
    kinds = [dtype]
    if config.model.dtype == "auto" and dtype == "bfloat16" and model.fast:
        # An adapter's base that is bfloat16 on disk loses nothing if it stays so.
        kinds = ["bfloat16_weights", "int8_weights"] if adapted else [dtype, "bfloat16_weights"]
        if adapted and not model.half:
            kinds.insert(0, dtype)
    again: list[Recompute] = [False, "ffn", True] if model.fast else [False, True]
    if stated != "auto" or not learns:
        again = [config.model.recomputes]
    found = []
    for kind in kinds:
        rounded = kind == "bfloat16_weights" and not adapted
        states = ["float32", "int8"] if learns and not adapted else ["float32"]
        states = [state] if state != "auto" else ["int8"] if rounded else states
        if rounded and states == ["float32"] and len(kinds) > 1:
            continue
        found += [Economy(kind, one, what) for one in states for what in again]
    return found
