"""`data.*`: the task files, how much of them makes a step, and how long a prompt may be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from toolwright.verl.config import VerlConfig
from toolwright.verl.row import (
    FitChange,
    KeyRow,
    Note,
    Outcome,
    TranslatedSetting,
    TranslationProblem,
    part,
    same,
)

TRAIN, HELD_OUT = "data.train_files", "data.val_files"
BATCH, MINI_BATCH = "data.train_batch_size", "actor_rollout_ref.actor.ppo_mini_batch_size"
GPUS, NODES = "trainer.n_gpus_per_node", "trainer.nnodes"
TEMPLATE = "data.apply_chat_template_kwargs."
MOST, EVAL_EVERY = "data.train_max_samples", "trainer.test_freq"
STEPS, EPOCHS = "trainer.total_training_steps", "trainer.total_epochs"


def training_tasks(verl: VerlConfig) -> int:
    found, most = verl.rows_of(TRAIN), verl[MOST]
    return min(found, most) if isinstance(most, int) and most > 0 else found


def prompts(verl: VerlConfig) -> int:
    """Prompts a step. With `--fit`, as many as one device takes and the files have."""
    batch = verl.number(BATCH)
    if not verl.fit:
        return batch
    share = -(-batch * verl.machine.usable // max(devices(verl), verl.machine.usable))
    return min(share, training_tasks(verl))


def devices(verl: VerlConfig) -> int:
    return int(verl[GPUS]) * int(verl[NODES])


def minibatches(verl: VerlConfig) -> int:
    """Optimiser updates in one pass over a step; `--fit` makes them smaller, not fewer."""
    whole = verl.number(BATCH)
    count = -(-whole // min(verl.number(MINI_BATCH), whole))
    return min(count, prompts(verl))


def steps(verl: VerlConfig) -> int:
    """As set, or the whole batches of an epoch × epochs. verl drops what is left over at an epoch's end."""
    if verl[STEPS] is not None:
        return verl.number(STEPS)
    return max(1, training_tasks(verl) // prompts(verl)) * verl.number(EPOCHS)


def updates(verl: VerlConfig) -> int:
    """Optimiser updates a step."""
    return minibatches(verl) * verl.number("actor_rollout_ref.actor.ppo_epochs")


def batch(verl: VerlConfig) -> Iterator[Outcome]:
    size, found = prompts(verl), training_tasks(verl)
    requested = verl.number(BATCH)
    if size < requested:
        yield FitChange(
            f"{BATCH} {requested:,} → {size:,}: {devices(verl)} devices "
            f"{'asked for' if verl.is_set(GPUS) else 'by default'}, {verl.machine.usable} used; "
            f"{found:,} training tasks"
        )
    if found < size:
        yield TranslationProblem(
            f"{verl.as_typed(BATCH)} is more than the {found:,} rows of {', '.join(verl.files(TRAIN))}, so "
            "not one step could be taken; lower it, or let --fit do so"
        )
    yield TranslatedSetting("rollout.prompts", size, (BATCH,))
    if verl.number(MINI_BATCH) > requested:
        text = f"{verl.as_typed(MINI_BATCH)} is more than {verl.as_typed(BATCH)}"
        if verl.is_set(MINI_BATCH):
            yield TranslationProblem(f"{text}: a minibatch is a part of a step's prompts")
        else:
            yield Note(f"{text}: one update a step")
    elif requested % verl.number(MINI_BATCH):
        yield Note(
            f"{verl.as_typed(MINI_BATCH)} does not divide {verl.as_typed(BATCH)}: minibatches differ by one"
        )
    yield TranslatedSetting("update.minibatches", minibatches(verl), (BATCH, MINI_BATCH))


def train_files(verl: VerlConfig) -> Iterator[Outcome]:
    yield TranslatedSetting("task.train", _one_or_many(verl.files(TRAIN)), (TRAIN,))
    yield TranslatedSetting("task.train_size", training_tasks(verl) if verl[MOST] > 0 else None, (MOST,))


def val_files(verl: VerlConfig) -> Iterator[Outcome]:
    there = all(Path(path).expanduser().is_file() for path in verl.files(HELD_OUT))
    never = not verl["trainer.val_before_train"] and verl[EVAL_EVERY] <= 0
    if never or (not there and not verl.is_set(HELD_OUT)):
        if not never:
            yield Note(f"{HELD_OUT} is not set: nothing is evaluated")
        yield TranslatedSetting("task.held_out", [], (HELD_OUT,))
        return
    most = verl["data.val_max_samples"]
    found = verl.rows_of(HELD_OUT)
    yield TranslatedSetting("task.held_out", _one_or_many(verl.files(HELD_OUT)), (HELD_OUT,))
    size = min(found, most) if most > 0 else found
    yield TranslatedSetting("task.held_out_size", size, ("data.val_max_samples",))


def long_prompts(verl: VerlConfig) -> Iterator[Outcome]:
    cut, skip = "data.truncation", "data.filter_overlong_prompts"
    if not verl[skip] and verl[cut] != "error":
        yield TranslationProblem(
            f"{verl.as_typed(cut)}: prompts are never cut here; leave long ones out by {skip}=True, or raise "
            "data.max_prompt_length"
        )
    yield TranslatedSetting("task.long_prompts", "skip" if verl[skip] else "error", (skip, cut))


def template(verl: VerlConfig) -> Iterator[Outcome]:
    """The arguments one by one, however they were given."""
    for name, value in (verl[TEMPLATE.rstrip(".")] or {}).items():
        key = verl.first(f"{TEMPLATE}{name}", TEMPLATE.rstrip("."))
        yield TranslatedSetting(f"rollout.template.{name}", value, (key,))


def _one_or_many(files: list[str]) -> Any:
    return files[0] if len(files) == 1 else files


ROWS: list[KeyRow] = [
    part(TRAIN, "task.train", "one file or a list; `task=file` is chosen", train_files),
    part(
        MOST,
        "task.train_size",
        "−1: all. Taken from all over the file, the same ones for every seed",
        train_files,
    ),
    part(
        HELD_OUT,
        "task.held_out",
        "one file or a list; nothing is evaluated where it is unset and verl's default file is not there",
        val_files,
    ),
    part("data.val_max_samples", "task.held_out_size", "−1: all", val_files),
    part(
        BATCH, "rollout.prompts", "prompts a step. Where an epoch ends within a step, the next begins", batch
    ),
    same("data.max_prompt_length", "task.max_prompt_tokens"),
    part("data.filter_overlong_prompts", "task.long_prompts", "`skip` if true, else `error`", long_prompts),
    part("data.truncation", "task.long_prompts", "only `error`: prompts are never cut", long_prompts),
    part(
        "data.max_response_length",
        ("rollout.max_tokens", "model.context"),
        "see `actor_rollout_ref.rollout.response_length`",
        lambda verl: iter(()),
    ),
    same("data.shuffle", "task.shuffle"),
    same("data.seed", "run.seed", "where it is set; every random choice follows from it", unset="ours"),
    part(f"{TEMPLATE}*", "rollout.template", "arguments of the chat template by name", template),
]
