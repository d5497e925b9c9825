"""Traces of attempts: what a receiver of OTLP gets, decoded."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from tests.json_server import PlainServer
from tests.observe.test_tracking import tracked

CONFIG = {
    "rollout": {"agent": "tool_use", "temperature": 0.7, "max_tokens": 64},
    "model": {"path": "models/a"},
}


@contextmanager
def receiver(spans: list[Span]) -> Iterator[str]:
    """A server that takes traces as a collector does."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                import gzip

                body = gzip.decompress(body)
            assert self.path == "/v1/traces"
            request = ExportTraceServiceRequest.FromString(body)
            for resource in request.resource_spans:
                for scope in resource.scope_spans:
                    spans.extend(scope.spans)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = PlainServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def facts(span: Span) -> dict[str, Any]:
    found = {}
    for attribute in span.attributes:
        kind = attribute.value.WhichOneof("value")
        value = getattr(attribute.value, kind)
        found[attribute.key] = (
            [item.string_value for item in value.values] if kind == "array_value" else value
        )
    return found


def traces(run: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> list[Span]:
    spans: list[Span] = []
    with receiver(spans) as url:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        assert tracked(run, {"otel": settings}, steps=2, config=CONFIG) == []
    return spans


def test_an_attempt_is_one_trace_of_model_and_tool_calls(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spans = traces(run, monkeypatch)
    roots = [span for span in spans if not span.parent_span_id]
    assert len(roots) == 8  # four attempts in each of two steps
    assert len({span.trace_id for span in spans}) == 8
    root = next(span for span in roots if facts(span)["toolwright.attempt"] == 1)
    told = facts(root)
    assert root.name == "invoke_agent tool_use"
    assert told["gen_ai.operation.name"] == "invoke_agent"
    assert (told["toolwright.run"], told["toolwright.step"]) == (run.name, 1)
    assert (told["toolwright.group"], told["toolwright.reward"]) == ("s1-apple", 1.0)
    (score,) = root.events
    assert score.name == "gen_ai.evaluation.result"
    children = [span for span in spans if span.parent_span_id == root.span_id]
    chats = [span for span in children if span.name == "chat models/a"]
    assert [span.kind for span in chats] == [Span.SPAN_KIND_CLIENT] * 2
    first, second = map(facts, chats)
    assert (first["gen_ai.usage.input_tokens"], first["gen_ai.usage.output_tokens"]) == (2, 2)
    assert (second["gen_ai.usage.input_tokens"], second["gen_ai.usage.output_tokens"]) == (6, 1)
    assert first["gen_ai.response.finish_reasons"] == ["tool_calls"]
    assert second["gen_ai.response.finish_reasons"] == ["stop"]
    assert (first["gen_ai.request.temperature"], first["gen_ai.request.max_tokens"]) == (0.7, 64)
    call, malformed = (span for span in children if span.name.startswith("execute_tool"))
    assert facts(call)["gen_ai.tool.name"] == "calculator"
    assert call.end_time_unix_nano - call.start_time_unix_nano == pytest.approx(0.012e9, rel=1e-3)
    assert facts(malformed)["error.type"] == "malformed"
    assert malformed.status.code == Status.STATUS_CODE_ERROR
    assert root.start_time_unix_nano <= min(span.start_time_unix_nano for span in children)


def test_a_failed_attempt_is_a_trace_with_an_error(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spans = traces(run, monkeypatch)
    failed = [s for s in spans if not s.parent_span_id and s.status.code == Status.STATUS_CODE_ERROR]
    assert len(failed) == 2
    assert failed[0].status.message == "the sandbox took more than 30 s"


def test_messages_are_sent_only_where_somebody_says_so(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def content(spans: list[Span]) -> set[str]:
        private = ("messages", "arguments", "result")
        return {key for span in spans for key in facts(span) if key.endswith(private)}

    assert content(traces(run, monkeypatch, attempts=1)) == set()
    spans = traces(run, monkeypatch, attempts=2, content=True)
    assert content(spans) == {
        "gen_ai.input.messages",
        "gen_ai.output.messages",
        "gen_ai.tool.call.arguments",
        "gen_ai.tool.call.result",
    }
    last = [facts(span) for span in spans if span.name.startswith("chat")][1]
    roles = [message["role"] for message in json.loads(last["gen_ai.input.messages"])]
    assert roles == ["system", "user", "assistant", "tool", "user"]
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "true")
    assert content(traces(run, monkeypatch, attempts=1))


def test_a_receiver_out_of_reach_is_said_in_the_log(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    settings = {"otel": {"endpoint": "http://127.0.0.1:9", "attempts": 1}}
    said = tracked(run, settings, steps=1)
    assert "check OTEL_EXPORTER_OTLP_ENDPOINT" in said[0]
