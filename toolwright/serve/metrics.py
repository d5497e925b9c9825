"""The metrics of a server, in Prometheus' format."""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from toolwright.serve.service import ModelService

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
_BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)


class ServeMetrics:
    """Counters of one server, in a registry of their own: two servers in a process do not mix."""

    def __init__(self, service: ModelService) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "serve_requests", "HTTP requests answered", ["route", "code"], registry=self._registry
        )
        self._seconds = Histogram(
            "serve_request_seconds", "Time to the end of an answer", ["route"],
            buckets=_BUCKETS, registry=self._registry,
        )  # fmt: skip
        self._first = Histogram(
            "serve_first_event_seconds", "Time to the first event of a stream", ["route"],
            buckets=_BUCKETS, registry=self._registry,
        )  # fmt: skip
        for name, text, value in (
            ("serve_under_way", "Answers that are generated or queued", lambda: service.under_way),
            ("serve_prompt_tokens", "Prompt tokens since the start", lambda: service.prompt_tokens),
            (
                "serve_completion_tokens",
                "Completion tokens since the start",
                lambda: service.completion_tokens,
            ),
            ("serve_aborted", "Answers cancelled because the caller disconnected", lambda: service.aborted),
        ):
            Gauge(name, text, registry=self._registry).set_function(value)

    def count(self, route: str, code: int, started: float) -> None:
        self._requests.labels(route, str(code)).inc()
        self._seconds.labels(route).observe(time.perf_counter() - started)

    def first(self, route: str, started: float) -> None:
        self._first.labels(route).observe(time.perf_counter() - started)

    def text(self) -> bytes:
        return generate_latest(self._registry)
