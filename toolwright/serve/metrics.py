"""The metrics of a server, in Prometheus' format."""

from __future__ import annotations

import time

from toolwright.serve.exchange import RequestLog
from toolwright.serve.service import ModelService
from toolwright.web.metrics import RequestMetrics

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
