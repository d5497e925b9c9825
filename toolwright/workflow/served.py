"""The policy behind an endpoint of the search's own, asked through OpenAI's SDK as any provider is.

Server and learner hold the same tensors: what a lesson has changed, the next answer knows.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from collections.abc import AsyncIterator, Mapping, Sequence

from toolwright.agents import formats
from toolwright.config import schema
from toolwright.engines.native.engine import NativeEngine
from toolwright.engines.thread import InThread
from toolwright.providers import ChatModel, close, open_chat
from toolwright.providers.local import LocalModel
from toolwright.providers.settings import ChatSettings, Price
from toolwright.serve.app import ServeApp
from toolwright.serve.service import ModelService
from toolwright.web import serving
from toolwright.web.callers import Callers
from toolwright.workflow.policy import EditPolicy, messages, offered
from toolwright.workflow.pool import Experience, ExperiencePool
from toolwright.workflow.run import seed_of
from toolwright.workflow.state import WorkflowState
from toolwright.workflow.tree import Proposal

NAME = "policy"  # as the endpoint calls it
MOST_TOKENS = 64  # of an edit
Drawn = tuple[str, float]  # an edit, and the log-probability of writing it


class ServedPolicy:
    """Draws `samples` edits of a state. One that was drawn has its own probability; the others share what
    is left of the legal ones'. Draws are kept in the pool: a search that goes on has the same."""

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
        # Rounded: the last digits of a sum are no reason to try another edit.
        drawn = said.text, round(-math.inf if said.log_prob is None else said.log_prob, 4)
        if self.pool is not None:
            self.pool.propose(self.search, key, json.dumps(drawn), cost=0.0)
        return drawn


def chances(edits: Sequence[str], drawn: Sequence[Drawn]) -> list[float]:
    """How likely each edit is, given that it is one of them. How much of all that the policy writes that is,
    the draws tell."""
    legal = set(edits)
    known = {edit: math.exp(log_prob) for edit, log_prob in drawn if edit in legal}
    share = sum(edit in legal for edit, _ in drawn) / max(1, len(drawn))
    unseen = len(legal) - len(known)
    each = max(0.0, share - sum(known.values())) / unseen if unseen else 0.0
    found = [known.get(edit, each) for edit in edits]
    total = sum(found)
    return [one / total for one in found] if total > 0 else [1 / len(edits)] * len(edits)


@contextlib.asynccontextmanager
async def served(
    policy: EditPolicy, *, pool: ExperiencePool | None, search: str, samples: int
) -> AsyncIterator[ServedPolicy]:
    """On a free port of this machine, until the search is over."""
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
