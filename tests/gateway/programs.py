"""Attempts through the gateway: programs of a test's own, a policy that is told what to say or a real one."""

from __future__ import annotations

import asyncio
import string
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from tests import tiny
from tests.agents.scripted import Script, ScriptedEngine, saying
from tests.agents.templates import tokenizer as chat_tokenizer
from toolwright.agents.attempt import Attempt
from toolwright.agents.rollout import AttemptRequest, Rollout
from toolwright.batch import Batch
from toolwright.config import schema
from toolwright.engines import Completion, Engine, Sampling, TokenCallback, generate_streamed
from toolwright.engines.native.engine import NativeEngine
from toolwright.gateway.program import ProgramAgent, ProgramEnd
from toolwright.gateway.server import AttemptAddress
from toolwright.gateway.session import Session
from toolwright.learner.policy import Frozen
from toolwright.models.decoder import Decoder
from toolwright.models.tokenizer import Tokenizer
from toolwright.trajectory import Task, Trajectory

Program = Callable[[AttemptAddress, Attempt], Awaitable[Any]]

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}


class InLoop(ProgramAgent):
    """A coroutine of the test's own in place of a process, so that fifty attempts take no time."""

    kind = "command"
    usual_concurrency = 64
    label = "the program of the test"
    program_of: Program

    async def run(self, attempt: Attempt, address: AttemptAddress, session: Session) -> ProgramEnd:
        returned = await type(self).program_of(address, attempt)
        return ProgramEnd("" if returned is None else str(returned))


class Recording:
    """An engine's own record of what it was asked and what it sampled."""

    takes_weights = True

    def __init__(self, engine: Engine) -> None:
        self.engine, self.exact, self.context = engine, engine.exact, engine.context
        self.takes_schemas = getattr(engine, "takes_schemas", False)
        self.weights_version = 0
        self.seen: list[tuple[str, list[int], list[int]]] = []
        self.released: list[str] = []

    async def generate(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        *,
        attempt: str,
        on_token: TokenCallback | None = None,
    ) -> Completion:
        name = attempt
        if isinstance(
            self.engine, ScriptedEngine
        ):  # it counts the turns of an attempt, whatever their branch
            name = attempt.partition("#")[0]
        answer = await generate_streamed(self.engine, prompt, sampling, attempt=name, on_token=on_token)
        self.seen.append((attempt.partition("#")[0], list(prompt), answer.tokens))
        return answer

    def release(self, attempt: str) -> None:
        self.released.append(attempt)
        self.engine.release(attempt)

    def rest(self) -> None: ...

    def publish(self, version: int) -> None: ...

    async def close(self) -> None:
        await self.engine.close()


class Dictation:
    """What may come next, where a script says it: one token."""

    def __init__(self, tokens: Sequence[int], vocabulary: int) -> None:
        self.left, self.vocabulary = deque(tokens), vocabulary

    def allowed(self) -> torch.Tensor:
        return torch.arange(self.vocabulary) == self.left[0]

    def take(self, token: int) -> None:
        assert token == self.left.popleft()


@dataclass(frozen=True)
class DictatedSampling(Sampling):
    constraint: Dictation = None  # type: ignore[assignment]


class Dictated:
    """A real engine that is told what to draw. Its cache and its log-probabilities are its own."""

    takes_weights = True
    weights_version = 0

    def __init__(self, engine: NativeEngine, script: Script) -> None:
        self.engine, self.script = engine, script
        self.exact, self.context = engine.exact, engine.context
        self.turns: Counter[str] = Counter()  # of each attempt, whatever their branch

    async def generate(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        *,
        attempt: str,
        on_token: TokenCallback | None = None,
    ) -> Completion:
        name = attempt.partition("#")[0]
        said = Dictation(self.script(name, self.turns[name]), self.engine.decoder.shape.vocab)
        self.turns[name] += 1
        told = DictatedSampling(**vars(sampling), constraint=said)
        return await self.engine.generate(prompt, told, attempt=attempt, on_token=on_token)

    def release(self, attempt: str) -> None:
        self.engine.release(attempt)

    def rest(self) -> None: ...

    def publish(self, version: int) -> None: ...

    async def close(self) -> None:
        await self.engine.close()


