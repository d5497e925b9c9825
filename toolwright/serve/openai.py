"""OpenAI's protocol: chat completions and completions."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import orjson

from toolwright.agents.formats.arguments import to_json
from toolwright.engines import SampledToken
from toolwright.models.tokenizer import Tokenizer
from toolwright.providers.local import ParsedCompletion, PromptTokens
from toolwright.serve.problems import HttpProblem
from toolwright.serve.requests import MOST_CHOICES, ChatRequest, CompletionRequest, SamplingFields
from toolwright.serve.service import Answer, AnswerPiece, GenerationRequest, ModelService
from toolwright.tools.call import ToolRequest

FINISH = {"stop": "stop", "length": "length", "tools": "tool_calls"}
DONE = b"data: [DONE]\n\n"

# A whole body, or the events of one that is generated while it is sent.
Outcome = bytes | AsyncGenerator[bytes]


class OpenAI:
    """OpenAI's endpoints."""

    def __init__(self, service: ModelService) -> None:
        self.service = service

    async def chat(self, raw: Any) -> Outcome:
        body = ChatRequest.model_validate(raw)
        self.service.check_model(body.model)
        messages = [message.plain() for message in body.messages]
        prompt = self.service.chat_prompt(messages, body.offered)
        max_tokens = body.max_completion_tokens or body.max_tokens
        head = self._head("chatcmpl", "chat.completion", body)
        request = self._generation(head, body, [prompt], max_tokens, top=body.top_logprobs or 0)
        form = _Chat(head, self.service.model.tokenizer, log_probs=bool(body.logprobs))
        return await self._outcome(body, request, form)

    async def completions(self, raw: Any) -> Outcome:
        body = CompletionRequest.model_validate(raw)
        self.service.check_model(body.model)
        prompts = [self.service.raw_prompt(prompt) for prompt in body.prompts]
        if not 1 <= len(prompts) * (body.n or 1) <= MOST_CHOICES:
            raise HttpProblem(400, f"prompt: 1 to {MOST_CHOICES} answers in all", param="prompt")
        head = self._head("cmpl", "text_completion", body)
        request = self._generation(head, body, prompts, body.max_tokens, top=body.logprobs or 0)
        form = _Completion(head, self.service.model.tokenizer, log_probs=body.logprobs is not None)
        return await self._outcome(body, request, form)

    async def _outcome(self, body: SamplingFields, request: GenerationRequest, form: _Form) -> Outcome:
        if body.stream:
            return self._events(body, request, form)
        answers = await self.service.answers(request)
        choices = [form.choice(number, answer) for number, answer in enumerate(answers)]
        if body.return_token_ids:
            for choice, answer in zip(choices, answers, strict=True):
                choice["token_ids"] = [drawn.token for drawn in answer.tokens]
        return orjson.dumps({**form.head, "choices": choices, "usage": _usage(request, answers)})

    async def _events(
        self, body: SamplingFields, request: GenerationRequest, form: _Form
    ) -> AsyncGenerator[bytes]:
        answers: list[Answer] = []
        begun: set[int] = set()
        unknown = {"usage": None} if body.counts_usage else {}
        async with aclosing(self.service.pieces(request)) as pieces:
            async for piece in pieces:
                opening = [] if piece.choice in begun else form.opening(piece.choice)
                begun.add(piece.choice)
                deltas = form.deltas(piece)
                if body.return_token_ids:
                    deltas[0]["token_ids"] = [drawn.token for drawn in piece.tokens]
                for choice in [*opening, *deltas]:
                    yield _event({**form.chunk_head, "choices": [choice], **unknown})
                if piece.answer is not None:
                    answers.append(piece.answer)
        if body.counts_usage:
            yield _event({**form.chunk_head, "choices": [], "usage": _usage(request, answers)})
        yield DONE

    def _generation(
        self,
        head: dict[str, Any],
        body: SamplingFields,
        prompts: Sequence[PromptTokens],
        max_tokens: int | None,
        *,
        top: int,
    ) -> GenerationRequest:
        sampling = self.service.sampling(
            body,
            max_tokens=max_tokens,
            stop=body.stops,
            seed=body.seed,
            top=top,
            schema=body.response_format,
        )
        return GenerationRequest(prompts, sampling, body.n or 1, head["id"])

    def _head(self, prefix: str, kind: str, body: SamplingFields) -> dict[str, Any]:
        name = f"{prefix}-{uuid.uuid4().hex}"
        return {"id": name, "object": kind, "created": int(time.time()), "model": body.model}


