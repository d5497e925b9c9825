"""Our own engine in this process: a Hugging Face folder as a chat model that costs nothing."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolwright.failures import TaskFailure, UserError
from toolwright.providers.chat import PROVIDERS, ChatReply, Tools
from toolwright.providers.settings import ChatSettings

if TYPE_CHECKING:
    from toolwright.providers.local import LocalModel


@dataclass(eq=False)
class SharedModel:
    """A model that is loaded once in a process, however many chat models ask it."""

    key: tuple[object, ...]
    model: LocalModel
    users: int = 0
    attempts: itertools.count[int] = field(default_factory=itertools.count)  # so that no two have one name

    @classmethod
    def of(cls, settings: ChatSettings) -> SharedModel:
        from toolwright.config import schema
        from toolwright.providers.local import load

        key = (settings.model, settings.context, settings.slots, settings.timeout_s)
        if key not in LOADED:
            model = schema.Model(path=settings.model, context=settings.context)
            engine = schema.EngineConfig(slots=settings.slots, timeout_s=settings.timeout_s)
            LOADED[key] = cls(key, load(model, engine))
        LOADED[key].users += 1
        return LOADED[key]

    async def leave(self) -> None:
        """The last user closes it."""
        self.users -= 1
        if not self.users:
            del LOADED[self.key]
            await self.model.close()


LOADED: dict[tuple[object, ...], SharedModel] = {}


@PROVIDERS.register("engine")
class EngineChat:
    """A chat model of our own engine. Several with the same settings share its weights, cache and slots."""

    def __init__(self, settings: ChatSettings) -> None:
        self._shared = SharedModel.of(settings)
        self.model = self._shared.model
        self.name = self.model.name
        self._number = itertools.count()
        self._open = True

    @staticmethod
    def check(settings: ChatSettings) -> None:
        if not (Path(settings.model).expanduser() / "config.json").is_file():
            raise UserError(f"model={settings.model} is not a model folder: it has no config.json")

    async def complete(
        self,
        messages: list[dict[str, Any]],
        *,
        temperature: float,
        max_tokens: int,
        seed: int | None = None,
        stop: Sequence[str] = (),
        tools: Tools | None = None,
    ) -> ChatReply:
        """Without a seed, call n has seed n: a run that makes the same calls again gets the same replies."""
        from toolwright.engines import Sampling

        started, number = time.monotonic(), next(self._number)
        prompt = self.model.render(messages, tools)
        room = self.model.engine.context - len(prompt.tokens)
        if room < 1:
            raise TaskFailure(
                f"a prompt of {len(prompt.tokens)} tokens leaves no room in {self.name}'s context of "
                f"{self.model.engine.context}"
            )
        sampling = Sampling(
            temperature=temperature,
            max_tokens=min(max_tokens, room),
            stop=self.model.stops(prompt, stop),
            seed=number if seed is None else seed,
        )
        attempt = f"chat {next(self._shared.attempts)}"
        try:
            completion = await self.model.engine.generate(prompt.tokens, sampling, attempt=attempt)
        finally:
            self.model.engine.release(attempt)
        parsed = self.model.parse(prompt, completion, stop)
        return ChatReply(
            text=parsed.text,
            calls=parsed.calls,
            prompt_tokens=len(prompt.tokens),
            completion_tokens=len(completion.tokens),
            seconds=time.monotonic() - started,
            finish=parsed.finish,
        )

    async def close(self) -> None:
        if self._open:
            self._open = False
            await self._shared.leave()
