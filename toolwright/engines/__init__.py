"""Engines: they generate tokens, all with one interface."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from toolwright.registry import Registry

if TYPE_CHECKING:
    import torch

    from toolwright.config import schema
    from toolwright.models.decoder import Decoder, Shape, Stored
    from toolwright.models.tokenizer import Tokenizer


@dataclass(frozen=True)
class Sampling:
    """The settings that one turn is sampled with. The same seed at the same place of a sequence draws the
    same number."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 32
    stop: tuple[str, ...] = ()
    seed: int = 0
    top: int = 0  # how many of the likeliest tokens are returned beside each sampled one
    schema: str = ""  # JSON: the schema that the answer must follow; for engines that have `takes_schemas`


@dataclass(frozen=True)
class SampledToken:
    """A sampled token, and the likeliest ones at its place with their log-probabilities, best first."""

    token: int
    log_prob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Completion:
    """An engine's answer: the tokens as sampled, with their log-probabilities."""

    tokens: list[int]
    log_probs: list[float]  # under the whole distribution at this temperature, before top-p and top-k
    text: str
    stop: str  # eos, stop or length
    weights_version: int
    top: list[tuple[tuple[int, float], ...]] = field(default_factory=list)  # a row a token, where asked for

    @property
    def sampled(self) -> list[SampledToken]:
        return list(map(SampledToken, self.tokens, self.log_probs, self.top or [()] * len(self.tokens)))


TokenCallback = Callable[[SampledToken], None]  # called with each token as it is sampled


class Engine(Protocol):
    """Tokens in, tokens out. `exact` engines give the learner's own log-probabilities."""

    exact: bool
    takes_weights: bool  # whether `publish` can reach it: without that, nothing can be trained
    context: int  # the longest sequence it can hold

    @property
    def weights_version(self) -> int: ...

    async def generate(self, prompt: Sequence[int], sampling: Sampling, *, attempt: str) -> Completion:
        """Continue `prompt`. `attempt` names whose it is, so that its cache can serve its next turn."""
        ...

    def release(self, attempt: str) -> None:
        """The attempt is over; its cache may go."""
        ...

    def rest(self) -> None:
        """Give back memory that the learner could use. Nothing is asked until the next publication."""
        ...

    def publish(self, version: int) -> None:
        """The weights are now of this version; whatever was computed with the old ones is forgotten."""
        ...

    async def close(self) -> None: ...


async def generate_streamed(
    engine: Engine,
    prompt: Sequence[int],
    sampling: Sampling,
    *,
    attempt: str,
    on_token: TokenCallback | None,
) -> Completion:
    """Generate with a callback. An engine whose `generate` takes `on_token` streams; the tokens of another
    one are passed on when it has finished."""
    if on_token is None:
        return await engine.generate(prompt, sampling, attempt=attempt)
    if "on_token" in inspect.signature(engine.generate).parameters:
        extra: dict[str, Any] = {"on_token": on_token}
        return await engine.generate(prompt, sampling, attempt=attempt, **extra)
    answer = await engine.generate(prompt, sampling, attempt=attempt)
    for token in answer.sampled:
        on_token(token)
    return answer


@dataclass(frozen=True)
class PlannedModel:
    """A model as it is known before anything is loaded."""

    shape: Shape
    parameters: int
    dtype: torch.dtype
    device: torch.device
    fast: bool  # runs with our kernels, not with a forward of its own
    adapted: bool
    stored: Stored = "float32"  # in what its matrices are kept
    trained: int = 0  # parameters that are learned: all, or an adapter's
    fresh: bool = False  # an adapter that is new, and adds nothing yet
    half: bool = False  # its files have no more than bfloat16


@dataclass(frozen=True)
class EngineMemory:
    """The memory that an engine takes of its device, beside the learner's weights."""

    parts: dict[str, int] = field(default_factory=dict)  # bytes by what they are for
    cache: int = 0  # bytes of them that are the cache's
    token_bytes: int = 0  # of the cache
    share: float = 1.0  # of what is free, for the cache
    fit: Callable[[int, int], int] | None = None  # (slots, free bytes): tokens that the cache will hold


class EngineBuilder(Protocol):
    """Builds an engine beside a learner: `decoder` holds the learner's own weights.

    It may have an attribute `memory(model, slots, used)` that estimates what the engine takes, for `slots` of
    which no more than `used` are ever in use at once. Without it nothing is counted.
    """

    def __call__(
        self, config: schema.EngineConfig, *, decoder: Decoder, tokenizer: Tokenizer, dtype: torch.dtype
    ) -> Engine: ...


def memory_of(name: str, model: PlannedModel, *, slots: int, used: int) -> EngineMemory:
    """The estimate of the engine of this name."""
    estimate = getattr(registry.get(name).target, "memory", None)
    return EngineMemory() if estimate is None else estimate(model, slots, used)


registry: Registry[EngineBuilder] = Registry("engine", "toolwright.engines")
