"""From a configuration to a crew: the tasks that fit, what every role is told, and who is needed where."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from toolwright import tasks as task_sets
from toolwright.agents.agent_set import AgentSet
from toolwright.agents.rollout import most_turns
from toolwright.config import schema
from toolwright.config.auto import decided
from toolwright.failures import InfrastructureFailure, UserError
from toolwright.models.tokenizer import Tokenizer
from toolwright.runtime.roles import Roles
from toolwright.tools.settings import Settings, settings_of
from toolwright.trainer import defaults, memory, roles
from toolwright.trainer.members import RoleContext, wanted_roles
from toolwright.trainer.role_config import RoleConfig
from toolwright.trajectory import Task


@dataclass(frozen=True)
class PreparedRun:
    brief: RoleConfig
    train: list[Task]
    held_out: list[Task]
    skipped: int  # training prompts that are too long
    skipped_held_out: int
    decided: tuple[str, ...]  # lines about what was `auto`


def prepare(config: schema.Config, tools: Settings | None = None, *, learns: bool = True) -> PreparedRun:
    """What is `auto` in the configuration is decided here. `tools`: their settings; without it, as the
    configuration has them. `learns`: training tasks are needed as well."""
    tasks = task_sets.load(config.task, seed=config.run.seed, learns=learns)
    tools = settings_of(config) if tools is None else tools
    alphabet = roles.alphabet(tasks, tools)
    roles.context_of(config.model)  # first of all it must be a model's folder
    tokenizer = roles.build_tokenizer(config.model, alphabet)
    opening = asyncio.run(_openings(config.rollout, tokenizer, tools))
    asked = tasks.train if learns else ()
    texts = [[opening(task) for task in found] for found in (asked, tasks.held_out)]
    known = defaults.depends_on_prompts(config)
    made = defaults.decide(
        config,
        prompt=roles.longest([*texts[0], *texts[1]], tokenizer) if known else 0,
        turns=most_turns(config.rollout, tools, asked or tasks.held_out),
        learns=learns,
    )
    config = made.config
    limit = decided(config.task.max_prompt_tokens, "task.max_prompt_tokens")
    train, held_out = (
        roles.fitting(found, said, config.task, tokenizer, limit=limit, remedy=made.remedy)
        for found, said in zip((asked, tasks.held_out), texts, strict=True)
    )
    turns = most_turns(config.rollout, tools, train if learns else held_out)
    return PreparedRun(
        brief=RoleConfig(config, tools, alphabet=alphabet, scorer=tasks.scorer, max_turns=turns),
        train=train,
        held_out=held_out,
        skipped=len(asked) - len(train),
        skipped_held_out=len(tasks.held_out) - len(held_out),
        decided=made.lines,
    )


async def _openings(
    config: schema.RolloutConfig, tokenizer: Tokenizer, tools: Settings
) -> Callable[[Task], str]:
    cast = AgentSet(config, tokenizer, tools=tools)
    try:
        return await cast.openings()
    except InfrastructureFailure as error:
        raise UserError(str(error)) from error  # before the first step, nothing is worth another try
    finally:
        await cast.tools.close()


def assembled(brief: RoleConfig, *, learns: bool = True) -> Roles:
    """The crew of `runtime.name`; one that does not learn has no policy, reference and critic."""
    if brief.config.runtime.name == "ray":
        from toolwright.runtime.cluster import ClusterRoles

        needed = wanted_roles(brief.config) if learns else ["reward", "rollout"]
        return ClusterRoles(brief, brief.config, needed, members="toolwright.trainer.staffing:staffed")
    from toolwright.runtime.local import LocalRoles

    fitted = replace(brief, config=memory.fitted(brief.config, learns=learns))
    return LocalRoles(RoleContext(fitted), learns=learns)
