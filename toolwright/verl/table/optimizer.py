"""`optim.*` of the actor and of the critic, which have the same keys."""

from __future__ import annotations

from collections.abc import Callable

from toolwright.verl.config import VerlConfig
from toolwright.verl.row import KeyRow, Rule, part
from toolwright.verl.table import data
from toolwright.verl.translation import Translation

DECAYS = ("constant", "linear", "cosine")


def rows(role: str, ours: str, *, enabled: Callable[[VerlConfig], bool] = lambda verl: True) -> list[KeyRow]:
    """`role` is verl's block, `ours` the block of ours; `enabled`: whether the run has this role."""
    optim = f"{role}optim."

    def if_enabled(rule: Rule) -> Rule:
        return lambda verl, to: rule(verl, to) if enabled(verl) else None

    def same(key: str, name: str, how: str = "") -> KeyRow:
        def rule(verl: VerlConfig, to: Translation) -> None:
            to.set(f"{ours}.{name}", verl[key], key)

        return part(key, f"{ours}.{name}", how, if_enabled(rule))

    @if_enabled
    def clip(verl: VerlConfig, to: Translation) -> None:
        key = verl.first(f"{role}grad_clip", f"{optim}clip_grad")
        to.set(f"{ours}.max_grad_norm", verl[key], key)

    @if_enabled
    def decay(verl: VerlConfig, to: Translation) -> None:
        key = verl.first(f"{optim}lr_scheduler_type", f"{optim}warmup_style", f"{optim}lr_decay_style")
        name = verl[key]
        if name not in DECAYS:
            to.refuse(f"a learning rate is {', '.join(DECAYS)}", key)
            return
        cycles = f"{optim}num_cycles"
        if name == "cosine" and verl[cycles] != 0.5:
            to.refuse("a cosine falls once, which is 0.5", cycles)
        to.set(f"{ours}.decay", name, key)
        until = f"{optim}lr_decay_steps"
        if verl.is_set(until) and verl[until] is not None and name != "constant":
            to.near("the rate falls over the whole run", until)

    @if_enabled
    def end(verl: VerlConfig, to: Translation) -> None:
        """Megatron says where a schedule ends as a rate, FSDP as a part of the first one."""
        ratio, least = verl.first(f"{optim}min_lr_ratio", f"{optim}min_lr_factor"), f"{optim}min_lr"
        if verl[least] is not None:
            part_of = min(1.0, float(verl[least]) / float(verl[f"{optim}lr"]))
            to.set(f"{ours}.min_lr_ratio", part_of, least)
        else:
            to.set(f"{ours}.min_lr_ratio", verl[ratio] or 0.0, ratio)

    @if_enabled
    def first(verl: VerlConfig, to: Translation) -> None:
        if verl[f"{optim}lr_warmup_init"]:
            to.near("a rate rises from 0", f"{optim}lr_warmup_init")

    @if_enabled
    def warmup(verl: VerlConfig, to: Translation) -> None:
        """verl counts steps, we count updates."""
        steps, ratio = f"{optim}lr_warmup_steps", f"{optim}lr_warmup_steps_ratio"
        by_steps = verl[steps] is not None and verl[steps] > 0
        key, whole = (steps if by_steps else ratio), data.steps(verl)
        if not by_steps and whole is None and verl[ratio]:
            to.note(f"{ours}.warmup_steps, by the rows of {data.TRAIN}", ratio)
            return
        count = verl[steps] if by_steps else int((verl[ratio] or 0) * (whole or 0))
        to.set(f"{ours}.warmup_steps", count * data.updates(verl), key)

    return [
        same(f"{optim}lr", "lr"),
        same(f"{optim}weight_decay", "weight_decay", "not on norms and biases, which verl shrinks as well"),
        same(f"{optim}betas", "betas"),
        part(f"{optim}min_lr_ratio", f"{ours}.min_lr_ratio", "where a cosine ends", end),
        part(f"{optim}min_lr_factor", f"{ours}.min_lr_ratio", "torchtitan's name of it", end),
        part(f"{optim}min_lr", f"{ours}.min_lr_ratio", "Megatron: ÷ `lr`", end),
        part(f"{optim}lr_warmup_init", f"{ours}.warmup_steps", "Megatron: 0; others with `--fit`", first),
        part(f"{optim}lr_decay_style", f"{ours}.decay", "Megatron: `constant`, `linear` or `cosine`", decay),
        part(
            f"{optim}lr_warmup_steps",
            f"{ours}.warmup_steps",
            "× updates a step: verl's schedule moves once a step, ours at each update, and never from 0",
            warmup,
        ),
        part(
            f"{optim}lr_warmup_steps_ratio",
            f"{ours}.warmup_steps",
            "× all steps × updates a step, where no number of steps is set",
            warmup,
        ),
        part(f"{optim}lr_scheduler_type", f"{ours}.decay", "`constant`, `linear` or `cosine`", decay),
        part(f"{optim}warmup_style", f"{ours}.decay", "its older name", decay),
        part(f"{optim}num_cycles", f"{ours}.decay", "only 0.5", decay),
        part(f"{optim}lr_decay_steps", (), "with `--fit`: a rate falls over the whole run", decay),
        part(f"{role}grad_clip", f"{ours}.max_grad_norm", "", clip),
        part(f"{optim}clip_grad", f"{ours}.max_grad_norm", "the same", clip),
    ]
