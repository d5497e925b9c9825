"""The ASGI application of a served model, its metrics, and the server around it."""

from __future__ import annotations

import socket
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import orjson

from toolwright.providers.local import LocalModel
from toolwright.serve.anthropic import Anthropic
from toolwright.serve.exchange import Exchange, RequestLog
from toolwright.serve.openai import OpenAI, Outcome
from toolwright.serve.problems import HttpProblem
from toolwright.serve.recorder import Recorder
from toolwright.serve.requests import FeedbackRequest
from toolwright.serve.responses import Responses
from toolwright.serve.service import ModelService
from toolwright.web import serving
from toolwright.web.address import url_of
from toolwright.web.asgi import HttpReply, Receive, Scope, Send
from toolwright.web.callers import Callers
from toolwright.web.metrics import RequestMetrics

MODELS = "/v1/models"
TOKEN_VARIABLE = "TOOLWRIGHT_SERVE_TOKEN"


Handler = Callable[[Any], Awaitable[Outcome]]


def endpoints(service: ModelService) -> dict[str, Handler]:
    """Return the handler of a POST to each path."""
    openai, anthropic, responses = OpenAI(service), Anthropic(service), Responses(service)
    return {
        "/v1/chat/completions": openai.chat,
        "/v1/completions": openai.completions,
        "/v1/responses": responses.create,
        "/v1/messages": anthropic.messages,
        "/v1/messages/count_tokens": anthropic.count_tokens,
    }


def models(service: ModelService, path: str) -> HttpReply:
    """The answer to a GET of the models, or of the one that there is, with the fields of both protocols."""
    name, started = service.model.name, service.started
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started))
    openai = {"id": name, "object": "model", "created": started, "owned_by": "toolwright"}
    anthropic = {"type": "model", "display_name": name, "created_at": since}
    model = {**openai, **anthropic, "max_model_len": service.model.engine.context}
    if path == MODELS:
        ends = {"first_id": name, "last_id": name, "has_more": False}
        return HttpReply(orjson.dumps({"object": "list", "data": [model], **ends}))
    service.check_model(path.removeprefix(MODELS + "/"))
    return HttpReply(orjson.dumps(model))


class ServeApp:
    """Routes. While `draining`, new requests are refused and running ones finish."""

    def __init__(self, service: ModelService, callers: Callers) -> None:
        self.draining = False
        self._callers, self._metrics, self._recorder = callers, ServeMetrics(service), service.recorder
        self._service = service
        self._get: dict[str, Callable[[], HttpReply]] = {
            "/health": self._health,
            "/metrics": self._metrics.reply,
            MODELS: lambda: models(service, MODELS),
        }
        self._post = {**endpoints(service), "/v1/feedback": self._feedback}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        send = self._callers.with_cors(scope, send)
        exchange = Exchange(scope, receive, send, self._metrics, self._route(scope["path"]))
        await exchange.run(lambda: self._answer(exchange))

    async def _answer(self, exchange: Exchange) -> HttpReply | AsyncGenerator[bytes]:
        path, method = exchange.path, exchange.method
        reply = self._callers.check(exchange.scope)
        if reply is not None:
            return reply
        if method in ("GET", "HEAD"):
            if path in self._get:
                return self._get[path]()
            if path.startswith(MODELS + "/"):
                return models(self._service, path)
        handler = self._post.get(path) if method == "POST" else None
        if handler is None:
            known = path in self._get or path in self._post
            text = f"{path} does not take {method}" if known else f"there is nothing at {path}"
            raise HttpProblem(405 if known else 404, text)
        if self.draining:
            raise HttpProblem(503, "the server is stopping")
        outcome = await handler(await exchange.body())
        return HttpReply(outcome) if isinstance(outcome, bytes) else outcome

    async def _feedback(self, raw: Any) -> Outcome:
        if self._recorder is None:
            raise HttpProblem(404, "this server keeps no record: start it with --record DIR")
        return await self._recorder.feedback(FeedbackRequest.model_validate(raw))

    def _health(self) -> HttpReply:
        if self.draining:
            raise HttpProblem(503, "the server is stopping")
        return HttpReply(b'{"status":"ok"}')

    def _route(self, path: str) -> str:
        """The label of a path in metrics. Unknown paths share one, so callers cannot create new ones."""
        if path in self._get or path in self._post:
            return path
        return MODELS + "/{model}" if path.startswith(MODELS + "/") else "other"


async def serve(
    model: LocalModel,
    listening: socket.socket,
    *,
    callers: Callers,
    queue_limit: int = 1024,
    drain_s: float = 30.0,
    recorder: Recorder | None = None,
    log: Callable[[str], None],
) -> None:
    """Serve a model until SIGTERM or SIGINT, then finish the requests under way."""
    service = ModelService(model, queue_limit=queue_limit)
    service.recorder = recorder
    app = ServeApp(service, callers)
    try:
        await serving.serve(
            app,
            listening,
            drain_s=drain_s,
            on_start=lambda: log(f"serving {model.name} on {url_of(listening)}"),
        )
    finally:
        if recorder is not None:
            await recorder.close()
        await model.close()


_BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)


class ServeMetrics(RequestMetrics, RequestLog):
    """Requests, tokens, and the time to the first event of a stream."""

    def __init__(self, service: ModelService) -> None:
        gauges = (
            ("under_way", "Answers that are generated or queued", lambda: service.under_way),
            ("prompt_tokens", "Prompt tokens since the start", lambda: service.prompt_tokens),
            ("completion_tokens", "Completion tokens since the start", lambda: service.completion_tokens),
            ("aborted", "Answers cancelled because the caller disconnected", lambda: service.aborted),
        )
        super().__init__("serve", gauges, buckets=_BUCKETS)
        self._first = self.histogram("first_event_seconds", "Time to the first event of a stream")

    def first(self, route: str, started: float) -> None:
        self._first.labels(route).observe(time.perf_counter() - started)
