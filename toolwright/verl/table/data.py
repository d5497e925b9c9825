"""`data.*`: the task files, how much of them makes a step, and how long a prompt may be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from toolwright.verl.config import SEARCH_R1, VerlConfig
from toolwright.verl.translation import Translation

TRAIN, HELD_OUT = "data.train_files", "data.val_files"
BATCH, MINI_BATCH = "data.train_batch_size", "actor_rollout_ref.actor.ppo_mini_batch_size"
GPUS, NODES = "trainer.n_gpus_per_node", "trainer.nnodes"
TEMPLATE = "data.apply_chat_template_kwargs."
MOST, EVAL_EVERY = "data.train_max_samples", "trainer.test_freq"
STEPS, EPOCHS = "trainer.total_training_steps", "trainer.total_epochs"
ROUND, FILTER = "data.gen_batch_size", "algorithm.filter_groups.enable"
SAMPLED, AHEAD = "rollout.total_rollout_steps", "async_training.require_batches"
SAMPLERS, SAMPLER_NODES = "rollout.n_gpus_per_node", "rollout.nnodes"
COUNTED, JUDGED = "data.train_data_num", "data.val_data_num"  # Search-R1's names
WORLD = "env.env_name"
PLAYED = "data.val_batch_size"
SAMPLES, SEARCH_R1_N = "actor_rollout_ref.rollout.n", "actor_rollout_ref.rollout.n_agent"
RESAMPLED = "augmentation.do_down_sampling"
KEPT = "augmentation.down_sampling_config.down_sample_to_n"
CUT, SKIP, START = "data.truncation", "data.filter_overlong_prompts", "data.max_start_length"
IMAGES, MOVING = "data.image_key", ("data.video_key", "data.audio_key")
CUTS = ("left", "right", "middle")
CLASS_FILE, CLASS_NAME = "data.custom_cls.path", "data.custom_cls.name"


def training_tasks(verl: VerlConfig) -> int | None:
    """Rows to train on. None where files are missing, or an environment makes its own tasks."""
    found = None if makes_tasks(verl) else verl.rows_of(TRAIN)
    limits = [verl[key] for key in (MOST, COUNTED) if isinstance(verl[key], int) and verl[key] > 0]
    return None if found is None else min([found, *limits])


def makes_tasks(verl: VerlConfig) -> bool:
    """Return True if an environment of verl-agent makes the tasks. Its search reads them from the files."""
    return verl[WORLD] not in (None, "search")


def batch_key(verl: VerlConfig) -> str:
    """The key that says how many prompts a step has: verl samples `gen_batch_size` of them if it is set. With
    groups filtered, those are drawn until there are `train_batch_size`."""
    if verl[ROUND] is not None and not verl[FILTER] and not fully_async(verl) and not fetches(verl):
        return ROUND
    return BATCH


def fetches(verl: VerlConfig) -> bool:
    """Return True if `gen_batch_size` only says how many prompts are fetched at a time, as in verl's newest
    trainer."""
    asked = verl.is_set("trainer.use_v1") and bool(verl["trainer.use_v1"])
    return asked or any(key.startswith("trainer.v1.") for key in verl.overrides)


def requested(verl: VerlConfig) -> int:
    """Prompts a step, as asked for. A fully asynchronous run counts minibatches."""
    if fully_async(verl):
        return verl.number(MINI_BATCH) * verl.number(AHEAD)
    return verl.number(batch_key(verl))


def fully_async(verl: VerlConfig) -> bool:
    return bool(verl[SAMPLED] is not None or verl[BATCH] == 0)


def prompts(verl: VerlConfig) -> int:
    """Prompts a step. With `--fit`, as many as the devices take and the files have."""
    batch = requested(verl)
    if not verl.fit:
        return batch
    asked = devices(verl)
    share = -(-batch * verl.machine.used(asked) // max(asked, 1))
    return min(share, training_tasks(verl) or share)


def devices(verl: VerlConfig) -> int:
    """GPUs asked for, those of samplers included."""
    learners = _count(verl, GPUS) * _count(verl, NODES)
    return learners + (_count(verl, SAMPLERS) * _count(verl, SAMPLER_NODES) if verl[SAMPLER_NODES] else 0)


def _count(verl: VerlConfig, key: str) -> int:
    """A number of devices. A script's empty variable leaves it to the machine, and so does RLinf's `all`."""
    if verl[key] == "all":
        return max(1, verl.machine.devices)
    return 1 if verl[key] == "" else int(verl[key])


def minibatches(verl: VerlConfig) -> int:
    """Optimiser updates in one pass over a step. `--fit` makes them smaller, and fewer only where there are
    not as many attempts."""
    return min(_minibatches_asked(verl), prompts(verl) * attempts(verl))


def _minibatches_asked(verl: VerlConfig) -> int:
    whole, part = requested(verl), verl.number(MINI_BATCH)
    if counts_turns(verl):
        return -(-whole * attempts(verl) * verl.number("env.max_steps") // part)
    if counts_attempts(verl):
        return -(-whole * attempts(verl) // part)
    return -(-whole // min(part, whole))


def attempts(verl: VerlConfig) -> int:
    """Attempts at each prompt, under the names that verl and its forks have for it."""
    key = KEPT if resamples(verl) else samples_key(verl)
    return 1 if verl[key] == -1 else verl.number(key)


def of_search_r1(verl: VerlConfig) -> bool:
    return verl.is_set(*SEARCH_R1)


def counts_turns(verl: VerlConfig) -> bool:
    """verl-agent's minibatch counts turns, each a sequence of its own."""
    return verl[WORLD] is not None and verl.family != "RAGEN"


