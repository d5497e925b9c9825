"""OpenTelemetry: one trace an attempt by the GenAI conventions, sent by OTLP to the address in
OTEL_EXPORTER_OTLP_ENDPOINT."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from toolwright import __version__
from toolwright.observe.attempt import cut, messages
from toolwright.observe.trackers import TRACKERS, TrackedEnd, TrackedRun, TrackedStep, Tracker
from toolwright.trajectory import Segment, Trajectory

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import Span

CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
IN_SPANS = ("true", "span_only", "span_and_event")
TOGETHER = 512  # spans in one request
LONGEST = 20_000  # characters of a message
REASONS = {"eos": "stop", "stop": "stop", "done": "stop", "length": "length", "tokens": "length"}


@TRACKERS.register(
    "otel", needs=("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http.trace_exporter")
)
class OpenTelemetry(Tracker):
    """Times are those of the attempt as it was measured; its generation is divided among the turns by their
    tokens, and its beginning is that of the step.

    Args:
        endpoint: The receiver's address, instead of the variable's.
        content: Send messages, arguments and results too; None: as the conventions' variable says.
    """

    shown = None

    def __init__(self, *, endpoint: str | None = None, content: bool | None = None) -> None:
        said = os.environ.get(CONTENT, "").lower() in IN_SPANS
        self.endpoint, self.content = endpoint, said if content is None else content

    def begin(self, run: TrackedRun) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider

        address = self.endpoint and self.endpoint.removesuffix("/").removesuffix("/v1/traces") + "/v1/traces"
        self.exporter = OTLPSpanExporter(endpoint=address)
        self.ended: list[ReadableSpan] = []
        resource = Resource.create({"service.name": os.environ.get("OTEL_SERVICE_NAME", "toolwright")})
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(_collector(self.ended))
        self.tracer = provider.get_tracer("toolwright", __version__)
        rollout = run.config.get("rollout", {})
        model = (run.config.get("model") or {}).get("path") or "policy"
        self.run, self.agent = run, str(rollout.get("agent", "agent"))
        self.request = {
            "gen_ai.provider.name": "toolwright",
            "gen_ai.request.model": str(model),
            "gen_ai.request.temperature": float(rollout.get("temperature", 1.0)),
            "gen_ai.request.top_p": float(rollout.get("top_p", 1.0)),
        }
        if isinstance(most := rollout.get("max_tokens"), int):
            self.request["gen_ai.request.max_tokens"] = most

    def step(self, step: TrackedStep) -> None:
        began = step.time - step.metrics.get("time/total_s", 0.0)
        for attempt in step.attempts:
            self._trace(step, attempt, began)
            if len(self.ended) >= TOGETHER:
                self._send()
        self._send()

    def finish(self, end: TrackedEnd) -> None:
        self._send()
        self.exporter.shutdown()

    def _send(self) -> None:
        from opentelemetry.sdk.trace.export import SpanExportResult

        spans, self.ended[:] = list(self.ended), []
        if spans and self.exporter.export(spans) is not SpanExportResult.SUCCESS:
            raise ConnectionError(f"{len(spans)} spans were not accepted; check OTEL_EXPORTER_OTLP_ENDPOINT")

    def _trace(self, step: TrackedStep, attempt: Trajectory, began: float) -> None:
        root = self._span(f"invoke_agent {self.agent}", began, self._facts(step, attempt))
        now, before, history = began, 0, [_message(role, text) for role, text in messages(attempt)]
        rate = attempt.timings.get("generate_s", 0.0) / max(1, attempt.sampled_tokens)
        self._describe(root, **{"gen_ai.input.messages": history})
        for place, segment in enumerate(attempt.segments):
            if segment.source == "policy":
                ended = now + rate * len(segment.tokens)
                self._model_call(root, now, ended, before, history, attempt, place)
                now = ended
            elif segment.source != "prompt":
                for call in segment.calls:
                    self._tool_call(root, now, segment, call)
                now += max((_seconds(call) for call in segment.calls), default=0.0)
            before += len(segment.tokens)
            if segment.source != "prompt":
                role = {"policy": "assistant", "environment": "user"}.get(segment.source, "tool")
                history = [*history, _message(role, segment.text)]
        for name, value in {"reward": attempt.reward, **attempt.reward_parts}.items():
            if value is not None:
                score: dict[str, Any] = {
                    "gen_ai.evaluation.name": name,
                    "gen_ai.evaluation.score.value": float(value),
                }
                root.add_event("gen_ai.evaluation.result", score, timestamp=_ns(now))
        if attempt.failure is not None:
            _fail(root, attempt.failure.kind, attempt.failure.message)
        root.end(_ns(max(now, began + attempt.timings.get("attempt_s", 0.0))))

    def _facts(self, step: TrackedStep, attempt: Trajectory) -> dict[str, Any]:
        facts = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.provider.name": "toolwright",
            "gen_ai.agent.name": self.agent,
            "gen_ai.conversation.id": f"{self.run.id}/{step.number}/{attempt.group}/{attempt.index}",
            "gen_ai.request.model": self.request["gen_ai.request.model"],
            "gen_ai.usage.input_tokens": attempt.given_tokens,
            "gen_ai.usage.output_tokens": attempt.sampled_tokens,
            "toolwright.run": self.run.name,
            "toolwright.run.id": self.run.id,
            "toolwright.step": step.number,
            "toolwright.group": attempt.group,
            "toolwright.attempt": attempt.index,
            "toolwright.task": attempt.task.id,
            "toolwright.stop": attempt.stop,
            "toolwright.weights_version": attempt.weights_version,
        }
        return facts if attempt.reward is None else {**facts, "toolwright.reward": float(attempt.reward)}

    def _model_call(
        self,
        root: Span,
        began: float,
        ended: float,
        before: int,
        history: list[dict[str, Any]],
        attempt: Trajectory,
        place: int,
    ) -> None:
        segment, later = attempt.segments[place], attempt.segments[place + 1 :]
        reason = "tool_calls" if later and later[0].calls else "stop"
        if not later:
            reason = REASONS.get(attempt.stop, attempt.stop or "stop")
        facts = {
            "gen_ai.operation.name": "chat",
            **self.request,
            "gen_ai.usage.input_tokens": before,
            "gen_ai.usage.output_tokens": len(segment.tokens),
            "gen_ai.response.finish_reasons": [reason],
        }
        span = self._span(f"chat {self.request['gen_ai.request.model']}", began, facts, root, client=True)
        said = {**_message("assistant", segment.text), "finish_reason": reason}
        self._describe(span, **{"gen_ai.input.messages": history, "gen_ai.output.messages": [said]})
        span.end(_ns(ended))

    def _tool_call(self, root: Span, began: float, segment: Segment, call: Mapping[str, Any]) -> None:
        name, trouble = str(call.get("name") or "unreadable"), str(call.get("trouble") or "")
        facts = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name}
        span = self._span(f"execute_tool {name}", began, {**facts, "gen_ai.tool.type": "function"}, root)
        arguments, result = str(call.get("arguments") or ""), cut(segment.text, LONGEST)
        self._describe(span, **{"gen_ai.tool.call.arguments": arguments, "gen_ai.tool.call.result": result})
        if trouble:
            _fail(span, trouble, trouble)
        span.end(_ns(began + _seconds(call)))

    def _span(
        self,
        name: str,
        began: float,
        facts: dict[str, Any],
        parent: Span | None = None,
        *,
        client: bool = False,
    ) -> Span:
        from opentelemetry.context import Context
        from opentelemetry.trace import SpanKind, set_span_in_context

        return self.tracer.start_span(
            name,
            context=Context() if parent is None else set_span_in_context(parent),
            kind=SpanKind.CLIENT if client else SpanKind.INTERNAL,
            attributes=facts,
            start_time=_ns(began),
        )

    def _describe(self, span: Span, **content: Any) -> None:
        """Add what was said to the span; only where it is to be sent."""
        if self.content:
            for key, value in content.items():
                text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
                span.set_attribute(key, text)


def _collector(ended: list[ReadableSpan]) -> Any:
    """Keeps spans for our own batches: the SDK's drop what does not fit into their queue."""
    from opentelemetry.sdk.trace import SpanProcessor

    class Collector(SpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            ended.append(span)

    return Collector()


def _fail(span: Span, kind: str, message: str) -> None:
    from opentelemetry.trace import Status, StatusCode

    span.set_attribute("error.type", kind)
    span.set_status(Status(StatusCode.ERROR, message))


def _message(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "parts": [{"type": "text", "content": cut(text, LONGEST)}]}


def _seconds(call: Mapping[str, Any]) -> float:
    seconds = call.get("seconds")
    return float(seconds) if isinstance(seconds, int | float) else 0.0


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
