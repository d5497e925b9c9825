"""OpenAI's Responses: one conversation of items, with text, function calls and what they returned."""

from __future__ import annotations

import time
import uuid
from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any

import orjson

from toolwright.agents.formats.arguments import to_json
from toolwright.providers.blocks import plain_text
from toolwright.serve.openai import Outcome
from toolwright.serve.problems import HttpProblem
from toolwright.serve.requests import ResponsesRequest
from toolwright.serve.service import Answer, GenerationRequest, ModelService

REMEMBERED = 1024  # conversations that `previous_response_id` may go on from

Message = dict[str, Any]
Item = dict[str, Any]


class Responses:
    """The endpoint `/v1/responses`. It remembers conversations that are to be stored."""

    def __init__(self, service: ModelService) -> None:
        self.service = service
        self._known: OrderedDict[str, list[Message]] = OrderedDict()

    async def create(self, raw: Any) -> Outcome:
        body = ResponsesRequest.model_validate(raw)
        self.service.check_model(body.model)
        said = [*self._before(body.previous_response_id), *to_messages(body.input)]
        system = [{"role": "system", "content": body.instructions}] if body.instructions else []
        prompt = self.service.chat_prompt([*system, *said], body.offered)
        sampling = self.service.sampling(
            body,
            max_tokens=body.max_output_tokens,
            seed=body.seed,
            top=body.top_logprobs or 0,
            schema=body.text.format if body.text else "",
        )
        head = self._head(body)
        request = GenerationRequest([prompt], sampling, id=head["id"])
        if body.stream:
            return self._events(request, head, said, body)
        answer = (await self.service.answers(request))[0]
        return orjson.dumps(self._whole(head, request, answer, said, body))

    def _before(self, identifier: str | None) -> list[Message]:
        if identifier is None:
            return []
        if identifier not in self._known:
            raise HttpProblem(
                404, f"there is no response {identifier!r} to continue here", param="previous_response_id"
            )
        return self._known[identifier]

    def _head(self, body: ResponsesRequest) -> dict[str, Any]:
        return {
            "id": f"resp_{uuid.uuid4().hex}",
            "object": "response",
            "created_at": int(time.time()),
            "model": body.model,
            "instructions": body.instructions,
            "previous_response_id": body.previous_response_id,
            "max_output_tokens": body.max_output_tokens,
            "temperature": body.temperature,
            "top_p": body.top_p,
            "tools": [tool.model_dump(exclude_none=True) for tool in body.tools or ()],
            "tool_choice": "none" if body.tool_choice == "none" else "auto",
            "parallel_tool_calls": True,
            "metadata": body.metadata or {},
            "text": {"format": {"type": "text"}},
            "error": None,
        }

    def _whole(
        self,
        head: dict[str, Any],
        request: GenerationRequest,
        answer: Answer,
        said: list[Message],
        body: ResponsesRequest,
        items: list[Item] | None = None,
    ) -> dict[str, Any]:
        """The finished response. Its conversation is remembered, unless `store` is false."""
        items = list(_items(answer)) if items is None else items
        if body.store is not False:
            self._known[head["id"]] = [*said, *to_messages(items)]
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        cut = answer.completion.finish == "length"
        given, made = len(request.prompts[0].tokens), len(answer.tokens)
        usage = {
            "input_tokens": given,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": made,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": given + made,
        }
        return {
            **head,
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": items,
            "usage": usage,
        }

    async def _events(
        self, request: GenerationRequest, head: dict[str, Any], said: list[Message], body: ResponsesRequest
    ) -> AsyncGenerator[bytes]:
        number = 0

        def event(kind: str, **fields: Any) -> bytes:
            nonlocal number
            number += 1
            value = {"type": kind, "sequence_number": number - 1, **fields}
            return b"event: " + kind.encode() + b"\ndata: " + orjson.dumps(value) + b"\n\n"

        empty = {**head, "status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
        message = _message("")
        place = {"item_id": message["id"], "output_index": 0, "content_index": 0}
        spoken = False
        async with aclosing(self.service.pieces(request)) as pieces:
            async for piece in pieces:
                if not number:
                    yield event("response.created", response=empty)
                    yield event("response.in_progress", response=empty)
                if piece.text:
                    if not spoken:
                        spoken = True
                        opened = {**message, "status": "in_progress", "content": []}
                        yield event("response.output_item.added", output_index=0, item=opened)
                        yield event("response.content_part.added", **place, part=message["content"][0])
                    yield event("response.output_text.delta", **place, delta=piece.text, logprobs=[])
                if piece.answer is None:
                    continue
                items = list(_items(piece.answer, message["id"], spoken=spoken))
                if spoken:
                    part = items[0]["content"][0]
                    yield event("response.output_text.done", **place, text=part["text"], logprobs=[])
                    yield event("response.content_part.done", **place, part=part)
                    yield event("response.output_item.done", output_index=0, item=items[0])
                for index, item in enumerate(items[spoken:], start=int(spoken)):
                    for kind, fields in _item_events(item, index):
                        yield event(kind, **fields)
                whole = self._whole(head, request, piece.answer, said, body, items)
                kind = "completed" if whole["status"] == "completed" else "incomplete"
                yield event(f"response.{kind}", response=whole)


def _items(answer: Answer, identifier: str = "", *, spoken: bool = False) -> Iterator[Item]:
    """Yield what the answer says, if anything, and each of its calls."""
    parsed = answer.completion
    if parsed.text or spoken or not parsed.calls:
        yield _message(parsed.text, identifier)
    for call in parsed.calls:
        yield {
            "type": "function_call",
            "id": f"fc_{uuid.uuid4().hex}",
            "call_id": call.id or f"call_{uuid.uuid4().hex[:24]}",
            "name": call.name,
            "arguments": to_json(call.arguments),
            "status": "completed",
        }


def _message(text: str, identifier: str = "") -> Item:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {
        "type": "message",
        "id": identifier or f"msg_{uuid.uuid4().hex}",
        "role": "assistant",
        "status": "completed",
        "content": [part],
    }


def _item_events(item: Item, index: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """The events of an item that is there as a whole."""
    if item["type"] == "function_call":
        opened = {**item, "arguments": "", "status": "in_progress"}
        place = {"item_id": item["id"], "output_index": index}
        yield "response.output_item.added", {"output_index": index, "item": opened}
        yield "response.function_call_arguments.delta", {**place, "delta": item["arguments"]}
        named = {"arguments": item["arguments"], "name": item["name"]}
        yield "response.function_call_arguments.done", {**place, **named}
    else:
        yield "response.output_item.added", {"output_index": index, "item": item}
    yield "response.output_item.done", {"output_index": index, "item": item}


def to_messages(given: str | list[Item]) -> list[Message]:
    """Items as chat messages. What the assistant says and calls in one turn is one message."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    messages: list[Message] = []
    for item in given:
        kind = item.get("type") or "message"
        if kind == "reasoning":
            continue
        last = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
        if kind == "function_call_output":
            text = _text(item.get("output"))
            messages.append({"role": "tool", "tool_call_id": item.get("call_id", ""), "content": text})
        elif kind == "function_call":
            function = {"name": item["name"], "arguments": item.get("arguments") or "{}"}
            call = {"id": item.get("call_id", ""), "type": "function", "function": function}
            if last is None:
                last = {"role": "assistant", "content": None}
                messages.append(last)
            last["tool_calls"] = [*last.get("tool_calls", ()), call]
        else:
            messages.append({"role": item["role"], "content": _text(item.get("content"))})
    return messages


def _text(content: Any) -> str:
    if isinstance(content, list):
        content = [{**part, "type": "text"} for part in content]
    return plain_text(content)
