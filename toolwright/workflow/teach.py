"""A small policy taught from nothing: first the language, then, by reinforcement, what is worth saying."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

from toolwright.failures import UserError
from toolwright.workflow.environment import expected, legal, started
from toolwright.workflow.language import fresh
from toolwright.workflow.pool import Experience, ExperiencePool
from toolwright.workflow.propose import Editor
from toolwright.workflow.simulate import PROMPTS
from toolwright.workflow.sites import SimulatedSite
from toolwright.workflow.state import WorkflowState

WARM, WARM_STEPS = ("batch=32", "optimizer.lr=3e-3", "task.held_out_size=8"), 150
LESSON = (
    "update.epochs=4",
    "update.minibatches=4",
    "update.policy.lr=1e-3",
    "algorithm.params.gigpo.mode=mean_std_norm",
)
FIRST_WORLD = 20_000  # of those that are learned from
WORLDS, LESSONS, TASKS, DEPTH = 12, 5, 32, 3  # worlds a lesson, lessons, tasks behind a score, edits away


def teach(
    folder: Path,
    words: Sequence[str] = (),
    *,
    seed: int = 0,
    warm: int = WARM_STEPS,
    lessons: int = LESSONS,
    worlds: int = WORLDS,
) -> Path:
    """`folder/warm/model` speaks the language: `sft task=workflow`, random legal edits. `folder/model` has
    then seen, in simulated worlds, what every edit of a state gains, and learned it by GiGPO: groups by
    state, step rewards from gains. The words are the trainer's: update.policy.lr=3e-4, …"""
    from toolwright.workflow.policy import EditPolicy, configured

    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is there already; name another folder")
    began = fresh(folder / "fresh", seed=seed, prompts=PROMPTS)
    spoken = speaking(began, folder, seed=seed, steps=warm)
    said = {word.partition("=")[0] for word in words}
    own = [word for word in LESSON if word.partition("=")[0] not in said]
    site = SimulatedSite(seed=FIRST_WORLD, count=TASKS)
    editor = Editor(site.operators, site.prompts, site.limits)
    policy = EditPolicy(configured(spoken, [*own, *words], seed=seed), editor, every=0)
    pool = ExperiencePool(folder / "pool.db")
    for lesson in range(lessons):
        first = FIRST_WORLD + (seed * lessons + lesson) * worlds
        tried = asyncio.run(explored(range(first, first + worlds)))
        pool.learn(tried)
        told = policy.lesson(tried)
        print(
            f"lesson {lesson + 1}/{lessons}: {len(tried)} edits, loss {told['policy/loss']:.4f}", flush=True
        )
    policy.save(folder / "model")
    return folder / "model"


def speaking(model: Path, folder: Path, *, seed: int, steps: int) -> Path:
    """The model, taught the language of edits: `sft task=workflow`, a run in `folder` called `warm`."""
    from toolwright.cli import main

    run = [f"run.seed={seed}", f"run.dir={folder}", "run.name=warm", f"model.path={model}"]
    if main(["sft", "task=workflow", f"steps={steps}", *WARM, *run]):
        raise UserError("the policy could not be taught its language; the message above says why")
    return folder / "warm/model"


async def explored(worlds: Sequence[int]) -> list[Experience]:
    """Every edit of some states of each world, on a walk from a single call: to the best edit, or to any."""
    found: list[Experience] = []
    for world in worlds:
        rng = random.Random(f"explored {world}")
        site = SimulatedSite(seed=world, count=TASKS)
        workflow, base = started(), await expected(site, started())
        for _ in range(1 + rng.randint(0, DEPTH)):
            before = await expected(site, workflow)
            state = WorkflowState(site.setting, site.kind, workflow, before, base)
            edits = legal(site, workflow)
            after = {edit: await expected(site, made) for edit, made in edits.items()}
            found += [
                Experience(
                    search=f"explored {world}",
                    number=len(found) + place,
                    setting=site.setting,
                    anchor=state.anchor,
                    state=state.text,
                    edit=edit,
                    parent=workflow.meaning,
                    child=edits[edit].meaning,
                    before=before,
                    after=score,
                    tasks=TASKS,
                )
                for place, (edit, score) in enumerate(after.items())
            ]
            chosen = max(after, key=lambda e: after[e]) if rng.random() < 0.6 else rng.choice(list(after))
            workflow = edits[chosen]
    return found