@cache
def decoder(vocabulary: int = 0, context: int = 1024) -> Decoder:
    """Random weights that have opinions, for all of ASCII or a vocabulary of this size."""
    made = Decoder(tiny.shape(vocab=vocabulary or tokenizer().size, context=context)).initialise(0)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(3.0)
    return made


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.characters(string.printable)


def native(*, ends: bool = True) -> Recording:
    """`ends=False`: no token ends a turn, so that it is as long as it may be."""
    config, tokens = schema.EngineConfig(slots=16), Tokenizer.characters(string.printable)
    if not ends:
        tokens.end_tokens = frozenset()
    return Recording(NativeEngine(config, decoder=decoder(), tokenizer=tokens, dtype=torch.float32))


def gap(decoder: Decoder, made: Sequence[Trajectory]) -> float:
    """The largest difference of the engine's log-probabilities from the learner's."""
    learner = Frozen(decoder, temperature=1.0, micro_tokens=None, dtype=torch.float32)
    batch = Batch.pack(list(made))
    found = learner.statistics(batch)["log_prob"]
    return float((found - batch.columns["sampled_log_prob"]).abs().max())


def scripted(*turns: str, style: str = "chatml") -> tuple[Recording, Tokenizer]:
    made = chat_tokenizer(style)
    return Recording(ScriptedEngine(made, saying(made, *turns))), made


def attempts(
    program: Program,
    *,
    engine: Recording | None = None,
    tokens: Tokenizer | None = None,
    count: int = 1,
    tasks: Sequence[Task] = (),
    agent: dict[str, Any] | None = None,
    **config: Any,
) -> tuple[list[Trajectory], Recording]:
    """Let a program of the test's make the attempts of one group."""
    engine = engine or native()
    kind = type("OfTest", (InLoop,), {"program_of": staticmethod(program)})
    given = {
        "max_tokens": 24 if tokens is None else 400,
        "retries": 0,
        "max_turns": 20,
        "timeout_s": 60,
        **config,
    }
    settings = schema.RolloutConfig(agent={"command": "true", **(agent or {})}, **given)
    rollout = Rollout(settings, engine, tokens or tokenizer())
    rollout.agent = rollout.agent_set._agents["command"] = kind(settings, rollout.tokenizer)
    chosen = tasks or [Task("t", [{"role": "user", "content": "go"}])]

    async def run() -> list[Trajectory]:
        requests = [AttemptRequest(task, f"g{n}", i, 100 * n + i) for n, task in enumerate(chosen)
                    for i in range(count)]  # fmt: skip
        try:
            return await rollout.run(requests)
        finally:
            await rollout.close()
            await engine.close()

    return asyncio.run(run()), engine


def one(program: Program, **more: Any) -> tuple[Trajectory, Recording]:
    (trajectory,), engine = attempts(program, **more)
    assert trajectory.failure is None, trajectory.failure
    return trajectory, engine


def rows(trajectory: Trajectory) -> list[list[int]]:
    """The tokens of each sequence."""
    segments = trajectory.segments
    return [[token for n in path for token in segments[n].tokens] for path in trajectory.sequences]


def is_what_was_sampled(trajectories: Sequence[Trajectory], engine: Recording) -> None:
    """Every turn of the engine's record is one policy segment behind exactly what it was sampled from; there
    is no other, none twice and none lost."""
    trained = []
    for trajectory in trajectories:
        segments = trajectory.segments
        for path in trajectory.sequences:
            for place, number in enumerate(path):
                if segments[number].source == "policy":
                    before = [token for n in path[:place] for token in segments[n].tokens]
                    name = f"{trajectory.group}/{trajectory.index}"
                    trained.append((id(segments[number]), (name, before, segments[number].tokens)))
    found = sorted(dict(trained).values())
    assert found == sorted(engine.seen)
