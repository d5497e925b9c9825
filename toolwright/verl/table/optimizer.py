"""`optim.*` of the actor and of the critic, which have the same keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from toolwright.verl.asked import VerlConfig
from toolwright.verl.row import (
    KeyRow,
    Outcome,
    Rule,
    TranslatedSetting,
    TranslationProblem,
    always,
    part,
    refused,
)
from toolwright.verl.table import horizon

DECAYS = ("constant", "linear", "cosine")


def rows(role: str, ours: str, *, wanted: Callable[[VerlConfig], bool] = lambda asked: True) -> list[KeyRow]:
    """`role` is verl's block, `ours` the block of ours; `wanted`: whether the role is there at all."""
    optim = f"{role}optim."

    def when_wanted(rule: Rule) -> Rule:
        return lambda asked: rule(asked) if wanted(asked) else iter(())

    def same(key: str, name: str, how: str = "") -> KeyRow:
        def rule(asked: VerlConfig) -> Iterator[Outcome]:
            yield TranslatedSetting(f"{ours}.{name}", asked[key], (key,))

        return part(key, f"{ours}.{name}", how, when_wanted(rule))

    @when_wanted
    def clip(asked: VerlConfig) -> Iterator[Outcome]:
        key = asked.first(f"{role}grad_clip", f"{optim}clip_grad")
        yield TranslatedSetting(f"{ours}.max_grad_norm", asked[key], (key,))

    @when_wanted
    def decay(asked: VerlConfig) -> Iterator[Outcome]:
        key = asked.first(f"{optim}lr_scheduler_type", f"{optim}warmup_style")
        name = asked[key]
        if name not in DECAYS:
            yield TranslationProblem(f"{asked.shown(key)}: a learning rate is {', '.join(DECAYS)}")
            return
        cycles = f"{optim}num_cycles"
        if name == "cosine" and asked[cycles] != 0.5:
            yield TranslationProblem(f"{asked.shown(cycles)}: a cosine falls once, which is 0.5")
        yield TranslatedSetting(f"{ours}.decay", name, (key,))

    @when_wanted
    def warmup(asked: VerlConfig) -> Iterator[Outcome]:
        """verl counts steps, we count updates."""
        steps, ratio = f"{optim}lr_warmup_steps", f"{optim}lr_warmup_steps_ratio"
        by_steps = asked[steps] is not None and asked[steps] > 0
        count = asked[steps] if by_steps else int(asked[ratio] * horizon.steps(asked))
        said = steps if by_steps else ratio
        yield TranslatedSetting(f"{ours}.warmup_steps", count * horizon.updates(asked), (said,))

    return [
        same(f"{optim}lr", "lr"),
        same(f"{optim}weight_decay", "weight_decay", "not on norms and biases, which verl shrinks as well"),
        same(f"{optim}betas", "betas"),
        same(f"{optim}min_lr_ratio", "min_lr_ratio", "where a cosine ends"),
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
        part(f"{role}grad_clip", f"{ours}.max_grad_norm", "", clip),
        part(f"{optim}clip_grad", f"{ours}.max_grad_norm", "the same", clip),
        always(f"{optim}total_training_steps", "follows from `train.steps`"),
        always(f"{optim}zero_indexed_step", "the schedule begins with the first update"),
        refused(f"{optim}optimizer", "the optimiser is AdamW"),
        refused(f"{optim}optimizer_impl", "the optimiser is torch's AdamW"),
        refused(
            f"{optim}override_optimizer_config.*",
            "the optimiser has the settings listed here",
            harmless=({},),
        ),
    ]
