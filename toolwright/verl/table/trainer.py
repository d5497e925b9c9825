"""`trainer.*`: how long, where, on what, and how often something is written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from toolwright.config.names import Registered
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
from toolwright.verl.table import data
from toolwright.verl.table.data import EVAL_EVERY, GPUS, NODES, devices

DEVICE = "trainer.device"
LOGGER, PROJECT, EXPERIMENT = "trainer.logger", "trainer.project_name", "trainer.experiment_name"
PROJECTS = {"wandb": "project", "swanlab": "project", "trackio": "project", "mlflow": "experiment"}
FOLDER, RESUME, RESUME_FROM = "trainer.default_local_dir", "trainer.resume_mode", "trainer.resume_from_path"
SAVE_EVERY, KEEP = "trainer.save_freq", "trainer.max_actor_ckpt_to_keep"


def machine(verl: VerlConfig) -> Iterator[Outcome]:
    requested, available = devices(verl), verl.machine.devices
    on_cpu = verl[DEVICE] == "cpu" or available == 0
    if verl[DEVICE] not in ("cuda", "cpu"):
        yield TranslationProblem(f"{verl.as_typed(DEVICE)}: a run is on cuda or cpu")
        return
    needs_gpu = verl.is_set(GPUS, NODES, DEVICE) and verl[DEVICE] == "cuda" and requested > 0
    if needs_gpu and requested > available and not verl.fit:
        found = f"there are {available}" if available else "there is none, only the CPU"
        yield TranslationProblem(
            f"{verl.as_typed(GPUS)} × {verl.as_typed(NODES)} asks for {requested} devices, but {found}; "
            "ask for what there is, or let --fit scale the run down"
        )
    elif requested > available and verl.fit:
        yield FitChange(f"{requested} devices → {'the CPU' if on_cpu else '1'}")
    elif not verl.is_set(GPUS, NODES):
        taken = "the CPU" if on_cpu else "one GPU"
        yield Note(f"devices are not set: the run takes {taken}; verl's default is 8 GPUs")
    elif requested > verl.machine.usable and not on_cpu:
        yield Note(f"{requested} devices asked for: one is used, as a learner is not spread over several yet")
    yield TranslatedSetting("model.device", "cpu" if on_cpu else "auto", (DEVICE, GPUS, NODES))


def length(verl: VerlConfig) -> Iterator[Outcome]:
    by_steps = verl[data.STEPS] is not None
    sources = (data.STEPS,) if by_steps else (data.EPOCHS, "data.train_batch_size")
    yield TranslatedSetting("train.steps", data.steps(verl), sources)


def folder(verl: VerlConfig) -> Iterator[Outcome]:
    """verl writes over what is there, or goes on with it; a run here is never written over."""
    place, mode = Path(str(verl[FOLDER])).expanduser(), verl[RESUME]
    resume = False
    if mode == "resume_path":
        place = Path(str(verl[RESUME_FROM])).expanduser()
        resume = True
        if not (place / "config.yaml").is_file():
            yield TranslationProblem(
                f"{verl.as_typed(RESUME_FROM)}: not a run folder of Toolwright; verl's checkpoints cannot be "
                "gone on with, but their Hugging Face export can be a model.path"
            )
    elif mode == "auto":
        resume = (place / "config.yaml").is_file()
        if resume:
            yield Note(f"{verl.as_typed(RESUME)}: going on with the run in {place}")
    elif mode == "disable" and place.exists():
        taken, number = place, 2
        while place.exists():
            place, number = taken.with_name(f"{taken.name}-{number}"), number + 1
        yield Note(f"{verl.as_typed(RESUME)}: {taken} is there and is not written over; this run is {place}")
    elif mode != "disable":
        yield TranslationProblem(f"{verl.as_typed(RESUME)}: expected auto, disable or resume_path")
    sources = (RESUME_FROM,) if mode == "resume_path" else (FOLDER,)
    yield TranslatedSetting("run.dir", str(place.parent), sources)
    yield TranslatedSetting("run.name", place.name, sources)
    yield TranslatedSetting("run.resume", resume, (RESUME,))


def saving(verl: VerlConfig) -> Iterator[Outcome]:
    every = max(int(verl[SAVE_EVERY] or 0), 0)
    yield TranslatedSetting("checkpoint.every", every, (SAVE_EVERY,))
    yield TranslatedSetting("checkpoint.minutes", 0, (SAVE_EVERY,))
    all_of_them = data.steps(verl) // every + 2 if every else 2
    yield TranslatedSetting("checkpoint.keep", verl[KEEP] or all_of_them, (KEEP,))


def judging(verl: VerlConfig) -> Iterator[Outcome]:
    every = max(int(verl[EVAL_EVERY] or 0), 0)
    yield TranslatedSetting("eval.every", every, (EVAL_EVERY,))
    if every and not verl["trainer.val_before_train"]:
        yield Note("trainer.val_before_train=false: a run is always evaluated before its first step")


def loggers(verl: VerlConfig) -> Iterator[Outcome]:
    said = verl[LOGGER] if verl.is_set(LOGGER) else []  # verl's default would ask for an account
    names = [str(name) for name in (said if isinstance(said, list) else [said])]
    known = Registered("tracker", "toolwright.observe.trackers").names()
    trackers: dict[str, dict[str, Any]] = {name: {} for name in names if name in known}
    for name, project in PROJECTS.items():
        if name in trackers:
            trackers[name] = {project: str(verl[PROJECT]), "name": str(verl[EXPERIMENT])}
    yield TranslatedSetting("trackers", trackers, (LOGGER, PROJECT, EXPERIMENT))
    if others := [name for name in names if name not in known and name not in ("console", "file")]:
        yield Note(f"{LOGGER}: there is no tracker {', '.join(others)}; see the run's metrics.jsonl")


ROWS: list[KeyRow] = [
    part(
        data.EPOCHS,
        "train.steps",
        "× (rows of the training files ÷ `train_batch_size`, rounded down); rows with long prompts count",
        length,
    ),
    part(data.STEPS, "train.steps", "where it is set", length),
    part(
        GPUS,
        "model.device",
        "× `nnodes`: more than there are is an error; `--fit` takes what there is, with a smaller batch",
        machine,
    ),
    part(NODES, "model.device", "see `n_gpus_per_node`", machine),
    part(DEVICE, "model.device", "`cuda` or `cpu`", machine),
    part(FOLDER, ("run.dir", "run.name"), "its folder and its last part", folder),
    part(PROJECT, "run.dir", "by way of `default_local_dir`", folder),
    part(EXPERIMENT, "run.name", "by way of `default_local_dir`", folder),
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
    part("trainer.val_only", (), "true: `toolwright eval` instead of `train`", lambda verl: iter(())),
    same("trainer.critic_warmup", "update.critic_warmup"),
    part(
        LOGGER,
        "trackers",
        "where it is set, with `project_name` and `experiment_name`; every run keeps `metrics.jsonl`",
        loggers,
    ),
]
