"""`data.*`: the task files, how much of them makes a step, and how long a prompt may be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from toolwright.verl.asked import VerlConfig
from toolwright.verl.row import (
    Changed,
    KeyRow,
    Note,
    Outcome,
    TranslatedSetting,
    TranslationProblem,
    always,
    part,
    refused,
    same,
    unused,
)

TRAIN, HELD_OUT = "data.train_files", "data.val_files"
BATCH, MINI_BATCH = "data.train_batch_size", "actor_rollout_ref.actor.ppo_mini_batch_size"
GPUS, NODES = "trainer.n_gpus_per_node", "trainer.nnodes"
TEMPLATE = "data.apply_chat_template_kwargs."
MOST, EVAL_EVERY = "data.train_max_samples", "trainer.test_freq"


def training_tasks(asked: VerlConfig) -> int:
    found, most = asked.rows_of(TRAIN), asked[MOST]
    return min(found, most) if isinstance(most, int) and most > 0 else found


def prompts(asked: VerlConfig) -> int:
    """Prompts a step: as asked for, or as many of them as one device takes and the files have."""
    batch = asked.number(BATCH)
    if not asked.fit:
        return batch
    share = -(-batch * asked.machine.usable // max(devices(asked), asked.machine.usable))
    return min(share, training_tasks(asked))


def devices(asked: VerlConfig) -> int:
    return int(asked[GPUS]) * int(asked[NODES])


def minibatches(asked: VerlConfig) -> int:
    """Optimiser updates in one pass over a step; `--fit` makes them smaller, not fewer."""
    whole = asked.number(BATCH)
    wanted = -(-whole // min(asked.number(MINI_BATCH), whole))
    return min(wanted, prompts(asked))


def batch(asked: VerlConfig) -> Iterator[Outcome]:
    size, found = prompts(asked), training_tasks(asked)
    asked_for = asked.number(BATCH)
    if size < asked_for:
        yield Changed(
            f"{BATCH} {asked_for:,} → {size:,}: {devices(asked)} devices "
            f"{'asked for' if asked.says(GPUS) else 'by default'}, {asked.machine.usable} used; "
            f"{found:,} training tasks"
        )
    if found < size:
        yield TranslationProblem(
            f"{asked.shown(BATCH)} is more than the {found:,} rows of {', '.join(asked.files(TRAIN))}, so "
            "not one step could be taken; lower it, or let --fit do so"
        )
    yield TranslatedSetting("rollout.prompts", size, (BATCH,))
    if asked.number(MINI_BATCH) > asked_for:
        text = f"{asked.shown(MINI_BATCH)} is more than {asked.shown(BATCH)}"
        if asked.says(MINI_BATCH):
            yield TranslationProblem(f"{text}: a minibatch is a part of a step's prompts")
        else:
            yield Note(f"{text}: one update a step")
    elif asked_for % asked.number(MINI_BATCH):
        yield Note(
            f"{asked.shown(MINI_BATCH)} does not divide {asked.shown(BATCH)}: minibatches differ by one"
        )
    yield TranslatedSetting("update.minibatches", minibatches(asked), (BATCH, MINI_BATCH))


def train_files(asked: VerlConfig) -> Iterator[Outcome]:
    yield TranslatedSetting("task.train", _one_or_many(asked.files(TRAIN)), (TRAIN,))
    yield TranslatedSetting("task.train_size", training_tasks(asked) if asked[MOST] > 0 else None, (MOST,))


def val_files(asked: VerlConfig) -> Iterator[Outcome]:
    there = all(Path(path).expanduser().is_file() for path in asked.files(HELD_OUT))
    never = not asked["trainer.val_before_train"] and asked[EVAL_EVERY] <= 0
    if never or (not there and not asked.says(HELD_OUT)):
        if not never:
            yield Note(f"{HELD_OUT} is not set: nothing is evaluated")
        yield TranslatedSetting("task.held_out", [], (HELD_OUT,))
        return
    most = asked["data.val_max_samples"]
    found = asked.rows_of(HELD_OUT)
    yield TranslatedSetting("task.held_out", _one_or_many(asked.files(HELD_OUT)), (HELD_OUT,))
    size = min(found, most) if most > 0 else found
    yield TranslatedSetting("task.held_out_size", size, ("data.val_max_samples",))


def long_prompts(asked: VerlConfig) -> Iterator[Outcome]:
    cut, skip = "data.truncation", "data.filter_overlong_prompts"
    if not asked[skip] and asked[cut] != "error":
        yield TranslationProblem(
            f"{asked.shown(cut)}: prompts are never cut here; leave long ones out by {skip}=True, or raise "
            "data.max_prompt_length"
        )
    yield TranslatedSetting("task.long_prompts", "skip" if asked[skip] else "error", (skip, cut))


def template(asked: VerlConfig) -> Iterator[Outcome]:
    """The arguments one by one, however they were given."""
    for name, value in (asked[TEMPLATE.rstrip(".")] or {}).items():
        key = asked.first(f"{TEMPLATE}{name}", TEMPLATE.rstrip("."))
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
        lambda asked: iter(()),
    ),
    same("data.shuffle", "task.shuffle"),
    same("data.seed", "run.seed", "where it is set; every random choice follows from it", unset="ours"),
    always("data.return_raw_chat", "tasks keep their messages, and the model's own template renders them"),
    always("data.return_raw_input_ids", "the trajectory holds the exact tokens"),
    always("data.return_full_prompt", "the run folder keeps every prompt"),
    unused(
        "data.val_batch_size", "held-out tasks share the engine's slots, as many at once as `engine.slots`"
    ),
    unused("data.gen_batch_size", "a round of dynamic sampling draws `rollout.prompts` prompts"),
    unused("data.validation_shuffle", "the order of evaluation changes nothing"),
    unused("data.filter_overlong_prompts_workers", "prompts are measured in this process"),
    unused("data.dataloader_num_workers", "a task file is read once, at the start"),
    unused("data.use_shm", "files are read where they lie"),
    unused("data.trust_remote_code", "code of a model folder is never run"),
    refused("data.prompt_key", "the column is called `prompt`: rename it in the file"),
    refused("data.reward_fn_key", "the column is called `data_source`: rename it in the file"),
    refused("data.tokenizer", "the tokenizer is that of the model folder"),
    refused("data.custom_cls.*", "write a task set of your own instead: `task.name=path.py:name`"),
    refused("data.sampler.*", "tasks are taken in a shuffled order or in the file's; there is no curriculum"),
    refused(
        "data.datagen.*",
        "tasks are not made while training; write a task set of your own: `task.name=path.py:name`",
    ),
    part(f"{TEMPLATE}*", "rollout.template", "arguments of the chat template by name", template),
    *(
        unused(f"data.{key}", "models here read text only")
        for key in (
            "image_key",
            "video_key",
            "audio_key",
            "image_patch_size",
            "return_multi_modal_inputs",
            "mm_processor_kwargs.*",
        )
    ),
]
