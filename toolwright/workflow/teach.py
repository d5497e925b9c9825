"""A small policy taught from nothing: first the language, then, by reinforcement, what is worth saying."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from toolwright.failures import UserError
from toolwright.workflow.language import fresh
from toolwright.workflow.simulate import PROMPTS

WARM = ("steps=150", "batch=32", "optimizer.lr=3e-3", "task.held_out_size=8")
REINFORCED = (
    "train.steps=45",
    "rollout.prompts=16",
    "rollout.samples=8",
    "update.policy.lr=1e-3",
    "eval.every=0",
    "task.held_out_size=16",
    "task.params.turns=2",
    "task.params.depth=3",
    "algorithm.params.gigpo.mode=mean_std_norm",
    # Close to the language as it was taught: a prior that knows three edits is of no use to a search.
    "algorithm.kl.coef=0.05",
)


def teach(folder: Path, words: Sequence[str] = (), *, seed: int = 0) -> Path:
    """`folder/warm/model` speaks the language, `folder/model` has learned by GiGPO on simulated worlds. The
    words are the trainer's: train.steps=200, algorithm=grpo, …"""
    from toolwright.cli import main

    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is there already; name another folder")
    fresh(folder / "fresh", seed=seed, prompts=PROMPTS)
    common = ["task=workflow", f"run.seed={seed}", f"run.dir={folder}"]
    _done(main(["sft", *common, *WARM, f"model.path={folder / 'fresh'}", "run.name=warm"]))
    named = {word.partition("=")[0]: word for word in (*REINFORCED, *words)}
    algorithm = named.pop("algorithm", "algorithm=gigpo")
    own = [f"model.path={folder / 'warm/model'}", "run.name=reinforced"]
    _done(main(["train", algorithm, *common, *named.values(), *own]))
    (folder / "reinforced/model").rename(folder / "model")
    return folder / "model"


def _done(status: int) -> None:
    if status:
        raise UserError("the policy could not be taught; the message above says why")
