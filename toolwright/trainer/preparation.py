"""Preparation of a run: decide `auto` values, drop tasks that do not fit, collect the data for roles."""

from __future__ import annotations

import asyncio
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolwright import tasks as task_sets
from toolwright.agents.rollout import most_turns
from toolwright.config import schema
from toolwright.config.block import require_number
from toolwright.failures import UserError
from toolwright.images import images_in
from toolwright.models.tokenizer import Tokenizer
from toolwright.tasks import TaskSet
from toolwright.tools.settings import Settings, settings_of
from toolwright.trainer import building, defaults, preference, recorded
from toolwright.trainer.process_reward import check_process_reward
from toolwright.trainer.role_config import RoleConfig
from toolwright.trainer.teacher import check_length, check_teacher
from toolwright.trajectory import Task

COUNTED = 1024  # texts tokenised at a time


@dataclass(frozen=True)
class PreparedRun:
    role_config: RoleConfig
    tokenizer: Tokenizer
    train: list[Task]
    held_out: list[Task]
    skipped: int  # training prompts that are too long
    skipped_held_out: int
    decided: tuple[str, ...]  # lines about what was `auto`


def prepare(config: schema.Config, *, learns: bool = True) -> PreparedRun:
    """Decide every `auto` of the configuration. With `learns`, training tasks are loaded too."""
    tasks = task_sets.load(config.task, seed=config.run.seed, learns=learns)
    tools = settings_of(config)
    if learns and (config.algorithm.preference is not None or recorded.is_recorded(tasks)):
        return _prepare_answers(config, tools, tasks)
    _check_images(config, [*tasks.train, *tasks.held_out])
    known_characters = alphabet(tasks, tools)
    building.context_of(config.model)  # first of all it must be a model's folder
    tokenizer = building.build_tokenizer(config.model, known_characters)
    if learns:
        check_teacher(config, tokenizer)
        check_process_reward(config, tokenizer)
    opening = asyncio.run(_openings(config.rollout, tokenizer, tools))
    training = tasks.train if learns else ()
    texts = [[opening(task) for task in found] for found in (training, tasks.held_out)]
    known = defaults.depends_on_prompts(config)
    settled = defaults.decide(
        config,
        prompt=longest([*texts[0], *texts[1]], tokenizer) if known else 0,
        turns=most_turns(config.rollout, tools, training or tasks.held_out),
        learns=learns,
    )
    config = settled.config
    if learns:
        check_length(config)
    limit = require_number(config.task.max_prompt_tokens, "task.max_prompt_tokens")
    train, held_out = (
        fitting(found, openings, config.task, tokenizer, limit=limit, remedy=settled.remedy)
        for found, openings in zip((training, tasks.held_out), texts, strict=True)
    )
    turns = most_turns(config.rollout, tools, train if learns else held_out)
    return PreparedRun(
        role_config=RoleConfig(config, tools, known_characters, tasks.scorer, max_turns=turns),
        tokenizer=tokenizer,
        train=train,
        held_out=held_out,
        skipped=len(training) - len(train),
        skipped_held_out=len(tasks.held_out) - len(held_out),
        decided=settled.lines,
    )


def _check_images(config: schema.Config, tasks: Sequence[Task]) -> None:
    """Raise a UserError if prompts have images and some part of the run cannot take them."""
    shown = next((task for task in tasks if images_in(task.prompt)), None)
    if shown is None:
        return
    if config.model.path is None:
        raise UserError(f"task {shown.id} has images: set model.path to the folder of a vision model")
    if config.engine.name != "native":
        raise UserError(
            f"task {shown.id} has images: engine.name={config.engine.name} does not take them; use "
            "engine.name=native"
        )
    if config.runtime.placement.policy.layout.size > 1:
        raise UserError(
            f"task {shown.id} has images: a vision model cannot be divided; set "
            "runtime.placement.policy.ranks=1"
        )


