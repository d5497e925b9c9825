"""A policy that edits workflows: its probabilities are the search's prior, and the search trains it.

It reads a state and writes an edit, as text; any model folder will do. It is the trainer's own policy,
learner and algorithm: an update is a batch of trajectories, one edit each, grouped by data set, anchored at
the state that was edited, rewarded by the gain. `serve_policy` puts it behind an endpoint of the search's
own, which is called through OpenAI's SDK like any provider. Server and learner hold the same tensors, so the
next answer knows what an update has changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from toolwright.agents import formats
from toolwright.batch import Batch
from toolwright.config import schema
from toolwright.config.compose import Source, resolve
from toolwright.engines.native.engine import NativeEngine
from toolwright.engines.thread import InThread
from toolwright.learner.policy import Frozen
from toolwright.providers import ChatModel, close, open_chat
from toolwright.providers.local import LocalModel
from toolwright.providers.settings import ChatSettings, Price
from toolwright.serve.app import ServeApp
from toolwright.serve.service import ModelService
from toolwright.trainer import building, defaults
from toolwright.trainer.learning import Learner
from toolwright.trajectory import Segment, Task, Trajectory
from toolwright.web import serving
from toolwright.web.callers import Callers
from toolwright.workflow.interpreter import seed_of
from toolwright.workflow.pool import Experience, ExperiencePool
from toolwright.workflow.program import Workflow
from toolwright.workflow.proposers import Editor, WorkflowState
from toolwright.workflow.tree import Proposal

FLOOR = 0.1  # the uniform part of the prior: no edit gets a prior of 0
MOST_LESSON = 64  # edits in one lesson, the latest


def configured(folder: Path, words: Sequence[str] = (), *, seed: int = 0) -> schema.Config:
    """The trainer's configuration of a policy in a search: `algorithm=gigpo` unless words say otherwise."""
    own = [f"model.path={folder}", f"run.seed={seed}", "model.device=cpu", "rollout.samples=2"]
    own.append("algorithm.correction.mode=none")  # a lesson's edits were tried, not sampled: there is no gap
    given = [word for word in words if not word.startswith("algorithm=")]
    algorithm = [word for word in words if word.startswith("algorithm=")] or ["algorithm=gigpo"]
    config = resolve(Source(), [*algorithm, "task=workflow", *own, *given]).config
    assert isinstance(config, schema.Config)
    return defaults.with_rates(config)[0]


class EditPolicy:
    """A policy as proposer. It is updated after every `every` edits; 0: never. With `relative` the prior is
    what it has learned since the start: random weights would prefer short edits."""

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
        """The policy's probability of each edit, given that it writes one of them."""
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
        """Make one update with the ordinary learner; none if all gains are equal."""
        gains = {round(one.gain, 6) for one in experiences}
        if len(gains) < 2:
            return {}
        tried = [
            self._trajectory(one.state, one.edit, number=i, experience=one)
            for i, one in enumerate(experiences)
        ]
        self.lessons += 1
        metrics, _ = self.learner.learn(tried, self.lessons, exact=False, baselines={})
        return metrics

    def save(self, folder: Path) -> None:
        self.learner.policy.export(folder)
        self.tokenizer.save(folder)

    def _trajectory(
        self, text: str, edit: str, *, number: int, experience: Experience | None = None
    ) -> Trajectory:
        """The trajectory of one turn: the state as prompt, the edit as the policy's answer."""
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
    """Turn probabilities into priors relative to a uniform choice."""
    priors = [(1 - FLOOR) * len(edits) * float(chance) + FLOOR for chance in chances]
    return [Proposal(edit, made, prior) for (edit, made), prior in zip(edits.items(), priors, strict=True)]


def messages(text: str) -> list[dict[str, Any]]:
    """The policy's prompt: the state without instructions, as in the trainer's `workflow` task."""
    return [{"role": "system", "content": ""}, {"role": "user", "content": text}]


