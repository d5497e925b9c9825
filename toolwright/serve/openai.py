"""OpenAI's protocol: chat completions, completions and models."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import orjson

from toolwright.agents.formats.arguments import to_json
from toolwright.engines import Drawn
from toolwright.providers.local import PromptTokens, Said
from toolwright.serve.problems import HttpProblem
from toolwright.serve.requests import MOST_CHOICES, ChatRequest, CompletionRequest, SamplingFields
from toolwright.serve.service import Answer, AnswerPiece, GenerationRequest, ModelService
from toolwright.tools.call import ToolRequest

FINISH = {"stop": "stop", "length": "length", "tools": "tool_calls"}
DONE = b"data: [DONE]\n\n"

# A whole answer, or the events of one that is written while it is sent.
Outcome = bytes | AsyncGenerator[bytes]


class OpenAI:
    def __init__(self, service: ModelService) -> None:
        self.service = service
        self.started = int(time.time())

    def models(self) -> list[dict[str, Any]]:
        """The one there is, in the words of both protocols."""
        name = self.service.model.name
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.started))
        openai = {"id": name, "object": "model", "created": self.started, "owned_by": "toolwright"}
        anthropic = {"type": "model", "display_name": name, "created_at": since}
        return [{**openai, **anthropic, "max_model_len": self.service.model.engine.context}]

    async def chat(self, body: Any) -> Outcome:
        asked = ChatRequest.model_validate(body)
        self._knows(asked.model)
        messages = [message.plain() for message in asked.messages]
        prompt = self.service.opening(messages, asked.offered)
        most = asked.max_completion_tokens or asked.max_tokens
        wish = self._wish(asked, [prompt], most, top=asked.top_logprobs or 0)
        form = _Chat(self._head("chatcmpl", "chat.completion", asked), log_probs=bool(asked.logprobs))
        return await self._outcome(asked, wish, form)

    async def completions(self, body: Any) -> Outcome:
        asked = CompletionRequest.model_validate(body)
        self._knows(asked.model)
        prompts = [self.service.prompt(one) for one in asked.prompts]
        if not 1 <= len(prompts) * (asked.n or 1) <= MOST_CHOICES:
            raise HttpProblem(400, f"prompt: 1 to {MOST_CHOICES} answers in all", param="prompt")
        wish = self._wish(asked, prompts, asked.max_tokens, top=asked.logprobs or 0)
        form = _Completion(self._head("cmpl", "text_completion", asked), asked.logprobs is not None)
        return await self._outcome(asked, wish, form)

    async def _outcome(self, asked: SamplingFields, wish: GenerationRequest, form: _Form) -> Outcome:
        form.tokenizer = self.service.model.tokenizer
        if asked.stream:
            return self._events(asked, wish, form)
        answers = await self.service.answers(wish)
        choices = [form.choice(number, answer) for number, answer in enumerate(answers)]
        if asked.return_token_ids:
            for choice, answer in zip(choices, answers, strict=True):
                choice["token_ids"] = [one.token for one in answer.tokens]
        return orjson.dumps({**form.head, "choices": choices, "usage": _usage(wish, answers)})

    async def _events(
        self, asked: SamplingFields, wish: GenerationRequest, form: _Form
    ) -> AsyncGenerator[bytes]:
        answers: list[Answer] = []
        opened: set[int] = set()
        unknown = {"usage": None} if asked.counts_usage else {}
        async with aclosing(self.service.pieces(wish)) as pieces:
            async for piece in pieces:
                opening = [] if piece.choice in opened else form.opening(piece.choice)
                opened.add(piece.choice)
                deltas = form.deltas(piece)
                if asked.return_token_ids:
                    deltas[0]["token_ids"] = [one.token for one in piece.tokens]
                for choice in [*opening, *deltas]:
                    yield _event({**form.chunk_head, "choices": [choice], **unknown})
                if piece.answer is not None:
                    answers.append(piece.answer)
        if asked.counts_usage:
            yield _event({**form.chunk_head, "choices": [], "usage": _usage(wish, answers)})
        yield DONE

    def _knows(self, model: str) -> None:
        if model != self.service.model.name:
            raise HttpProblem(
                404,
                f"the model {model!r} does not exist here; {self.service.model.name!r} does",
                param="model",
                code="model_not_found",
            )

    def _wish(
        self, asked: SamplingFields, prompts: Sequence[PromptTokens], max_tokens: int | None, *, top: int
    ) -> GenerationRequest:
        sampling = self.service.sampling(
            temperature=asked.temperature,
            top_p=asked.top_p,
            top_k=asked.top_k,
            max_tokens=max_tokens,
            stop=asked.stops,
            seed=asked.seed,
            top=top,
        )
        return GenerationRequest(prompts, sampling, asked.n or 1)

    def _head(self, prefix: str, kind: str, asked: SamplingFields) -> dict[str, Any]:
        name = f"{prefix}-{uuid.uuid4().hex}"
        return {"id": name, "object": kind, "created": int(time.time()), "model": asked.model}


class _Form:
    """How one of the two endpoints writes choices, whole and in pieces."""

    tokenizer: Any

    def __init__(self, head: dict[str, Any], log_probs: bool) -> None:
        self.head, self.log_probs = head, log_probs
        self.chunk_head = head

    def opening(self, number: int) -> list[dict[str, Any]]:
        return []

    def choice(self, number: int, answer: Answer) -> dict[str, Any]:
        raise NotImplementedError

    def deltas(self, piece: AnswerPiece) -> list[dict[str, Any]]:
        raise NotImplementedError

    def _token(self, token: int) -> str:
        return str(self.tokenizer.backend.decode([token], skip_special_tokens=False))


class _Chat(_Form):
    def __init__(self, head: dict[str, Any], log_probs: bool) -> None:
        super().__init__(head, log_probs)
        self.chunk_head = {**head, "object": "chat.completion.chunk"}

    def opening(self, number: int) -> list[dict[str, Any]]:
        return [_delta(number, {"role": "assistant", "content": ""})]

    def choice(self, number: int, answer: Answer) -> dict[str, Any]:
        said = answer.said
        message: dict[str, Any] = {"role": "assistant", "content": said.text, "refusal": None}
        if said.calls:
            message |= {"content": said.text or None, "tool_calls": [_call(call) for call in said.calls]}
        return {
            "index": number,
            "message": message,
            "logprobs": self._log_probs(answer.tokens),
            "finish_reason": FINISH[said.finish],
        }

    def deltas(self, piece: AnswerPiece) -> list[dict[str, Any]]:
        log_probs = self._log_probs(piece.tokens)
        made = []
        if piece.text or (piece.tokens and self.log_probs):
            made.append(_delta(piece.choice, {"content": piece.text}, log_probs))
        if piece.answer is not None:
            for place, call in enumerate(piece.answer.said.calls):
                made.append(_delta(piece.choice, {"tool_calls": [{"index": place, **_call(call)}]}))
            made.append(_delta(piece.choice, {}, finish=FINISH[piece.answer.said.finish]))
        return made

    def _log_probs(self, tokens: Sequence[Drawn]) -> dict[str, Any] | None:
        if not self.log_probs:
            return None
        content = [
            {
                **self._likelihood(one.token, one.log_prob),
                "top_logprobs": [self._likelihood(*other) for other in one.top],
            }
            for one in tokens
        ]
        return {"content": content, "refusal": None}

    def _likelihood(self, token: int, log_prob: float) -> dict[str, Any]:
        text = self._token(token)
        return {"token": text, "logprob": log_prob, "bytes": list(text.encode())}


class _Completion(_Form):
    def __init__(self, head: dict[str, Any], log_probs: bool) -> None:
        super().__init__(head, log_probs)
        self._offsets: dict[int, int] = {}

    def choice(self, number: int, answer: Answer) -> dict[str, Any]:
        return self._choice(number, answer.said.text, answer.tokens, answer.said)

    def deltas(self, piece: AnswerPiece) -> list[dict[str, Any]]:
        said = piece.answer.said if piece.answer is not None else None
        return [self._choice(piece.choice, piece.text, piece.tokens, said)]

    def _choice(self, number: int, text: str, tokens: Sequence[Drawn], said: Said | None) -> dict[str, Any]:
        finish = None if said is None else FINISH[said.finish]
        log_probs = self._log_probs(number, tokens)
        return {"index": number, "text": text, "logprobs": log_probs, "finish_reason": finish}

    def _log_probs(self, number: int, tokens: Sequence[Drawn]) -> dict[str, Any] | None:
        if not self.log_probs:
            return None
        texts = [self._token(one.token) for one in tokens]
        offsets, place = [], self._offsets.get(number, 0)
        for text in texts:
            offsets.append(place)
            place += len(text)
        self._offsets[number] = place
        return {
            "tokens": texts,
            "token_logprobs": [one.log_prob for one in tokens],
            "top_logprobs": [{self._token(token): p for token, p in one.top} for one in tokens],
            "text_offset": offsets,
        }


def _delta(
    number: int, delta: dict[str, Any], log_probs: Any = None, finish: str | None = None
) -> dict[str, Any]:
    return {"index": number, "delta": delta, "logprobs": log_probs, "finish_reason": finish}


def _call(call: ToolRequest) -> dict[str, Any]:
    function = {"name": call.name, "arguments": to_json(call.arguments)}
    return {"id": call.id or f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": function}


def _usage(wish: GenerationRequest, answers: Sequence[Answer]) -> dict[str, int]:
    read = sum(len(prompt.tokens) for prompt in wish.prompts)
    written = sum(len(answer.tokens) for answer in answers)
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"
