"""A policy that edits workflows: its probabilities are a search's prior, what the search finds is its lesson.

It reads a state and writes an edit, as text; any model folder will do. It is the trainer's own policy,
learner and algorithm: a lesson is a batch of trajectories, one edit each, grouped by data set, anchored at
the state that was edited, rewarded by what was gained.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from toolwright.batch import Batch
from toolwright.config import schema
from toolwright.config.compose import Source, resolve
from toolwright.learner.policy import Frozen
from toolwright.trainer import building
from toolwright.trainer.learning import Learner
from toolwright.trajectory import Segment, Task, Trajectory
from toolwright.workflow.pool import Experience
from toolwright.workflow.program import Workflow
from toolwright.workflow.propose import Editor
from toolwright.workflow.state import WorkflowState
from toolwright.workflow.tree import Proposal

FLOOR = 0.1  # of the prior that is uniform: no policy is sure enough to forbid an edit
MOST_LESSON = 64  # edits in one lesson, the latest


def configured(folder: Path, words: Sequence[str] = (), *, seed: int = 0) -> schema.Config:
    """The trainer's configuration of a policy in a search: `algorithm=gigpo` unless words say otherwise."""
    own = [f"model.path={folder}", f"run.seed={seed}", "model.device=cpu", "rollout.samples=2"]
    given = [word for word in words if not word.startswith("algorithm=")]
    algorithm = [word for word in words if word.startswith("algorithm=")] or ["algorithm=gigpo"]
    config = resolve(Source(), [*algorithm, "task=workflow", *own, *given]).config
    assert isinstance(config, schema.Config)
    return config


class EditPolicy:
    """`every`: how many edits are tried between two lessons; 0: it is asked and never taught. `relative`: its
    prior is what it has learned since it began, for one that began with random weights and would else prefer
    whatever is short."""

    def __init__(
        self, config: schema.Config, editor: Editor, *, every: int = 8, relative: bool = False
    ) -> None:
        self.config, self.editor, self.every, self.relative = config, editor, every, relative
        decoder, self.tokenizer = building.build_model(config.model, "", seed=config.run.seed)
        building.use_processor(config.run, decoder)
        self.learner = Learner(config, decoder, max_turns=config.rollout.max_turns)
        self.began = Frozen.copy_of(self.learner.policy) if relative else self.learner.policy
        self.lessons = 0
        self._tried: dict[tuple[str, int], Experience] = {}
        self._since = 0

    async def propose(self, state: WorkflowState, again: int) -> Sequence[Proposal]:
        if again:
            return []
        edits = self.editor.edits(state.workflow)
        return offered(edits, self.chances(state.text, list(edits))) if edits else []

    def chances(self, text: str, edits: Sequence[str]) -> np.ndarray:
        """How likely the policy is to write each of them, given that it writes one of them."""
        tried = [self._trajectory(text, edit, number=i) for i, edit in enumerate(edits)]
        batch = Batch.pack(tried)
        log_probs = self.learner.policy.statistics(batch)["log_prob"].double()
        if self.relative:
            log_probs = log_probs - self.began.statistics(batch)["log_prob"].double()
        owner = torch.arange(len(batch)).repeat_interleave(torch.tensor(batch.action_lengths))
        whole = torch.zeros(len(batch), dtype=torch.float64).index_add(0, owner, log_probs.cpu())
        return whole.softmax(0).numpy()

    def learn(self, experiences: Sequence[Experience]) -> Mapping[str, float]:
        fresh = [one for one in experiences if one.edit and (one.search, one.number) not in self._tried]
        self._since += len(fresh)
        self._tried.update({(one.search, one.number): one for one in experiences if one.edit})
        if not self.every or self._since < self.every:
            return {}
        self._since = 0
        return self.lesson(list(self._tried.values())[-MOST_LESSON:])

    def lesson(self, experiences: Sequence[Experience]) -> dict[str, float]:
        """One step of the ordinary learner. Where no state saw two edits and none differ, there is none."""
        gains = {round(one.gain, 6) for one in experiences}
        if len(gains) < 2:
            return {}
        tried = [
            self._trajectory(one.state, one.edit, number=i, experience=one)
            for i, one in enumerate(experiences)
        ]
        self.lessons += 1
        return self.learner.learn(tried, self.lessons, exact=False, baselines={})

    def save(self, folder: Path) -> None:
        self.learner.policy.export(folder)
        self.tokenizer.save(folder)

    def _trajectory(
        self, text: str, edit: str, *, number: int, experience: Experience | None = None
    ) -> Trajectory:
        """As the environment loop would have left it: the state said, one edit answered."""
        opened = self.tokenizer.opening(messages(text))
        written = [*self.tokenizer.encode_inside(edit), self.tokenizer.end]
        group, anchor, gain = "asked", None, 0.0
        if experience is not None:
            group, anchor, gain = experience.setting, experience.anchor, experience.gain
        trajectory = Trajectory(Task(id=group, prompt=[]), group, index=number, reward=gain)
        trajectory.append(Segment("prompt", opened.tokens, text=opened.text))
        step = Segment("policy", written, [0.0] * len(written), edit, reward=gain, anchor=anchor)
        trajectory.append(step)
        return trajectory


def offered(edits: Mapping[str, Workflow], chances: Iterable[float]) -> list[Proposal]:
    """Every edit with its prior: how likely it is beside one of a uniform choice."""
    priors = [(1 - FLOOR) * len(edits) * float(chance) + FLOOR for chance in chances]
    return [Proposal(edit, made, prior) for (edit, made), prior in zip(edits.items(), priors, strict=True)]


def messages(text: str) -> list[dict[str, Any]]:
    """What the policy is told: no instructions, the state. The same as a task of the trainer's."""
    return [{"role": "system", "content": ""}, {"role": "user", "content": text}]