def _prepare_answers(config: schema.Config, tools: Settings, tasks: TaskSet) -> PreparedRun:
    """Prepare a run on answers of the data. Answers that are too long are skipped whole."""
    by_labels = config.algorithm.preference is not None
    config, tasks = (preference if by_labels else recorded).arranged(config, tasks)
    known_characters = alphabet(tasks, tools)
    building.context_of(config.model)  # first of all it must be a model's folder
    tokenizer = building.build_tokenizer(config.model, known_characters)
    every = [*tasks.train, *tasks.held_out]
    if not by_labels:
        recorded.check_tokenizer(every, tokenizer)
    tokens = preference.lengths(config, tokenizer, tools, every)
    settled = defaults.decide(config, prompt=0, turns=1, demonstration=max(tokens))
    config = settled.config
    context = require_number(config.model.context, "model.context")
    fits = dict(zip(map(id, every), (length <= context for length in tokens), strict=True))
    train, held_out = ([t for t in found if fits[id(t)]] for found in (tasks.train, tasks.held_out))
    if not train or (config.task.long_prompts == "error" and not all(fits.values())):
        least, most = min(tokens), max(tokens)
        raise UserError(
            f"prompts and answers have {least:,} to {most:,} tokens, and {sum(fits.values()):,} of "
            f"{len(every):,} fit into model.context={context}; raise it, or shorten them"
        )
    return PreparedRun(
        role_config=RoleConfig(config, tools, known_characters, tasks.scorer, max_turns=1),
        tokenizer=tokenizer,
        train=train,
        held_out=held_out,
        skipped=len(tasks.train) - len(train),
        skipped_held_out=len(tasks.held_out) - len(held_out),
        decided=settled.lines,
    )


async def _openings(
    config: schema.RolloutConfig, tokenizer: Tokenizer, tools: Settings
) -> Callable[[Task], str]:
    async with building.agents_before_run(config, tokenizer, tools) as agents:
        return await agents.openings()


def alphabet(tasks: TaskSet, tools: Mapping[str, Any]) -> str:
    """Return the characters that a fresh tokenizer must know. A tool may answer with any printable
    character."""
    return tasks.alphabet + (string.printable if tools else "")


def longest(texts: Sequence[str], tokenizer: Tokenizer) -> int:
    """Count the tokens of the longest text. Every token has at least one byte, so short texts need not be
    tokenised."""
    most, left = 0, sorted(texts, key=lambda text: len(text.encode()), reverse=True)
    while left and len(left[0].encode()) > most:
        most = max(most, *tokenizer.lengths(left[:COUNTED]))
        left = left[COUNTED:]
    return most


def fitting(
    found: Sequence[Task],
    texts: Sequence[str],
    config: schema.TaskConfig,
    tokenizer: Tokenizer,
    *,
    limit: int,
    remedy: str,
) -> list[Task]:
    """Return the tasks whose opening (`texts`) is short enough. `task.long_prompts` decides whether a longer
    one is skipped, cut when it is attempted, or an error. `remedy` is the suggestion if all of them are too
    long."""
    kept, least = [], 0
    lengths = [len(text.encode()) for text in texts]
    unsure = [index for index, length in enumerate(lengths) if length > limit]
    for index, length in zip(unsure, tokenizer.lengths([texts[i] for i in unsure]), strict=True):
        lengths[index] = length
    for task, length in zip(found, lengths, strict=True):
        if length > limit:
            if config.long_prompts == "error":
                raise UserError(
                    f"task {task.id}: its prompt is longer than {limit} tokens, it has {length}, "
                    "tools included; raise task.max_prompt_tokens or set task.long_prompts=skip"
                )
            if config.long_prompts == "skip":
                least = min(least or length, length)
                continue
        kept.append(task)
    if found and not kept:
        raise UserError(
            f"every prompt is longer than {limit} tokens, the shortest has {least}, tools included; "
            f"{remedy}, or shorten the text about tools with rollout.tool_prompt"
        )
    return kept
