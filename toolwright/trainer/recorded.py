"""Offline runs on scored answers of a served model, weighted by how likely they are now.

They use the same loop as other runs. Instead of sampling, the agent `recorded` writes the recorded answers
token by token. The policy has changed since, so each token is weighted by π / π_recorded
(`algorithm.correction`).
"""

from __future__ import annotations

import logging
from dataclasses import replace

from toolwright.algorithms import advantages, needs
from toolwright.config import schema
from toolwright.failures import UserError
from toolwright.models.tokenizer import Tokenizer
from toolwright.tasks import TaskSet
from toolwright.tasks.preferences import ANSWERS
from toolwright.trainer.preference import without_sampling
from toolwright.trajectory import Task

log = logging.getLogger(__name__)


def is_recorded(tasks: TaskSet) -> bool:
    return any(ANSWERS in task.extra_info for task in tasks.train)


def arranged(config: schema.Config, tasks: TaskSet) -> tuple[schema.Config, TaskSet]:
    """Return tasks with `rollout.samples` answers to one prompt each, and a configuration that samples
    nothing."""
    estimator, size = config.algorithm.adv_estimator, config.rollout.samples
    if "greedy_attempt" in needs.required(estimator):
        raise UserError(f"algorithm.adv_estimator={estimator} needs greedy attempts, but a record has none")
    if size == 1 and "group" in advantages.registry.get(estimator).parameters:
        raise UserError(
            f"algorithm.adv_estimator={estimator} compares answers to one prompt: set rollout.samples to how "
            "many, or algorithm=reinforce_plus_plus, which compares all"
        )
    temperature = config.rollout.temperature
    train, found, others = [], 0, set[float]()
    for task in tasks.train:
        answers = [one for one in task.extra_info[ANSWERS] if one["temperature"] == temperature]
        others.update(one["temperature"] for one in task.extra_info[ANSWERS])
        found += len(task.extra_info[ANSWERS])
        for start in range(0, len(answers) - size + 1, size):
            train.append(
                replace(
                    task,
                    id=f"{task.id}/{start // size}",
                    extra_info={**task.extra_info, ANSWERS: answers[start : start + size]},
                )
            )
    used = len(train) * size
    if used == 0:
        known = ", ".join(f"{one:g}" for one in sorted(others))
        raise UserError(
            f"none of the {found} scored answers can be used. They were sampled at temperature {known}, and "
            f"rollout.temperature={temperature:g} must be the same and above 0. rollout.samples={size} "
            "answers must have the same prompt"
        )
    if used < found:
        log.warning(
            "%d of %d scored answers are left out: not sampled at rollout.temperature=%g, or fewer than "
            "rollout.samples=%d to their prompt",
            found - used,
            found,
            temperature,
            size,
        )
    return without_sampling(config, samples=size), replace(tasks, train=train)


def check_tokenizer(tasks: list[Task], tokenizer: Tokenizer) -> None:
    """Raise a UserError if the record was made with another tokenizer."""
    own = tokenizer.fingerprint
    if any(one["tokenizer"] != own for task in tasks for one in task.extra_info[ANSWERS]):
        raise UserError(
            "the record has answers of a model with another tokenizer: set model.path to the model that was "
            "served, or to one trained from it"
        )
