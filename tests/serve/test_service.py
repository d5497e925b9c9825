"""What a service makes of an engine that cannot do what is asked of it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from tests import tiny
from toolwright.agents.formats.tags import Tags
from toolwright.config import schema
from toolwright.engines import Completion, Sampling
from toolwright.engines.native.engine import NativeEngine
from toolwright.engines.thread import InThread
from toolwright.failures import InfrastructureFailure, TaskFailure
from toolwright.providers.local import LocalModel
from toolwright.serve.app import MODELS, models
from toolwright.serve.problems import HttpProblem
from toolwright.serve.requests import ChatRequest, MessagesRequest, ResponsesRequest, SampledBody
from toolwright.serve.service import GenerationRequest, ModelService


class Silent(NativeEngine):
    """Tells of no token but those that it drew, as engines in other processes do."""

    async def generate(self, prompt: Sequence[int], sampling: Sampling, *, attempt: str) -> Completion:  # type: ignore[override]
        return await super().generate(prompt, replace(sampling, top=0), attempt=attempt)


class Unwilling(NativeEngine):
    """As the one of a GPU."""

    error: Exception = TaskFailure("not on this device")

    async def generate(self, prompt: Sequence[int], sampling: Sampling, *, attempt: str) -> Completion:  # type: ignore[override]
        raise self.error


class Broken(Unwilling):
    error = InfrastructureFailure("it is gone")


def test_a_model_is_as_old_as_its_server(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = tiny.characters()
    engine = NativeEngine(
        schema.EngineConfig(slots=2), decoder=tiny.decoder(), tokenizer=tokenizer, dtype=torch.float32
    )
    service = ModelService(LocalModel("m", InThread(engine), tokenizer, Tags()), queue_limit=4)
    monkeypatch.setattr(time, "time", lambda: service.started + 1000.0)
    (listed,) = json.loads(models(service, MODELS).body)["data"]
    assert listed == json.loads(models(service, f"{MODELS}/m").body)
    assert listed["created"] == service.started
    asyncio.run(service.model.close())


@pytest.mark.parametrize(
    ("kind", "status", "message"),
    [(Silent, 400, "likeliest"), (Unwilling, 400, "not on this"), (Broken, 503, "it is gone")],
)
def test_what_an_engine_cannot_do_is_reported_and_whether_another_try_would_help(
    kind: type[NativeEngine], status: int, message: str
) -> None:
    tokenizer = tiny.characters()
    engine = kind(
        schema.EngineConfig(slots=2), decoder=tiny.decoder(), tokenizer=tokenizer, dtype=torch.float32
    )
    model = LocalModel("m", InThread(engine), tokenizer, Tags())
    service = ModelService(model, queue_limit=4)
    body = SampledBody(model="m", temperature=None, top_p=None, top_k=None)
    sampling = service.sampling(body, max_tokens=3, top=2)

    async def request() -> HttpProblem:
        try:
            with pytest.raises(HttpProblem) as caught:
                await service.answers(GenerationRequest([service.raw_prompt("1+1")], sampling))
            return caught.value
        finally:
            await model.close()

    problem = asyncio.run(request())
    assert problem.status == status
    assert message in problem.message
    assert service.under_way == 0


def test_the_schema_of_a_tool_is_kept_as_it_was_sent() -> None:
    """Templates show it to the policy, so that its order and its nulls are tokens."""
    sent = {"type": "object", "properties": {"b": {"type": "string", "default": None}}, "required": []}
    said = {"model": "m", "messages": [{"role": "user", "content": "go"}], "max_tokens": 1}
    function = {"name": "f", "parameters": sent}
    chat = ChatRequest.model_validate({**said, "tools": [{"type": "function", "function": function}]})
    answers = ResponsesRequest.model_validate(
        {"model": "m", "input": "go", "tools": [{"type": "function", **function}]}
    )
    messages = MessagesRequest.model_validate({**said, "tools": [{"name": "f", "input_schema": sent}]})
    kept = [one.offered[0]["function"]["parameters"] for one in (chat, answers)]
    for schema_kept in (*kept, messages.offered[0].model_dump()["input_schema"]):
        assert repr(schema_kept) == repr(sent)