class _Form:
    """The way an endpoint writes choices: whole, and in pieces."""

    def __init__(self, head: dict[str, Any], tokenizer: Tokenizer, *, log_probs: bool) -> None:
        self.head, self.tokenizer, self.log_probs = head, tokenizer, log_probs
        self.chunk_head = head
        self.offsets: dict[int, int] = {}  # of the next token in the text of a choice

    def opening(self, number: int) -> list[dict[str, Any]]:
        return []

    def choice(self, number: int, answer: Answer) -> dict[str, Any]:
        raise NotImplementedError

    def deltas(self, piece: AnswerPiece) -> list[dict[str, Any]]:
        raise NotImplementedError

    def _token(self, token: int) -> str:
        return str(self.tokenizer.backend.decode([token], skip_special_tokens=False))


class _Chat(_Form):
    def __init__(self, head: dict[str, Any], tokenizer: Tokenizer, *, log_probs: bool) -> None:
        super().__init__(head, tokenizer, log_probs=log_probs)
        self.chunk_head = {**head, "object": "chat.completion.chunk"}

    def opening(self, number: int) -> list[dict[str, Any]]:
        return [_delta(number, {"role": "assistant", "content": ""})]

    def choice(self, number: int, answer: Answer) -> dict[str, Any]:
        parsed = answer.completion
        message: dict[str, Any] = {"role": "assistant", "content": parsed.text, "refusal": None}
        if parsed.calls:
            message |= {"content": parsed.text or None, "tool_calls": [_call(call) for call in parsed.calls]}
        return {
            "index": number,
            "message": message,
            "logprobs": self._log_probs(answer.tokens),
            "finish_reason": FINISH[parsed.finish],
        }

    def deltas(self, piece: AnswerPiece) -> list[dict[str, Any]]:
        log_probs = self._log_probs(piece.tokens)
        deltas = []
        if piece.text or (piece.tokens and self.log_probs):
            deltas.append(_delta(piece.choice, {"content": piece.text}, log_probs))
        if piece.answer is not None:
            for place, call in enumerate(piece.answer.completion.calls):
                deltas.append(_delta(piece.choice, {"tool_calls": [{"index": place, **_call(call)}]}))
            deltas.append(_delta(piece.choice, {}, finish=FINISH[piece.answer.completion.finish]))
        return deltas

    def _log_probs(self, tokens: Sequence[SampledToken]) -> dict[str, Any] | None:
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
    def choice(self, number: int, answer: Answer) -> dict[str, Any]:
        return self._choice(number, answer.completion.text, answer.tokens, answer.completion)

    def deltas(self, piece: AnswerPiece) -> list[dict[str, Any]]:
        parsed = piece.answer.completion if piece.answer is not None else None
        return [self._choice(piece.choice, piece.text, piece.tokens, parsed)]

    def _choice(
        self, number: int, text: str, tokens: Sequence[SampledToken], parsed: ParsedCompletion | None
    ) -> dict[str, Any]:
        finish = None if parsed is None else FINISH[parsed.finish]
        log_probs = self._log_probs(number, tokens)
        return {"index": number, "text": text, "logprobs": log_probs, "finish_reason": finish}

    def _log_probs(self, number: int, tokens: Sequence[SampledToken]) -> dict[str, Any] | None:
        if not self.log_probs:
            return None
        texts = [self._token(one.token) for one in tokens]
        offsets, place = [], self.offsets.get(number, 0)
        for text in texts:
            offsets.append(place)
            place += len(text)
        self.offsets[number] = place
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


def _usage(request: GenerationRequest, answers: Sequence[Answer]) -> dict[str, int]:
    prompt = sum(len(prompt.tokens) for prompt in request.prompts)
    completion = sum(len(answer.tokens) for answer in answers)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"
