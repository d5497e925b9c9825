"""`trainer.*`: how long, where, on what, and how often something is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from toolwright.config.names import Registered
from toolwright.verl import resuming
from toolwright.verl.config import VerlConfig
from toolwright.verl.resuming import begin_or_resume, keep_all
from toolwright.verl.table import data
from toolwright.verl.table.data import (
    AHEAD,
    EVAL_EVERY,
    GPUS,
    NODES,
    SAMPLED,
    SAMPLER_NODES,
    SAMPLERS,
    devices,
)
from toolwright.verl.table.model import ADAPTER, RANK
from toolwright.verl.translation import Translation

DEVICE = "trainer.device"
LOGGER, PROJECT, EXPERIMENT = "trainer.logger", "trainer.project_name", "trainer.experiment_name"
PROJECTS = {"wandb": "project", "swanlab": "project", "trackio": "project", "mlflow": "experiment"}
FOLDER = "trainer.default_local_dir"
SAVE_EVERY, KEEP = "trainer.save_freq", "trainer.max_actor_ckpt_to_keep"
FIRST, ROUNDS = "trainer.val_before_train", "rollout.test_freq"
SYNCED = "async_training.trigger_parameter_sync_step"


def machine(verl: VerlConfig, to: Translation) -> None:
    requested, available = devices(verl), verl.machine.devices
    on_cpu = verl[DEVICE] == "cpu" or (available == 0 and not verl.machine.cluster)
    if verl[DEVICE] not in ("cuda", "cpu", "npu"):
        to.refuse("a run is on cuda or cpu", DEVICE)
        return
    if verl[DEVICE] == "npu":
        to.near(f"{DEVICE} npu → {'the CPU' if on_cpu else 'cuda'}: there is no NPU here")
    needs_gpu = verl.is_set(GPUS, NODES, DEVICE) and verl[DEVICE] != "cpu" and requested > 0
    if verl.machine.cluster:
        pass  # how many devices a cluster has is known once it is joined
    elif needs_gpu and requested > available and not verl.fit:
        found = f"there are {available}" if available else "there is none, only the CPU"
        to.refuse(
            f"{verl.as_typed(GPUS)} × {verl.as_typed(NODES)} asks for {requested} devices, but {found}; "
            "ask for what there is, or let --fit scale the run down"
        )
    elif requested > available and verl.fit:
        found = "the CPU" if on_cpu else f"{available}"
        sizes = filter(verl.is_set, (GPUS, NODES, SAMPLERS, SAMPLER_NODES))
        asked = " × ".join(map(verl.as_typed, sizes))
        to.changes.append(f"{requested} devices → {found}" + (f" ({asked})" if asked else ""))
    elif not verl.is_set(GPUS, NODES):
        taken = "the CPU" if on_cpu else "one GPU"
        to.note(f"devices are not set: the run takes {taken}; verl's default is 8 GPUs")
    to.set("model.device", "cpu" if on_cpu else "auto", DEVICE, GPUS, NODES)
    if not on_cpu:
        _places(verl, to, verl.machine.used(requested))


def _places(verl: VerlConfig, to: Translation, used: int) -> None:
    """Several devices: ranks of the learner, and an engine on each of the others.

    verl keeps engine and learner on the same devices unless samplers have their own; here half of them learn.
    """
    if used < 2:
        return
    apart = bool(verl[SAMPLER_NODES])
    asked = int(verl[SAMPLERS]) * int(verl[SAMPLER_NODES]) if apart else used // 2
    samplers = max(1, min(asked * used // devices(verl) if apart else asked, used - 1))
    if int(verl[RANK] or 0) > 0 or verl[ADAPTER] is not None:
        samplers = used - 1  # an adapter is learned by one process
    sources = (GPUS, NODES, *((SAMPLERS, SAMPLER_NODES) if apart else ()))
    to.set("runtime.name", "ray", *sources)
    if verl.machine.cluster:
        to.set("runtime.address", "auto", NODES)
    to.set("runtime.placement.colocate", "no", *sources)
    to.set("runtime.placement.policy.ranks", used - samplers, *sources)
    to.set("runtime.placement.rollout.workers", samplers, *sources)
    if not apart:
        to.note(
            f"{used} devices: {used - samplers} learn and {samplers} sample, where verl's do both in turn "
            f"({verl.as_typed(GPUS)})"
        )


def apart(verl: VerlConfig, to: Translation) -> None:
    """verl's samplers on devices of their own run ahead of the learner."""
    if verl[SAMPLER_NODES]:
        words = ", ".join(map(verl.as_typed, filter(verl.is_set, (SAMPLERS, SAMPLER_NODES))))
        to.near(
            f"{words or SAMPLER_NODES}: sampling and updating take turns, so each step learns from the "
            "newest policy's attempts, where verl samples ahead"
        )


