"""Anthropic's protocol: messages, and the count of their tokens."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any

import orjson

from toolwright.agents.formats.arguments import to_json
from toolwright.providers.blocks import to_messages, to_tools
from toolwright.providers.local import ParsedCompletion, PromptTokens
from toolwright.serve.openai import Outcome
from toolwright.serve.requests import CountRequest, MessagesRequest
from toolwright.serve.service import Answer, GenerationRequest, ModelService
from toolwright.tools.call import ToolRequest

FINISH = {"stop": "end_turn", "length": "max_tokens", "tools": "tool_use"}


class Anthropic:
    """Anthropic's endpoints."""

    def __init__(self, service: ModelService) -> None:
        self.service = service

    async def messages(self, raw: Any) -> Outcome:
        body = MessagesRequest.model_validate(raw)
        prompt = self._prompt(body)
        sampling = self.service.sampling(
            body,
            max_tokens=body.max_tokens,
            stop=body.stop_sequences or (),
            schema=body.output_format or (body.output_config.format if body.output_config else ""),
        )
        head = {
            "id": f"msg_{uuid.uuid4().hex}",
            "type": "message",
            "role": "assistant",
            "model": body.model,
        }
        request = GenerationRequest([prompt], sampling, id=head["id"])
        if body.stream:
            return self._events(request, head, len(prompt.tokens))
        answer = (await self.service.answers(request))[0]
        return orjson.dumps(
            {
                **head,
                "content": _blocks(answer.completion),
                **_stop(answer.completion),
                "usage": _usage(len(prompt.tokens), len(answer.tokens)),
            }
        )

    async def count_tokens(self, raw: Any) -> Outcome:
        return orjson.dumps({"input_tokens": len(self._prompt(CountRequest.model_validate(raw)).tokens)})

    def _prompt(self, body: CountRequest) -> PromptTokens:
        self.service.check_model(body.model)
        turns = [turn.model_dump(exclude_none=True) for turn in body.messages]
        system = body.system if isinstance(body.system, str) else [b.model_dump() for b in body.system or ()]
        tools = to_tools([tool.model_dump(exclude_none=True) for tool in body.offered])
        return self.service.chat_prompt(to_messages(system, turns), tools)

    async def _events(
        self, request: GenerationRequest, head: dict[str, Any], prompt_tokens: int
    ) -> AsyncGenerator[bytes]:
        """A block of text if there is any, then one for each call."""
        async with aclosing(self.service.pieces(request)) as pieces:
            text_blocks, begun = 0, False
            async for piece in pieces:
                if not begun:
                    begun = True
                    empty: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None}
                    yield _event(
                        "message_start", message={**head, **empty, "usage": _usage(prompt_tokens, 0)}
                    )
                if piece.text:
                    if not text_blocks:
                        text_blocks = 1
                        block = {"type": "text", "text": ""}
                        yield _event("content_block_start", index=0, content_block=block)
                    delta = {"type": "text_delta", "text": piece.text}
                    yield _event("content_block_delta", index=0, delta=delta)
                if piece.answer is not None:
                    for event in _ending(piece.answer, text_blocks, prompt_tokens):
                        yield event


def _ending(answer: Answer, text_blocks: int, prompt_tokens: int) -> Iterator[bytes]:
    """The events after the last text: each tool call as a whole, and the stop reason."""
    if text_blocks:
        yield _event("content_block_stop", index=0)
    for place, call in enumerate(answer.completion.calls, start=text_blocks):
        arguments = {"type": "input_json_delta", "partial_json": to_json(call.arguments)}
        yield _event("content_block_start", index=place, content_block={**_tool_use(call), "input": {}})
        yield _event("content_block_delta", index=place, delta=arguments)
        yield _event("content_block_stop", index=place)
    yield _event(
        "message_delta", delta=_stop(answer.completion), usage=_usage(prompt_tokens, len(answer.tokens))
    )
    yield _event("message_stop")


def _blocks(parsed: ParsedCompletion) -> list[dict[str, Any]]:
    text: list[dict[str, Any]] = [{"type": "text", "text": parsed.text}] if parsed.text else []
    return [*text, *(_tool_use(call) for call in parsed.calls)]


def _tool_use(call: ToolRequest) -> dict[str, Any]:
    identifier = call.id or f"toolu_{uuid.uuid4().hex[:24]}"
    arguments = orjson.Fragment(to_json(call.arguments))  # a model's numbers may have any length
    return {"type": "tool_use", "id": identifier, "name": call.name, "input": arguments}


def _stop(parsed: ParsedCompletion) -> dict[str, Any]:
    reason = "stop_sequence" if parsed.stopped_by is not None else FINISH[parsed.finish]
    return {"stop_reason": reason, "stop_sequence": parsed.stopped_by}


def _usage(prompt: int, completion: int) -> dict[str, int]:
    return {"input_tokens": prompt, "output_tokens": completion}


def _event(kind: str, **fields: Any) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + orjson.dumps({"type": kind, **fields}) + b"\n\n"
