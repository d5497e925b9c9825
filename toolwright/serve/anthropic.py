"""Anthropic's protocol: messages, and how many tokens they have."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any

import orjson

from toolwright.agents.formats.arguments import to_json
from toolwright.providers.blocks import to_messages, to_tools
from toolwright.providers.local import PromptTokens, Said
from toolwright.serve.openai import Outcome
from toolwright.serve.problems import HttpProblem
from toolwright.serve.requests import CountRequest, MessagesRequest
from toolwright.serve.service import Answer, GenerationRequest, ModelService
from toolwright.tools.call import ToolRequest

FINISH = {"stop": "end_turn", "length": "max_tokens", "tools": "tool_use"}


class Anthropic:
    def __init__(self, service: ModelService) -> None:
        self.service = service

    async def messages(self, body: Any) -> Outcome:
        asked = MessagesRequest.model_validate(body)
        prompt = self._prompt(asked)
        sampling = self.service.sampling(
            temperature=asked.temperature,
            top_p=asked.top_p,
            top_k=asked.top_k,
            max_tokens=asked.max_tokens,
            stop=asked.stop_sequences or (),
        )
        wish = GenerationRequest([prompt], sampling)
        head = {
            "id": f"msg_{uuid.uuid4().hex}",
            "type": "message",
            "role": "assistant",
            "model": asked.model,
        }
        if asked.stream:
            return self._events(wish, head, len(prompt.tokens))
        answer = (await self.service.answers(wish))[0]
        return orjson.dumps(
            {
                **head,
                "content": _blocks(answer.said),
                **_stop(answer.said),
                "usage": _usage(len(prompt.tokens), len(answer.tokens)),
            }
        )

    async def count_tokens(self, body: Any) -> Outcome:
        return orjson.dumps({"input_tokens": len(self._prompt(CountRequest.model_validate(body)).tokens)})

    def _prompt(self, asked: CountRequest) -> PromptTokens:
        if asked.model != self.service.model.name:
            raise HttpProblem(
                404, f"model: {asked.model} does not exist here; {self.service.model.name} does"
            )
        turns = [turn.model_dump(exclude_none=True) for turn in asked.messages]
        system = (
            asked.system if isinstance(asked.system, str) else [b.model_dump() for b in asked.system or ()]
        )
        tools = to_tools([tool.model_dump(exclude_none=True) for tool in asked.offered])
        return self.service.opening(to_messages(system, turns), tools)

    async def _events(
        self, wish: GenerationRequest, head: dict[str, Any], read: int
    ) -> AsyncGenerator[bytes]:
        """A block of text if there is any, then one for each call."""
        async with aclosing(self.service.pieces(wish)) as pieces:
            texts, begun = 0, False
            async for piece in pieces:
                if not begun:
                    begun = True
                    empty: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None}
                    yield _event("message_start", message={**head, **empty, "usage": _usage(read, 0)})
                if piece.text:
                    if not texts:
                        texts = 1
                        block = {"type": "text", "text": ""}
                        yield _event("content_block_start", index=0, content_block=block)
                    delta = {"type": "text_delta", "text": piece.text}
                    yield _event("content_block_delta", index=0, delta=delta)
                if piece.answer is not None:
                    for event in _ending(piece.answer, texts, read):
                        yield event


def _ending(answer: Answer, texts: int, read: int) -> Iterator[bytes]:
    """What follows the last word: the calls, each whole, and why it is over."""
    if texts:
        yield _event("content_block_stop", index=0)
    for place, call in enumerate(answer.said.calls, start=texts):
        arguments = {"type": "input_json_delta", "partial_json": to_json(call.arguments)}
        yield _event("content_block_start", index=place, content_block={**_use(call), "input": {}})
        yield _event("content_block_delta", index=place, delta=arguments)
        yield _event("content_block_stop", index=place)
    yield _event("message_delta", delta=_stop(answer.said), usage=_usage(read, len(answer.tokens)))
    yield _event("message_stop")


def _blocks(said: Said) -> list[dict[str, Any]]:
    words: list[dict[str, Any]] = [{"type": "text", "text": said.text}] if said.text else []
    return [*words, *(_use(call) for call in said.calls)]


def _use(call: ToolRequest) -> dict[str, Any]:
    name = call.id or f"toolu_{uuid.uuid4().hex[:24]}"
    arguments = orjson.Fragment(to_json(call.arguments))  # a model's numbers may have any length
    return {"type": "tool_use", "id": name, "name": call.name, "input": arguments}


def _stop(said: Said) -> dict[str, Any]:
    reason = "stop_sequence" if said.stopped_by is not None else FINISH[said.finish]
    return {"stop_reason": reason, "stop_sequence": said.stopped_by}


def _usage(read: int, written: int) -> dict[str, int]:
    return {"input_tokens": read, "output_tokens": written}


def _event(kind: str, **fields: Any) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + orjson.dumps({"type": kind, **fields}) + b"\n\n"
