"""`optim.*` of the actor and of the critic, which have the same keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from toolwright.verl.config import VerlConfig
from toolwright.verl.row import (
    KeyRow,
    Near,
    Note,
    Outcome,
    Rule,
    TranslatedSetting,
    TranslationProblem,
    part,
)
from toolwright.verl.table import data

DECAYS = ("constant", "linear", "cosine")


def rows(role: str, ours: str, *, enabled: Callable[[VerlConfig], bool] = lambda verl: True) -> list[KeyRow]:
    """`role` is verl's block, `ours` the block of ours; `enabled`: whether the run has this role."""
    optim = f"{role}optim."

    def if_enabled(rule: Rule) -> Rule:
        return lambda verl: rule(verl) if enabled(verl) else iter(())

    def same(key: str, name: str, how: str = "") -> KeyRow:
        def rule(verl: VerlConfig) -> Iterator[Outcome]:
            yield TranslatedSetting(f"{ours}.{name}", verl[key], (key,))

        return part(key, f"{ours}.{name}", how, if_enabled(rule))

    @if_enabled
    def clip(verl: VerlConfig) -> Iterator[Outcome]:
        key = verl.first(f"{role}grad_clip", f"{optim}clip_grad")
        yield TranslatedSetting(f"{ours}.max_grad_norm", verl[key], (key,))

    @if_enabled
    def decay(verl: VerlConfig) -> Iterator[Outcome]:
        key = verl.first(f"{optim}lr_scheduler_type", f"{optim}warmup_style", f"{optim}lr_decay_style")
        name = verl[key]
        if name not in DECAYS:
            yield TranslationProblem(f"{verl.as_typed(key)}: a learning rate is {', '.join(DECAYS)}")
            return
        cycles = f"{optim}num_cycles"
        if name == "cosine" and verl[cycles] != 0.5:
            yield TranslationProblem(f"{verl.as_typed(cycles)}: a cosine falls once, which is 0.5")
        yield TranslatedSetting(f"{ours}.decay", name, (key,))
        until = f"{optim}lr_decay_steps"
        if verl.is_set(until) and verl[until] is not None and name != "constant":
            yield Near(f"{verl.as_typed(until)}: the rate falls over the whole run")

    @if_enabled
    def end(verl: VerlConfig) -> Iterator[Outcome]:
        """Megatron says where a schedule ends as a rate, FSDP as a part of the first one."""
        ratio, least = verl.first(f"{optim}min_lr_ratio", f"{optim}min_lr_factor"), f"{optim}min_lr"
        if verl[least] is not None:
            part_of = min(1.0, float(verl[least]) / float(verl[f"{optim}lr"]))
            yield TranslatedSetting(f"{ours}.min_lr_ratio", part_of, (least,))
        else:
            yield TranslatedSetting(f"{ours}.min_lr_ratio", verl[ratio] or 0.0, (ratio,))

    @if_enabled
    def first(verl: VerlConfig) -> Iterator[Outcome]:
        if verl[f"{optim}lr_warmup_init"]:
            yield Near(f"{verl.as_typed(f'{optim}lr_warmup_init')}: a rate rises from 0")

    @if_enabled
    def warmup(verl: VerlConfig) -> Iterator[Outcome]:
        """verl counts steps, we count updates."""
        steps, ratio = f"{optim}lr_warmup_steps", f"{optim}lr_warmup_steps_ratio"
        by_steps = verl[steps] is not None and verl[steps] > 0
        key, whole = (steps if by_steps else ratio), data.steps(verl)
        if not by_steps and whole is None and verl[ratio]:
            yield Note(f"{verl.as_typed(ratio)}: {ours}.warmup_steps, by the rows of {data.TRAIN}")
            return
        count = verl[steps] if by_steps else int((verl[ratio] or 0) * (whole or 0))
        yield TranslatedSetting(f"{ours}.warmup_steps", count * data.updates(verl), (key,))

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
