"""Generation requests of HTTP clients: checked, queued, and generated side by side by one engine."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import orjson

from toolwright.engines import Completion, SampledToken, Sampling, TokenCallback, generate_streamed
from toolwright.failures import InfrastructureFailure, TaskFailure, UserError
from toolwright.images import texts_of
from toolwright.models.tokenizer import REPLACEMENT, Tokenizer
from toolwright.providers.local import LocalModel, ParsedCompletion, PromptTokens
from toolwright.serve.problems import HttpProblem
from toolwright.serve.recorder import Recorder, choice_id
from toolwright.serve.requests import SampledBody

GREEDY_BELOW = 1e-4  # a temperature below it selects the likeliest token: logits divided by it would overflow


@dataclass(frozen=True)
class Answer:
    """A finished choice."""

    completion: ParsedCompletion
    tokens: list[SampledToken]


@dataclass(frozen=True)
class AnswerPiece:
    """A part of a choice that is being generated. The last part has the whole `answer`."""

    choice: int
    text: str
    tokens: list[SampledToken]
    answer: Answer | None = None


OnPiece = Callable[[AnswerPiece], None]


@dataclass(frozen=True)
class GenerationRequest:
    """Prompts, and how many choices to generate for each."""

    prompts: Sequence[PromptTokens]
    sampling: Sampling  # its `stop` is the caller's own
    choices: int = 1
    id: str = ""  # the protocol's own, by which the answer can be scored later


class ModelService:
    """Serves requests of one model. `under_way` counts choices that are generated or queued."""

    def __init__(self, model: LocalModel, *, queue_limit: int) -> None:
        self.model, self.queue_limit = model, queue_limit
        self.started = int(time.time())
        self.under_way = 0
        self.prompt_tokens = self.completion_tokens = self.aborted = 0
        self.recorder: Recorder | None = None
        self._number = itertools.count()

    def check_model(self, name: str) -> None:
        """Refuse a request for another model than the one that is served."""
        if name != self.model.name:
            text = f"the model {name!r} does not exist here; {self.model.name!r} does"
            raise HttpProblem(404, text, param="model", code="model_not_found")

    def chat_prompt(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> PromptTokens:
        """Render a conversation with the model's chat template."""
        self._check_size(messages, tools)
        try:
            prompt = self._check_length(self.model.render(messages, tools or None), "messages")
            return replace(prompt, messages=messages)
        except UserError as error:
            raise HttpProblem(400, str(error), param="messages") from None

    @property
    def context(self) -> int:
        """The longest sequence, prompt and answer together."""
        return self.model.engine.context

    def raw_prompt(self, prompt: str | list[int]) -> PromptTokens:
        """Take a prompt as it is, without a template."""
        self._check_characters(len(prompt) if isinstance(prompt, str) else 0, "prompt")
        tokens = self.model.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        if not tokens:
            raise HttpProblem(400, "prompt: it is empty", param="prompt")
        if max(tokens) >= self.model.vocabulary:
            raise HttpProblem(400, f"prompt: there is no token {max(tokens)}", param="prompt")
        return self._check_length(PromptTokens(tokens, {}), "prompt")

    def sampling(
        self,
        body: SampledBody,
        *,
        max_tokens: int | None,
        stop: Sequence[str] = (),
        seed: int | None = None,
        top: int = 0,
        schema: str = "",
    ) -> Sampling:
        """Fill in defaults for fields that are null. Without a seed, answers differ from call to call."""
        if schema and not getattr(self.model.engine, "takes_schemas", False):
            raise HttpProblem(400, "this engine cannot hold an answer to JSON; the native one on a CPU can")
        temperature = 1.0 if body.temperature is None else body.temperature
        greedy = temperature < GREEDY_BELOW or body.top_p == 0  # no share of the tokens is the likeliest one
        return Sampling(
            temperature=0.0 if greedy else temperature,
            top_p=body.top_p or 1.0,
            top_k=body.top_k or 0,
            max_tokens=max_tokens or self.context,
            stop=tuple(stop),
            seed=secrets.randbits(62) if seed is None else seed,
            top=top,
            schema=schema,
        )

    async def answers(self, request: GenerationRequest, on_piece: OnPiece | None = None) -> list[Answer]:
        """Generate all choices of all prompts, in that order. `on_piece` gets pieces as they are generated.
        If it is cancelled, nothing is left behind in the engine."""
        if request.sampling.schema and any(prompt.offered for prompt in request.prompts):
            raise HttpProblem(
                400, "an answer cannot be held to JSON if tools are offered, because it may be a call"
            )
        count = len(request.prompts) * request.choices
        if self.under_way + count > self.queue_limit:
            raise HttpProblem(429, f"{self.under_way} answers are under way already; try again later")
        self.under_way += count
        work = []
        for number, prompt in enumerate(p for p in request.prompts for _ in range(request.choices)):
            sampling = replace(request.sampling, seed=request.sampling.seed + number % request.choices)
            work.append(self._answer(request.id, number, prompt, sampling, on_piece))
        try:
            # One alone needs no task, which would take turns of the event loop at its start and at its end.
            return [await work[0]] if count == 1 else await _side_by_side(work)
        except (TaskFailure, UserError) as error:  # of this request, which would fail again
            raise HttpProblem(400, str(error)) from None
        except InfrastructureFailure as error:
            raise HttpProblem(503, str(error)) from None
        finally:
            self.under_way -= count

    async def pieces(self, request: GenerationRequest) -> AsyncGenerator[AnswerPiece]:
        """Generate the same, piece by piece; choices are interleaved."""
        queue: asyncio.Queue[AnswerPiece | None] = asyncio.Queue()
        task = asyncio.create_task(self.answers(request, queue.put_nowait))
        task.add_done_callback(lambda _: queue.put_nowait(None))
        try:
            while (piece := await queue.get()) is not None:
                yield piece
            await task  # raises its error, if any
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _answer(
        self, id: str, number: int, prompt: PromptTokens, sampling: Sampling, on_piece: OnPiece | None
    ) -> Answer:
        model, own_stop = self.model, sampling.stop
        room = self.context - len(prompt.tokens)
        stops = model.stops(prompt, own_stop)
        sampling = replace(sampling, stop=stops, max_tokens=min(sampling.max_tokens, room))
        opens = model.format.opens(prompt.offered) if prompt.offered else ()
        stream, pending = StreamedText(model.tokenizer, stops=own_stop, opens=opens), list[SampledToken]()

        def on_token(token: SampledToken) -> None:
            assert on_piece is not None
            pending.append(token)
            text = stream.push(token.token)
            if text:
                on_piece(AnswerPiece(number, text, pending.copy()))
                pending.clear()

        try:
            completion = await self._generate(prompt, sampling, on_token if on_piece else None)
        except asyncio.CancelledError:
            self.aborted += 1
            raise
        if sampling.top and len(completion.top) != len(completion.tokens):
            raise HttpProblem(400, "this engine does not report the likeliest tokens beside those drawn")
        self.prompt_tokens += len(prompt.tokens)
        self.completion_tokens += len(completion.tokens)
        if self.recorder is not None:
            self.recorder.keep(choice_id(id, number), prompt, completion, sampling)
        parsed = self._parsed(prompt, completion, own_stop)
        answer = Answer(parsed, completion.sampled)
        if on_piece is not None:
            on_piece(AnswerPiece(number, stream.rest(answer.completion.text), pending, answer))
        return answer

    async def _generate(
        self, prompt: PromptTokens, sampling: Sampling, on_token: TokenCallback | None
    ) -> Completion:
        engine, attempt = self.model.engine, f"request {next(self._number)}"
        try:
            return await generate_streamed(
                engine, prompt.tokens, sampling, attempt=attempt, on_token=on_token
            )
        finally:
            engine.release(attempt)

    def _parsed(self, prompt: PromptTokens, completion: Completion, stop: Sequence[str]) -> ParsedCompletion:
        return self.model.parse(prompt, completion, stop)

    def _check_size(self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> None:
        """Refuse a conversation that is too long whatever its tokens are: to encode megabytes takes seconds,
        in which nobody else is answered. A message is a token at least."""
        if len(messages) >= self.context:
            self._too_long(f"at least {len(messages)}", "messages")
        written = sum(len(text) for message in messages for text in texts_of(message.get("content")))
        self._check_characters(written + sum(len(orjson.dumps(tool)) for tool in tools), "messages")

    def _check_characters(self, count: int, param: str) -> None:
        tokens = count // self.model.tokenizer.longest_token
        if tokens >= self.context:
            self._too_long(f"at least {tokens}", param)

    def _check_length(self, prompt: PromptTokens, param: str) -> PromptTokens:
        if len(prompt.tokens) >= self.context:
            self._too_long(str(len(prompt.tokens)), param)
        return prompt

    def _too_long(self, tokens: str, param: str) -> NoReturn:
        raise HttpProblem(
            400,
            f"a prompt of {tokens} tokens leaves no room in a context of {self.context}",
            param=param,
            code="context_length_exceeded",
        )


async def _side_by_side(work: Sequence[Coroutine[Any, Any, Answer]]) -> list[Answer]:
    """Run all of them side by side; if one fails, cancel the others."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class StreamedText:
    """The text of a completion while it grows: as much of it as no later token can change.

    At a stop string, or at the start of a tool call, the caller's text may be over. From there on everything
    is held back until the end, and so is white space that may stand before a call.
    """

    def __init__(self, tokenizer: Tokenizer, *, stops: Sequence[str], opens: Sequence[str]) -> None:
        self._tokenizer, self._marks, self._calls = tokenizer, (*stops, *opens), bool(opens)
        self._tokens: list[int] = []
        # Decoding a token may depend on those before it: tokens[start:decoded] are decoded again as context.
        self._start = self._decoded = 0
        self._text = ""
        self._shown = 0
        self._closed = False

    def push(self, token: int) -> str:
        """Add a token; returns the text that may be shown from now on."""
        self._tokens.append(token)
        before = self._tokenizer.decode(self._tokens[self._start : self._decoded])
        now = self._tokenizer.decode(self._tokens[self._start :])
        if len(now) > len(before) and not now.endswith(REPLACEMENT):  # half a character is none yet
            self._text += now[len(before) :]
            self._start, self._decoded = self._decoded, len(self._tokens)
        end = self._safe_end()
        if self._calls:
            end = max(self._shown, len(self._text[:end].rstrip()))
        shown, self._shown = self._shown, end
        return self._text[shown:end]

    def rest(self, final: str) -> str:
        """The part of the final text that was not shown yet."""
        shown = self._text[: self._shown]
        return final[len(shown) :] if final.startswith(shown) else ""

    def _safe_end(self) -> int:
        if self._closed:
            return self._shown
        places = [self._text.find(mark, self._shown) for mark in self._marks]
        found = [place for place in places if place >= 0]
        if found:
            self._closed = True
            return min(found)
        return len(self._text) - max((self._partial(mark) for mark in self._marks), default=0)

    def _partial(self, mark: str) -> int:
        """Count the characters at the end that may be the beginning of this mark."""
        longest = min(len(mark) - 1, len(self._text) - self._shown)
        return next((n for n in range(longest, 0, -1) if self._text.endswith(mark[:n])), 0)
