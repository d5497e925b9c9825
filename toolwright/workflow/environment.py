"""Workflows as a world: a state is seen, an edit is answered, a gain in score is earned.

What a workflow scores is simulated, so that a policy learns to edit without paying anybody.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from toolwright.failures import UserError
from toolwright.tasks import ENVIRONMENTS, InvalidAction, Observation, Outcome
from toolwright.trajectory import Task

if TYPE_CHECKING:
    from toolwright.workflow.evaluate import Evaluator
    from toolwright.workflow.program import Workflow
    from toolwright.workflow.sites import SimulatedSite
    from toolwright.workflow.state import WorkflowState

FAULT = -0.05  # what an edit that cannot be made costs, in points of score
MOST_KEPT = 20_000


@ENVIRONMENTS.register("workflow")
class WorkflowWorld:
    """`world`: which simulated model and data set; `edits`: those that lead from a single call to where it
    begins; `turns`: after so many it is over, as it is after `accept`; `tasks`: behind a score."""

    def __init__(self, world: int, edits: Sequence[str] = (), turns: int = 3, tasks: int = 32) -> None:
        from toolwright.workflow.sites import SimulatedSite

        self.site = SimulatedSite(seed=world, count=tasks)
        self.left = turns
        self.workflow = started(edits)
        self.base = self.score = 0.0

    async def reset(self, task: Task) -> Observation:
        self.base = await expected(self.site, started())
        self.score = await expected(self.site, self.workflow)
        return Observation(self.state.text, self.state.anchor)

    async def step(self, action: str) -> Outcome:
        self.left -= 1
        over = self.left <= 0
        if action == "accept":
            return self._outcome(0.0, done=True)
        made = edited(self.site, self.workflow, action)
        if made is None:
            if over:
                return self._outcome(FAULT, done=True)
            raise InvalidAction(self.state.text, reward=FAULT)
        self.workflow = made
        before, self.score = self.score, await expected(self.site, self.workflow)
        return self._outcome(self.score - before, done=over)

    def close(self) -> None:
        pass

    @property
    def state(self) -> WorkflowState:
        from toolwright.workflow.state import WorkflowState

        return WorkflowState(self.site.setting, self.site.kind, self.workflow, self.score, self.base)

    def _outcome(self, reward: float, *, done: bool) -> Outcome:
        better = {"success": self.score > self.base}
        return Outcome(self.state.text, reward, done, self.state.anchor, better)


def started(edits: Sequence[str] = ()) -> Workflow:
    """A single call, edited."""
    from toolwright.workflow.apply import applied
    from toolwright.workflow.edits import parse
    from toolwright.workflow.program import single_call
    from toolwright.workflow.simulate import PROMPTS

    workflow = single_call()
    for text in edits:
        workflow = applied(workflow, parse(text), PROMPTS)
    return workflow


def edited(site: SimulatedSite, workflow: Workflow, action: str) -> Workflow | None:
    """What the edit makes: another workflow that may run, or None."""
    from toolwright.workflow.apply import applied
    from toolwright.workflow.edits import parse

    try:
        made = applied(workflow, parse(action), site.prompts)
    except UserError:
        return None
    return None if made.problems(site.limits) or made.meaning == workflow.meaning else made


# Attempts come by the same workflows again and again.
_edits: dict[str, dict[str, Workflow]] = {}
_scores: dict[tuple[Any, str], float] = {}


def legal(site: SimulatedSite, workflow: Workflow) -> dict[str, Workflow]:
    """What can be done, as words, and what it makes."""
    from toolwright.workflow.propose import Editor

    key = json.dumps(workflow.to_json(), sort_keys=True)
    if key not in _edits:
        if len(_edits) > MOST_KEPT:
            _edits.clear()
        _edits[key] = Editor(site.operators, site.prompts, site.limits).edits(workflow)
    return _edits[key]


async def expected(site: SimulatedSite, workflow: Workflow) -> float:
    """Its mean score on the world's tasks."""
    key = site, workflow.meaning
    if key not in _scores:
        if len(_scores) > MOST_KEPT:
            _scores.clear()
        evaluator, tasks = _opened(site)
        made = await evaluator.evaluate(workflow, tasks)
        _scores[key] = fmean(outcome.score for outcome in made)
    return _scores[key]


@functools.lru_cache(maxsize=512)
def _opened(site: SimulatedSite) -> tuple[Evaluator, Sequence[Task]]:
    return site.open()(0), site.tasks()
