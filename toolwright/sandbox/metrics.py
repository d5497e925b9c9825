"""What Prometheus is shown."""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from toolwright.sandbox.service import SandboxService

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)


class SandboxMetrics:
    """Counters of one server; nothing global, so that two servers in a process do not mix."""

    def __init__(self, service: SandboxService) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "sandbox_requests", "HTTP requests answered", ["route", "code"], registry=self._registry
        )
        self._seconds = Histogram(
            "sandbox_request_seconds", "Time to answer, queue included", ["route"],
            buckets=_BUCKETS, registry=self._registry,
        )  # fmt: skip
        self._children: dict[tuple[str, int], tuple[Counter, Histogram]] = {}
        pool = service.pool
        for name, text, value in (
            ("sandbox_queue_length", "Runs waiting", lambda: len(pool.queue)),
            ("sandbox_running", "Runs under way", lambda: sum(len(link.running) for link in pool.links)),
            ("sandbox_workers", "Workers ready", lambda: service.status()["num_workers"]),
            ("sandbox_sessions", "Sessions open", lambda: len(service.sessions)),
            ("sandbox_runs_answered", "Runs answered since the start", lambda: pool.answers),
            ("sandbox_worker_restarts", "Workers replaced since the start", lambda: pool.restarts),
        ):
            Gauge(name, text, registry=self._registry).set_function(value)

    def count(self, route: str, code: int, started: float) -> None:
        key = (route, code)
        if key not in self._children:
            self._children[key] = (self._requests.labels(route, str(code)), self._seconds.labels(route))
        requests, seconds = self._children[key]
        requests.inc()
        seconds.observe(time.perf_counter() - started)

    def text(self) -> bytes:
        return generate_latest(self._registry)
