"""From a configuration to a crew: the tasks that fit, what every role is told, and who is needed where."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from toolwright import tasks as task_sets
from toolwright.agents.cast import Cast
from toolwright.agents.rollout import most_turns
from toolwright.config import schema
from toolwright.failures import InfrastructureFailure, UserError
from toolwright.models.tokenizer import Tokenizer
from toolwright.runtime.crew import Crew
from toolwright.tools.settings import Settings, settings_of
from toolwright.trainer import memory, roles
from toolwright.trainer.brief import Brief
from toolwright.trainer.members import Workplace, wanted_roles
from toolwright.trajectory import Task


@dataclass(frozen=True)
class Prepared:
    brief: Brief
    train: list[Task]
    held_out: list[Task]
    skipped: int  # training prompts that are too long
    skipped_held_out: int


def prepare(config: schema.Config, tools: Settings | None = None, *, learns: bool = True) -> Prepared:
    """`tools`: their settings; without it, as the configuration has them. `learns`: training tasks are
    needed as well."""
    tasks = task_sets.load(config.task, seed=config.run.seed, learns=learns)
    tools = settings_of(config) if tools is None else tools
    alphabet = roles.alphabet(tasks, tools)
    whole = min(filter(None, (roles.context_of(config.model), config.rollout.max_total_tokens)))
    limit = min(config.task.max_prompt_tokens, whole - 1)
    tokenizer = roles.build_tokenizer(config.model, alphabet)
    opening = asyncio.run(_openings(config.rollout, tokenizer, tools))
    asked = tasks.train if learns else ()
    train, held_out = (
        roles.fitting(list(found), config.task, tokenizer, opening, limit=limit)
        for found in (asked, tasks.held_out)
    )
    turns = most_turns(config.rollout, tools, train if learns else held_out)
    return Prepared(
        brief=Brief(config, tools, alphabet=alphabet, scorer=tasks.scorer, max_turns=turns),
        train=train,
        held_out=held_out,
        skipped=len(asked) - len(train),
        skipped_held_out=len(tasks.held_out) - len(held_out),
    )


async def _openings(config: schema.Rollout, tokenizer: Tokenizer, tools: Settings) -> Callable[[Task], str]:
    cast = Cast(config, tokenizer, tools=tools)
    try:
        return await cast.openings()
    except InfrastructureFailure as error:
        raise UserError(str(error)) from error  # before the first step, nothing is worth another try
    finally:
        await cast.tools.close()


def assembled(brief: Brief, *, learns: bool = True) -> Crew:
    """The crew of `runtime.name`; one that does not learn has no policy, reference and critic."""
    if brief.config.runtime.name == "ray":
        from toolwright.runtime.cluster import ClusterCrew

        needed = wanted_roles(brief.config) if learns else ["reward", "rollout"]
        return ClusterCrew(brief, brief.config, needed, members="toolwright.trainer.staffing:staffed")
    from toolwright.runtime.local import LocalCrew

    fitted = replace(brief, config=memory.fitted(brief.config, learns=learns))
    return LocalCrew(Workplace(fitted), learns=learns)