NAME = "policy"  # as the endpoint calls it
MOST_TOKENS = 64  # of an edit
Drawn = tuple[str, float]  # an edit, and the log-probability of writing it


class ServedPolicy:
    """A served policy as proposer. It draws `samples` edits of a state. A drawn edit has its own probability;
    the other legal edits share the rest. Draws are kept in the pool, so a resumed search has the same."""

    def __init__(
        self,
        policy: EditPolicy,
        chat: ChatModel,
        engine: InThread,
        *,
        pool: ExperiencePool | None,
        search: str,
        samples: int,
    ) -> None:
        self.policy, self.chat, self.engine = policy, chat, engine
        self.pool, self.search, self.samples = pool, search, samples

    async def propose(self, state: WorkflowState, again: int) -> Sequence[Proposal]:
        edits = {} if again else self.policy.editor.edits(state.workflow)
        if not edits:
            return []
        drawn = await asyncio.gather(*(self._drawn(state, number) for number in range(self.samples)))
        return offered(edits, chances(list(edits), drawn))

    def learn(self, experiences: Sequence[Experience]) -> Mapping[str, float]:
        told = self.policy.learn(experiences)
        if told:
            self.engine.publish(self.policy.lessons)
        return told

    async def _drawn(self, state: WorkflowState, number: int) -> Drawn:
        key = f"{state.anchor}/{state.text}/{self.policy.lessons}/{number}"
        known = self.pool.proposed(self.search, key) if self.pool is not None else None
        if known is not None:
            edit, log_prob = json.loads(known)
            return edit, log_prob
        said = await self.chat.complete(
            messages(state.text),
            temperature=self.policy.config.rollout.temperature,
            max_tokens=MOST_TOKENS,
            seed=seed_of(self.policy.config.run.seed, key),
        )
        # Rounded, so that the last digits of a sum do not change the search.
        drawn = said.text, round(-math.inf if said.log_prob is None else said.log_prob, 4)
        if self.pool is not None:
            self.pool.propose(self.search, key, json.dumps(drawn), cost=0.0)
        return drawn


def chances(edits: Sequence[str], drawn: Sequence[Drawn]) -> list[float]:
    """The probability of each edit, given that the policy writes a legal one. The draws estimate how often it
    does."""
    legal = set(edits)
    known = {edit: math.exp(log_prob) for edit, log_prob in drawn if edit in legal}
    share = sum(edit in legal for edit, _ in drawn) / max(1, len(drawn))
    unseen = len(legal) - len(known)
    each = max(0.0, share - sum(known.values())) / unseen if unseen else 0.0
    found = [known.get(edit, each) for edit in edits]
    total = sum(found)
    return [one / total for one in found] if total > 0 else [1 / len(edits)] * len(edits)


@contextlib.asynccontextmanager
async def serve_policy(
    policy: EditPolicy, *, pool: ExperiencePool | None, search: str, samples: int
) -> AsyncIterator[ServedPolicy]:
    """Serve the policy on a free loopback port until the block ends."""
    config = schema.EngineConfig(slots=max(1, samples))
    decoder, tokenizer = policy.learner.policy.decoder, policy.tokenizer
    engine = InThread(
        NativeEngine(config, decoder=decoder, tokenizer=tokenizer, dtype=policy.learner.policy.dtype)
    )
    model = LocalModel(NAME, engine, tokenizer, formats.build("auto", {}, tokenizer))
    try:
        async with serving.serve_in_background(
            ServeApp(ModelService(model, queue_limit=4 * samples), Callers())
        ) as url:
            settings = ChatSettings(
                provider="openai",
                model=NAME,
                base_url=f"{url}/v1",
                price=Price(input=0.0, output=0.0),
                fields={"logprobs": True},
            )
            chat = open_chat(settings)
            try:
                yield ServedPolicy(policy, chat, engine, pool=pool, search=search, samples=samples)
            finally:
                await close(chat)
    finally:
        await model.close()
