"""Requests to a model: sized up, let in, answered side by side by its engine."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from toolwright.engines import Drawn, Sampling
from toolwright.failures import InfrastructureFailure, TaskFailure, UserError
from toolwright.providers.local import LocalModel, PromptTokens, Said
from toolwright.serve.problems import HttpProblem
from toolwright.serve.telling import Teller

COLD = 1e-4  # a temperature below this is the likeliest token; dividing by it would leave the numbers


@dataclass(frozen=True)
class Answer:
    """One choice, finished."""

    said: Said
    tokens: list[Drawn]


@dataclass(frozen=True)
class AnswerPiece:
    """A part of a choice that is being written; the last one of a choice has its `answer`."""

    choice: int
    text: str
    tokens: list[Drawn]
    answer: Answer | None = None


@dataclass(frozen=True)
class GenerationRequest:
    """What one request wants of its prompts: so many answers to each."""

    prompts: Sequence[PromptTokens]
    sampling: Sampling  # its `stop` is the caller's own
    choices: int = 1


class ModelService:
    """`under_way` counts answers being written or waited for."""

    def __init__(self, model: LocalModel, *, queue_limit: int) -> None:
        self.model, self.queue_limit = model, queue_limit
        self.under_way = 0
        self.read_tokens = self.written_tokens = self.aborted = 0
        self._number = itertools.count()

    def opening(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> PromptTokens:
        try:
            return self._sized(self.model.opening(messages, tools or None), "messages")
        except UserError as error:
            raise HttpProblem(400, str(error), param="messages") from None

    def prompt(self, given: str | list[int]) -> PromptTokens:
        """A prompt without any template."""
        tokens = self.model.tokenizer.encode(given) if isinstance(given, str) else list(given)
        if not tokens:
            raise HttpProblem(400, "prompt: there is nothing to go on from", param="prompt")
        if max(tokens) >= self.model.vocabulary:
            raise HttpProblem(400, f"prompt: there is no token {max(tokens)}", param="prompt")
        return self._sized(PromptTokens(tokens, {}), "prompt")

    def sampling(
        self,
        *,
        temperature: float | None,
        top_p: float | None,
        top_k: int | None,
        max_tokens: int | None,
        stop: Sequence[str],
        seed: int | None = None,
        top: int = 0,
    ) -> Sampling:
        """Where a field is null it has its default; without a seed, answers differ from call to call."""
        wanted = 1.0 if temperature is None else temperature
        return Sampling(
            temperature=0.0 if wanted < COLD else wanted,
            top_p=1.0 if top_p is None else top_p,
            top_k=top_k or 0,
            max_tokens=max_tokens or self.model.engine.context,
            stop=tuple(stop),
            seed=secrets.randbits(62) if seed is None else seed,
            top=top,
        )

    async def answers(
        self, wish: GenerationRequest, told: Callable[[AnswerPiece], None] | None = None
    ) -> list[Answer]:
        """All choices of all prompts, in that order. `told` hears pieces as they are written. Cancelled, it
        leaves nothing behind in the engine."""
        count = len(wish.prompts) * wish.choices
        if self.under_way + count > self.queue_limit:
            raise HttpProblem(429, f"{self.under_way} answers are under way already; try again later")
        self.under_way += count
        tasks = []
        for number, prompt in enumerate(p for p in wish.prompts for _ in range(wish.choices)):
            own = replace(wish.sampling, seed=wish.sampling.seed + number % wish.choices)
            tasks.append(asyncio.create_task(self._answer(number, prompt, own, told)))
        try:
            return await asyncio.gather(*tasks)
        except TaskFailure as error:  # of this request, which would fail again
            raise HttpProblem(400, str(error)) from None
        except InfrastructureFailure as error:
            raise HttpProblem(503, str(error)) from None
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.under_way -= count

    async def pieces(self, wish: GenerationRequest) -> AsyncGenerator[AnswerPiece]:
        """The same as it is written, the choices as they come."""
        heard: asyncio.Queue[AnswerPiece | None] = asyncio.Queue()
        task = asyncio.create_task(self.answers(wish, heard.put_nowait))
        task.add_done_callback(lambda _: heard.put_nowait(None))
        try:
            while (piece := await heard.get()) is not None:
                yield piece
            await task  # raises what went wrong
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _answer(
        self,
        number: int,
        prompt: PromptTokens,
        sampling: Sampling,
        told: Callable[[AnswerPiece], None] | None,
    ) -> Answer:
        model, asked, attempt = self.model, sampling.stop, f"request {next(self._number)}"
        room = model.engine.context - len(prompt.tokens)
        stops = model.stops(prompt, asked)
        sampling = replace(sampling, stop=stops, max_tokens=min(sampling.max_tokens, room))
        opens = model.format.opens(prompt.offered) if prompt.offered else ()
        teller, waiting = Teller(model.tokenizer, stops=asked, opens=opens), list[Drawn]()

        def heard(drawn: Drawn) -> None:
            assert told is not None
            waiting.append(drawn)
            text = teller.told(drawn.token)
            if text:
                told(AnswerPiece(number, text, waiting.copy()))
                waiting.clear()

        try:
            completion = await model.engine.generate(
                prompt.tokens, sampling, attempt=attempt, heard=heard if told else None
            )
        except asyncio.CancelledError:
            self.aborted += 1
            raise
        finally:
            model.engine.release(attempt)
        if sampling.top and len(completion.top) != len(completion.tokens):
            raise HttpProblem(400, "this engine does not tell the likeliest tokens beside those drawn")
        self.read_tokens += len(prompt.tokens)
        self.written_tokens += len(completion.tokens)
        answer = Answer(model.read(prompt, completion, asked), completion.drawn)
        if told is not None:
            told(AnswerPiece(number, teller.rest(answer.said.text), waiting, answer))
        return answer

    def _sized(self, prompt: PromptTokens, param: str) -> PromptTokens:
        context = self.model.engine.context
        if len(prompt.tokens) >= context:
            raise HttpProblem(
                400,
                f"a prompt of {len(prompt.tokens)} tokens leaves no room in a context of {context}",
                param=param,
                code="context_length_exceeded",
            )
        return prompt