def length(verl: VerlConfig, to: Translation) -> None:
    by_steps, by_rollouts = verl[data.STEPS] is not None, verl[SAMPLED] is not None
    sources: tuple[str, ...] = (data.STEPS,) if by_steps else (data.EPOCHS, data.batch_key(verl))
    if by_rollouts and not by_steps:
        sources = (SAMPLED, data.MINI_BATCH, AHEAD)
    count = data.steps(verl)
    if count is None and not verl["trainer.val_only"]:
        to.note(
            f"train.steps, by the rows of {', '.join(verl.paths(data.TRAIN))}, which is not here", data.EPOCHS
        )
    if count is not None:
        to.set("train.steps", count, *sources)


def folder(verl: VerlConfig, to: Translation) -> None:
    # A script's empty variable names no folder: verl would write into the one that it was started in.
    named = str(verl[FOLDER] or f"checkpoints/{verl[PROJECT]}/{verl[EXPERIMENT]}")
    begin_or_resume(
        to,
        Path(named).expanduser(),
        mode=verl[resuming.MODE],
        resume_from=verl[resuming.FROM],
        source=FOLDER,
    )


def saving(verl: VerlConfig, to: Translation) -> None:
    every = max(int(verl[SAVE_EVERY] or 0), 0)
    to.set("checkpoint.every", every, SAVE_EVERY)
    to.set("checkpoint.minutes", 0, SAVE_EVERY)
    to.set("checkpoint.keep", verl[KEEP] or keep_all(every, data.steps(verl)), KEEP)


def judging(verl: VerlConfig, to: Translation) -> None:
    """A fully asynchronous run counts the times that engines get new weights, each after several updates."""
    key = EVAL_EVERY if verl[ROUNDS] is None else ROUNDS
    every = max(int(verl[key] or 0), 0)
    sources: tuple[str, ...] = (key,)
    if data.fully_async(verl):
        every, sources = every * verl.number(SYNCED), (key, SYNCED)
    to.set("eval.every", every, *sources)
    to.set("eval.at_start", bool(verl[FIRST]), FIRST)


def evaluated_only(verl: VerlConfig, to: Translation) -> None:
    if verl.is_set("trainer.val_only"):
        ours = "toolwright eval, and nothing is learned" if verl["trainer.val_only"] else "toolwright train"
        to.note(f"{ours}", "trainer.val_only")


def loggers(verl: VerlConfig, to: Translation) -> None:
    said = verl[LOGGER] if verl.is_set(LOGGER) else []  # verl's default would ask for an account
    names = [str(name) for name in (said if isinstance(said, list) else [said])]
    known = Registered("tracker", "toolwright.observe.trackers").names()
    trackers: dict[str, dict[str, Any]] = {name: {} for name in names if name in known}
    for name, project in PROJECTS.items():
        if name in trackers:
            trackers[name] = {project: str(verl[PROJECT]), "name": str(verl[EXPERIMENT])}
    to.set("trackers", trackers, LOGGER, PROJECT, EXPERIMENT)
    if others := [name for name in names if name not in known and name not in ("console", "file")]:
        to.note(f"{LOGGER}: there is no tracker {', '.join(others)}; see the run's metrics.jsonl")