def counts_attempts(verl: VerlConfig) -> bool:
    """Search-R1 and RAGEN repeat prompts themselves, so that a minibatch counts attempts; verl's counts
    prompts."""
    return samples_key(verl) == SEARCH_R1_N or (verl[WORLD] is not None and verl.family == "RAGEN")


def resamples(verl: VerlConfig) -> bool:
    """Return True if rStar2 chooses among a group's attempts."""
    return bool(verl[RESAMPLED]) and int(verl[KEPT]) > 0


def samples_key(verl: VerlConfig) -> str:
    if verl[WORLD] is not None:
        return "env.rollout.n"
    return SAMPLES if verl[SEARCH_R1_N] is None else SEARCH_R1_N


def steps(verl: VerlConfig) -> int | None:
    """The number of steps: as set, or the whole batches of an epoch × epochs: verl drops an epoch's rest.

    None where that takes rows of a file that may be missing and is, and where nothing is learned.
    """
    if verl["trainer.val_only"]:
        return None
    if verl[STEPS] is not None:
        return verl.number(STEPS)
    if verl[SAMPLED] is not None:
        return max(1, verl.number(SAMPLED) // requested(verl))
    if makes_tasks(verl):  # verl-agent's files hold one batch, and nothing of it is read
        return verl.number(EPOCHS)
    found, epochs = training_tasks(verl), verl.number(EPOCHS)
    return None if found is None else max(1, found // prompts(verl)) * epochs


def updates(verl: VerlConfig) -> int:
    """Optimiser updates a step."""
    return minibatches(verl) * verl.number("actor_rollout_ref.actor.ppo_epochs")


def batch(verl: VerlConfig, to: Translation) -> None:
    size, found, key, asked = prompts(verl), training_tasks(verl), batch_key(verl), requested(verl)
    if size < asked:
        used = verl.machine.used(devices(verl))
        to.changes.append(
            f"{verl.name_of(key)} {asked:,} → {size:,}: {devices(verl)} devices "
            f"{'asked for' if verl.is_set(GPUS) else 'by default'}, {used} used"
            + ("" if found is None else f"; {found:,} training tasks")
        )
    if found is not None and found < size:
        to.refuse(
            f"{verl.as_typed(key)} is more than the {found:,} rows of {', '.join(verl.paths(TRAIN))}, so "
            "not one step could be taken; lower it, or let --fit do so"
        )
    sources = (MINI_BATCH, AHEAD, BATCH) if fully_async(verl) else (key,)
    to.set("rollout.prompts", size, *sources)
    if verl[ROUND] is not None and verl[FILTER]:
        to.note(
            f"a round of dynamic sampling draws {BATCH} prompts, and what is learned "
            "from are the first groups that can teach, as in verl; fewer are sampled and thrown away",
            ROUND,
        )
    elif verl[ROUND] is not None and fetches(verl):
        to.note(f"how many prompts verl fetches at a time; a step has {BATCH}", ROUND)
    _parts(verl, to, asked, key)
    wanted, found_updates = _minibatches_asked(verl), minibatches(verl)
    if found_updates < wanted and verl[WORLD] is None:
        to.changes.append(f"{wanted} updates a step → {found_updates}: no more than there are attempts")
    to.set("update.minibatches", minibatches(verl), *sources, MINI_BATCH)


def _parts(verl: VerlConfig, to: Translation, asked: int, key: str) -> None:
    """Say where a step does not divide into minibatches as it does in verl."""
    part = verl.number(MINI_BATCH)
    if counts_turns(verl):
        to.near(
            f"{verl.as_typed(MINI_BATCH)} counts turns in verl-agent, and whole attempts make a minibatch "
            f"here: as many minibatches as if every attempt took {verl.as_typed('env.max_steps')} turns"
        )
    elif part > asked * (attempts(verl) if counts_attempts(verl) else 1):
        text = f"{verl.as_typed(MINI_BATCH)} is more than {verl.as_typed(key)}: one update a step"
        if verl.is_set(MINI_BATCH) and not verl["actor_rollout_ref.actor.use_dynamic_bsz"]:
            to.near(f"{text}, where verl refuses it")
        else:
            to.note(text)
    elif asked % part and not counts_attempts(verl):
        divided = f"{verl.as_typed(MINI_BATCH)} does not divide {verl.as_typed(key)}"
        to.note(f"{divided}: minibatches differ by one")


def train_files(verl: VerlConfig, to: Translation) -> None:
    if makes_tasks(verl):
        for key in (TRAIN, HELD_OUT):
            if verl.is_set(key):
                to.note("not used: the environment makes its own tasks", key)
        return
    _own_class(verl, to)
    to.set("task.train", _one_or_many(verl.paths(TRAIN)), TRAIN)
    for path in verl.paths(TRAIN):
        verl.lacks(path)
    limit = COUNTED if verl[COUNTED] is not None else MOST
    some = isinstance(verl[limit], int) and verl[limit] > 0
    size = (training_tasks(verl) or verl[limit]) if some else None
    to.set("task.train_size", size, limit)


def _own_class(verl: VerlConfig, to: Translation) -> None:
    """A class of the user's that reads the files; it may make other rows of them than they have."""
    path, name = verl[CLASS_FILE], verl[CLASS_NAME]
    if path is None or name is None:
        return
    path = str(path).removeprefix("file://")
    if path.startswith("pkg://"):
        path = path.removeprefix("pkg://")
    else:
        verl.lacks(path)
    to.set("task.name", "dataset_class", CLASS_FILE, CLASS_NAME)
    to.set("task.params.path", path, CLASS_FILE)
    to.set("task.params.name", str(name), CLASS_NAME)


def val_files(verl: VerlConfig, to: Translation) -> None:
    if makes_tasks(verl):
        if verl[PLAYED] is not None:
            to.set("task.held_out_size", verl.number(PLAYED), PLAYED)
        return
    there = all(Path(path).expanduser().exists() for path in verl.paths(HELD_OUT))
    never = not verl["trainer.val_before_train"] and verl[EVAL_EVERY] <= 0
    if never or (not there and not verl.is_set(HELD_OUT)):
        if not never:
            to.note(f"{HELD_OUT} is not set: nothing is evaluated")
        to.set("task.held_out", [], HELD_OUT)
        return
    found = verl.rows_of(HELD_OUT)
    to.set("task.held_out", _one_or_many(verl.paths(HELD_OUT)), HELD_OUT)
    limit = JUDGED if verl[JUDGED] is not None else "data.val_max_samples"
    most = verl[limit] if isinstance(verl[limit], int) and verl[limit] > 0 else None
    size = min(filter(None, (found, most)), default=None)
    if size is not None:
        to.set("task.held_out_size", size, limit)


def long_prompts(verl: VerlConfig, to: Translation) -> None:
    """Search-R1 cuts what an attempt begins with from the left, to a limit of its own."""
    own_limit = verl[START] is not None
    limit = START if own_limit else "data.max_prompt_length"
    to.set("task.max_prompt_tokens", verl.number(limit), limit)
    cut = "left" if own_limit else str(verl[CUT])
    if cut not in (*CUTS, "error"):
        to.refuse(f"expected error, {', '.join(CUTS)}", CUT)
        return
    to.set("task.long_prompts", "skip" if verl[SKIP] else cut, SKIP, CUT)


def images(verl: VerlConfig, to: Translation) -> None:
    """The column whose images `<image>` in a prompt stands for; an environment shows its own."""
    if verl.is_set(IMAGES) and verl[IMAGES] and not makes_tasks(verl):
        to.set("task.params.images", str(verl[IMAGES]), IMAGES)


def moving(verl: VerlConfig, to: Translation) -> None:
    """Refuse a line that names a column of videos: a run on the rest would learn something else."""
    for key in MOVING:
        if verl.is_set(key) and verl[key]:
            to.refuse(
                "models here read text and images; leave the key out for a file without that column", key
            )


def order(verl: VerlConfig, to: Translation) -> None:
    key = verl.first("data.shuffle", "data.shuffle_train_dataloader")
    to.set("task.order", "shuffled" if verl[key] else "as_listed", key)


def template(verl: VerlConfig, to: Translation) -> None:
    """The arguments one by one, however they were given."""
    for name, value in (verl[TEMPLATE.rstrip(".")] or {}).items():
        key = verl.first(f"{TEMPLATE}{name}", TEMPLATE.rstrip("."))
        to.set(f"rollout.template.{name}", value, key)


def _one_or_many(files: list[str]) -> Any:
    return files[0] if len(files) == 1 else files
