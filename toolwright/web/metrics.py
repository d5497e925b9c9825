"""Prometheus metrics of an HTTP server."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from toolwright.web.asgi import HttpReply

_CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"


class RequestMetrics:
    """Metrics of one server. Nothing is global, so two servers in one process do not mix.

    `gauges` are name, help text and the function that gives the value.
    """

    def __init__(
        self, prefix: str, gauges: Sequence[tuple[str, str, Callable[[], float]]], *, buckets: Sequence[float]
    ) -> None:
        self._prefix, self._buckets = prefix, buckets
        self._registry = CollectorRegistry()
        self._requests = Counter(
            f"{prefix}_requests", "HTTP requests answered", ["route", "code"], registry=self._registry
        )
        self._seconds = self.histogram("request_seconds", "Time until the whole answer is sent")
        # A label is looked up once: that takes longer than counting.
        self._labelled: dict[tuple[str, int], tuple[Counter, Histogram]] = {}
        for name, text, value in gauges:
            Gauge(f"{prefix}_{name}", text, registry=self._registry).set_function(value)

    def histogram(self, name: str, text: str) -> Histogram:
        """A histogram of seconds by route."""
        return Histogram(
            f"{self._prefix}_{name}", text, ["route"], buckets=self._buckets, registry=self._registry
        )

    def count(self, route: str, code: int, started: float) -> None:
        """Counts a request that was answered with `code`; `started` is of `time.perf_counter`."""
        key = (route, code)
        if key not in self._labelled:
            self._labelled[key] = (self._requests.labels(route, str(code)), self._seconds.labels(route))
        requests, seconds = self._labelled[key]
        requests.inc()
        seconds.observe(time.perf_counter() - started)

    def reply(self) -> HttpReply:
        """The answer to `GET /metrics`."""
        return HttpReply(generate_latest(self._registry), content_type=_CONTENT_TYPE)
