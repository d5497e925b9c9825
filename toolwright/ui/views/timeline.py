"""The stages of a step by role: who was busy, who waited, and for whom."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toolwright.ui.query import Query
from toolwright.ui.run_library import OpenRun
from toolwright.ui.timeline_file import TimelineEvent
from toolwright.ui.view import RUN_VIEWS, ViewAnswer, of_rows

MOST_EVENTS = 20_000
SHORT_S = 1e-3  # a gap that is no wait
COLUMNS = ("step", "who", "stage", "start", "seconds", "cpu_s")
Span = tuple[float, float]


@RUN_VIEWS.register("timeline")
def timeline(run: OpenRun, query: Query) -> ViewAnswer:
    """The last step, the one that is asked for, or a range of steps."""
    file = run.timeline
    known = file.steps
    ranges = query.steps() or [(known[-1], known[-1])] if known else []
    if query.text("from") or query.text("to"):
        ranges = [(query.whole("from", 0, most=1 << 60), query.whole("to", 1 << 60, most=1 << 60))]
    steps = [step for step in known if any(low <= step <= high for low, high in ranges)]
    events, cut = file.events(steps, MOST_EVENTS)
    start = min((event.start for event in events), default=0.0)
    end = max((event.end for event in events), default=0.0)
    busy = {who: _joined(events, who) for who in dict.fromkeys(event.who for event in events)}
    data = {
        "steps": known,
        "step": steps[-1] if steps else None,
        "start": start,
        "end": end,
        "cut": cut,
        "roles": [_role(who, events, busy, (start, end)) for who in busy],
    }
    return of_rows(data, COLUMNS, map(vars, events))


def _role(
    who: str, events: Sequence[TimelineEvent], busy: dict[str, list[Span]], whole: Span
) -> dict[str, Any]:
    start, end = whole
    stages = [
        {"stage": e.stage, "start_s": e.start - start, "seconds": e.seconds, "cpu_s": e.cpu_s, "step": e.step}
        for e in events
        if e.who == who
    ]
    worked = sum(high - low for low, high in busy[who])
    waits = [
        {"start_s": low - start, "seconds": high - low, "for": _busy_in((low, high), who, busy)}
        for low, high in _gaps(busy[who], whole)
    ]
    return {"who": who, "busy_s": worked, "idle_s": end - start - worked, "stages": stages, "waits": waits}


def _joined(events: Sequence[TimelineEvent], who: str) -> list[Span]:
    """Join the stages of a role, which may overlap, into the spans in which it was busy."""
    spans: list[Span] = []
    for event in events:  # in order of their start
        if event.who != who:
            continue
        if spans and event.start <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(spans[-1][1], event.end))
        else:
            spans.append((event.start, event.end))
    return spans


def _gaps(spans: Sequence[Span], whole: Span) -> list[Span]:
    edges = [whole[0], *(edge for span in spans for edge in span), whole[1]]
    pairs = zip(edges[::2], edges[1::2], strict=True)
    return [(low, high) for low, high in pairs if high - low > SHORT_S]


def _busy_in(gap: Span, but: str, busy: dict[str, list[Span]]) -> list[str]:
    """The roles that worked during the gap, the busiest first."""
    shares = {
        who: sum(max(0.0, min(high, gap[1]) - max(low, gap[0])) for low, high in spans)
        for who, spans in busy.items()
        if who != but
    }
    return sorted((who for who, share in shares.items() if share > SHORT_S), key=lambda who: -shares[who])
