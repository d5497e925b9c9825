"""Answers from the data instead of sampled ones: attempt i at a task is its i-th answer.

Answers that a served model recorded keep the tokens that it sampled. Others are written with the code that
writes demonstrations. Turns of the prompt are context, also those of the assistant. The assistant's turns in
the answer are actions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from toolwright.agents import Agent, registry
from toolwright.agents.attempt import Attempt
from toolwright.agents.auto import choice
from toolwright.agents.demonstration import Demonstrator, demonstrator_like
from toolwright.config import schema
from toolwright.models.tokenizer import Tokenizer
from toolwright.tasks import record_folder
from toolwright.tasks.preferences import ANSWERS, TOOLS
from toolwright.tools.toolbox import Toolbox
from toolwright.trajectory import Task, Trajectory


@registry.register("recorded")
class RecordedAnswers:
    """Needs no engine. The label of an answer is the reward of its last step."""

    def __init__(
        self,
        config: schema.RolloutConfig,
        tools: Toolbox,
        tool_settings: Mapping[str, Mapping[str, Any]],
        tokenizer: Tokenizer,
        agents: Callable[[str], Agent],
    ) -> None:
        self.config, self.tools, self.tokenizer = config, tools, tokenizer
        self.like = agents(choice(Task("", []), tool_settings))
        self._demonstrator: Demonstrator | None = None

    async def attempt(self, attempt: Attempt) -> None:
        answer = attempt.task.extra_info[ANSWERS][attempt.trajectory.index]
        if "turns" in answer:  # as a served model sampled them
            segments = record_folder.written(answer["turns"])
        else:
            segments = (await self.written(attempt.task, attempt.trajectory.index)).segments
        for segment in segments:
            attempt.trajectory.append(segment)
        attempt.finish("done")

    async def length(self, task: Task, index: int) -> int:
        """Count the tokens of the prompt and this answer."""
        known = task.extra_info[ANSWERS][index].get("tokens")
        return len((await self.written(task, index)).tokens) if known is None else int(known)

    async def written(self, task: Task, index: int) -> Trajectory:
        """Return the prompt and this answer as tokens."""
        if self._demonstrator is None:
            self._demonstrator = await demonstrator_like(self.like, self.config, self.tokenizer, self.tools)
        schemas = task.extra_info.get(TOOLS)
        writer = self._demonstrator if schemas is None else self._demonstrator.offering(schemas)
        answer = task.extra_info[ANSWERS][index]
        messages = [*task.prompt, *answer["messages"]]
        made = writer.trajectory(task.id, messages, given=len(task.prompt))
        made.steps[-1].reward = float(answer["label"])
        return made
