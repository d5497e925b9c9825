"""`trainer.*`: how long, where, on what, and how often something is written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

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
from toolwright.verl.table import horizon
from toolwright.verl.table.data import EVAL_EVERY, GPUS, NODES, devices

DEVICE = "trainer.device"
FOLDER, RESUME, RESUME_FROM = "trainer.default_local_dir", "trainer.resume_mode", "trainer.resume_from_path"
SAVE_EVERY, KEEP = "trainer.save_freq", "trainer.max_actor_ckpt_to_keep"


def machine(asked: VerlConfig) -> Iterator[Outcome]:
    wanted, there = devices(asked), asked.machine.devices
    on_cpu = asked[DEVICE] == "cpu" or there == 0
    if asked[DEVICE] not in ("cuda", "cpu"):
        yield TranslationProblem(f"{asked.shown(DEVICE)}: a run is on cuda or cpu")
        return
    needs_gpu = asked.says(GPUS, NODES, DEVICE) and asked[DEVICE] == "cuda" and wanted > 0
    if needs_gpu and wanted > there and not asked.fit:
        found = f"there are {there}" if there else "there is none, only the CPU"
        yield TranslationProblem(
            f"{asked.shown(GPUS)} × {asked.shown(NODES)} asks for {wanted} devices, but {found}; "
            "ask for what there is, or let --fit scale the run down"
        )
    elif wanted > there and asked.fit:
        yield Changed(f"{wanted} devices → {'the CPU' if on_cpu else '1'}")
    elif not asked.says(GPUS, NODES):
        taken = "the CPU" if on_cpu else "one GPU"
        yield Note(f"devices are not set: the run takes {taken}; verl's default is 8 GPUs")
    elif wanted > asked.machine.usable and not on_cpu:
        yield Note(f"{wanted} devices asked for: one is used, as a learner is not spread over several yet")
    yield TranslatedSetting("model.device", "cpu" if on_cpu else "auto", (DEVICE, GPUS, NODES))


def length(asked: VerlConfig) -> Iterator[Outcome]:
    by_steps = asked[horizon.STEPS] is not None
    because = (horizon.STEPS,) if by_steps else (horizon.EPOCHS, "data.train_batch_size")
    yield TranslatedSetting("train.steps", horizon.steps(asked), because)


def folder(asked: VerlConfig) -> Iterator[Outcome]:
    """verl writes over what is there, or goes on with it; a run here is never written over."""
    place, mode = Path(str(asked[FOLDER])).expanduser(), asked[RESUME]
    resume = False
    if mode == "resume_path":
        place = Path(str(asked[RESUME_FROM])).expanduser()
        resume = True
        if not (place / "config.yaml").is_file():
            yield TranslationProblem(
                f"{asked.shown(RESUME_FROM)}: not a run folder of Toolwright; verl's checkpoints cannot be "
                "gone on with, but their Hugging Face export can be a model.path"
            )
    elif mode == "auto":
        resume = (place / "config.yaml").is_file()
        if resume:
            yield Note(f"{asked.shown(RESUME)}: going on with the run in {place}")
    elif mode == "disable" and place.exists():
        taken, number = place, 2
        while place.exists():
            place, number = taken.with_name(f"{taken.name}-{number}"), number + 1
        yield Note(f"{asked.shown(RESUME)}: {taken} is there and is not written over; this run is {place}")
    elif mode != "disable":
        yield TranslationProblem(f"{asked.shown(RESUME)}: expected auto, disable or resume_path")
    because = (RESUME_FROM,) if mode == "resume_path" else (FOLDER,)
    yield TranslatedSetting("run.dir", str(place.parent), because)
    yield TranslatedSetting("run.name", place.name, because)
    yield TranslatedSetting("run.resume", resume, (RESUME,))


def saving(asked: VerlConfig) -> Iterator[Outcome]:
    every = max(int(asked[SAVE_EVERY] or 0), 0)
    yield TranslatedSetting("checkpoint.every", every, (SAVE_EVERY,))
    yield TranslatedSetting("checkpoint.minutes", 0, (SAVE_EVERY,))
    all_of_them = horizon.steps(asked) // every + 2 if every else 2
    yield TranslatedSetting("checkpoint.keep", asked[KEEP] or all_of_them, (KEEP,))


def judging(asked: VerlConfig) -> Iterator[Outcome]:
    every = max(int(asked[EVAL_EVERY] or 0), 0)
    yield TranslatedSetting("eval.every", every, (EVAL_EVERY,))
    if every and not asked["trainer.val_before_train"]:
        yield Note("trainer.val_before_train=false: a run is always evaluated before its first step")


def loggers(asked: VerlConfig) -> Iterator[Outcome]:
    said = asked["trainer.logger"]
    others = [name for name in (said if isinstance(said, list) else [said]) if name != "console"]
    if others and asked.says("trainer.logger"):
        yield Note(
            f"trainer.logger: {', '.join(map(str, others))} is not there yet; see the run's metrics.jsonl"
        )


RAY = "roles live in this process"

ROWS: list[KeyRow] = [
    part(
        horizon.EPOCHS,
        "train.steps",
        "× (rows of the training files ÷ `train_batch_size`, rounded down); rows with long prompts count",
        length,
    ),
    part(horizon.STEPS, "train.steps", "where it is set", length),
    part(
        GPUS,
        "model.device",
        "× `nnodes`: more than there are is an error; `--fit` takes what there is, with a smaller batch",
        machine,
    ),
    part(NODES, "model.device", "see `n_gpus_per_node`", machine),
    part(DEVICE, "model.device", "`cuda` or `cpu`", machine),
    part(FOLDER, ("run.dir", "run.name"), "its folder and its last part", folder),
    part("trainer.project_name", "run.dir", "by way of `default_local_dir`", folder),
    part("trainer.experiment_name", "run.name", "by way of `default_local_dir`", folder),
    part(
        RESUME,
        "run.resume",
        "`auto`: where the folder is a run; `disable`: another name where it is there; `resume_path`",
        folder,
    ),
    part(RESUME_FROM, ("run.dir", "run.name"), "a run folder of Toolwright", folder),
    part(
        SAVE_EVERY,
        ("checkpoint.every", "checkpoint.minutes"),
        "−1 → 0: at the end; none by time",
        saving,
    ),
    part(KEEP, "checkpoint.keep", "unset: all", saving),
    part(EVAL_EVERY, "eval.every", "−1 → 0: before the first step and after the last", judging),
    part(
        "trainer.val_before_train",
        "task.held_out",
        "false with `test_freq=-1`: no evaluation at all",
        judging,
    ),
    part("trainer.val_only", (), "true: `toolwright eval` instead of `train`", lambda asked: iter(())),
    same("trainer.critic_warmup", "update.critic_warmup"),
    part(
        "trainer.logger",
        (),
        "every run keeps metrics.jsonl and report.html; trackers are not there yet",
        loggers,
    ),
    unused("trainer.max_critic_ckpt_to_keep", "a checkpoint is one: policy, critic and all"),
    unused("trainer.remove_previous_ckpt_in_save", "`checkpoint.keep` says how many stay"),
    unused("trainer.del_local_ckpt_after_load", "a checkpoint stays until newer ones replace it"),
    always("trainer.rollout_data_dir", "the run folder keeps every attempt"),
    unused("trainer.validation_data_dir", "the numbers of evaluation are in metrics.jsonl"),
    unused("trainer.log_val_generations", "see `toolwright view RUN`"),
    unused("trainer.val_generations_to_log_to_wandb", "see `toolwright view RUN`"),
    always("trainer.balance_batch", "micro-batches are filled by tokens"),
    unused("trainer.default_hdfs_dir", "a run is written where it runs"),
    unused("trainer.esi_redundant_time", "SIGTERM writes a checkpoint"),
    unused("trainer.ray_wait_register_center_timeout", RAY),
    unused("trainer.use_legacy_worker_impl", RAY),
    unused("trainer.use_v1", "one trainer, in which sampling and updating take turns"),
    refused("trainer.v1.*", "one trainer, in which sampling and updating take turns"),
    *(
        unused(f"trainer.{key}", "there is no profiler; metrics.jsonl has the time of every stage")
        for key in (
            "npu_profile.*",
            "profile_steps",
            "controller_nsight_options.*",
            "worker_nsight_options.*",
        )
    ),
]
