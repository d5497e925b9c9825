"""Symptoms of waiting: idle roles, the stage that they wait for, and room in the engine's cache."""

from __future__ import annotations

from toolwright.doctor.diagnosis import SYMPTOMS, Diagnosis
from toolwright.doctor.run_history import RunHistory
from toolwright.observe.numbers import duration, percent

WORTH_S = 1.0  # a step below which nobody waits for long
# The stages that should be a small part of a step: the most, what waits, and what helps.
STAGES = {
    "score": (0.3, "all roles wait for the reward", "reward.workers as many as cores, or a quicker reward"),
    "checkpoint": (0.3, "training waits for checkpoints", "checkpoint.every=0 checkpoint.minutes=30"),
    "evaluate": (0.5, "training waits for evaluations", "eval.every=50, or task.held_out_size=64"),
}
IDLE, BUSY = 0.25, 0.6
SUSPENDED = 0.1  # of the turns
MOST_STEPS = 50  # looked at: evaluations and checkpoints come every few


@SYMPTOMS.register("waiting")
def waiting(history: RunHistory) -> Diagnosis | None:
    """A stage that should be a small part of a step, and is not."""
    total = history.end("time/total_s")
    if not history.judged or total is None or total < WORTH_S:
        return None
    rows = history.steps[-MOST_STEPS:]
    whole = sum(row.get("time/total_s") or 0.0 for row in rows)
    for stage, (most, who, remedy) in STAGES.items():
        share = sum(row.get(f"time/{stage}_s") or 0.0 for row in rows) / whole
        if share > most:
            evidence = f"{who}: {percent(share)} of the {duration(total)} of a step"
            return Diagnosis("warning", "waiting", evidence, remedy, cause=0.3)
    return _for_tools(history, total)


def _for_tools(history: RunHistory, total: float) -> Diagnosis | None:
    """Sampling that computes little because every attempt waits for its tools."""
    sampling, cores = history.end("time/sample_s") or 0.0, history.end("use/rollout.run_cores")
    timings = [attempt.timings for attempt in history.attempts if not attempt.failure]
    tools, whole = (sum(spent.get(name, 0.0) for spent in timings) for name in ("tool_s", "attempt_s"))
    if cores is None or cores > 0.3 or sampling < BUSY * total or not whole or tools < 0.5 * whole:
        return None
    return Diagnosis(
        "warning",
        "waiting for tools",
        f"sampling takes {percent(sampling / total)} of a step and keeps {cores:.1g} cores busy; attempts "
        f"spend {percent(tools / whole)} of their time in tool calls",
        "more servers for the tool (urls), rollout.prompts=64 so that more calls are under way, or "
        "rollout.tool_timeout_s=10",
        cause=0.35,
    )


@SYMPTOMS.register("cache too small")
def cache_too_small(history: RunHistory) -> Diagnosis | None:
    """Turns of the native engine that lose their pages to older ones, and are computed twice."""
    suspended = history.end("use/cache_suspended") or 0.0
    attempts = history.number("rollout.prompts") * history.number("rollout.samples")
    turns = attempts * (history.end("turns/mean") or 0.0)
    if not history.judged or not turns or suspended < SUSPENDED * turns:
        return None
    slots = max(1, history.number("engine.slots") // 2)
    evidence = (
        f"{suspended:,.0f} of {turns:,.0f} turns gave their pages to older ones and were computed again"
    )
    remedy = f"engine.slots={slots}, a shorter model.context, or more memory (engine.params.cache_tokens)"
    return Diagnosis("warning", "cache too small", evidence, remedy, cause=0.35)


@SYMPTOMS.register("idle roles")
def idle_roles(history: RunHistory) -> Diagnosis | None:
    """A role of a cluster that has little to do while another one is always busy."""
    total = history.end("time/total_s")
    if not history.judged or total is None or total < WORTH_S or history.setting("runtime.name") != "ray":
        return None
    busy = {who: share for who, share in _busy(history).items() if who.startswith(("rollout", "policy"))}
    if len(busy) < 2:
        return None
    most, least = max(busy, key=lambda who: busy[who]), min(busy, key=lambda who: busy[who])
    alike = most.rstrip("-0123456789") == least.rstrip("-0123456789")
    if busy[most] < BUSY or busy[least] > IDLE or alike:
        return None
    few = (
        "runtime.placement.rollout.workers=N with more of them, or engine.slots=256"
        if most.startswith("rollout")
        else "runtime.placement.policy.ranks=2, or runtime.placement.colocate=yes so that both share a GPU"
    )
    evidence = (
        f"{least} is busy {percent(busy[least])} of a step and waits for {most}, which is busy "
        f"{percent(busy[most])}"
    )
    return Diagnosis("warning", "idle roles", evidence, few, cause=0.3)


def _busy(history: RunHistory) -> dict[str, float]:
    """The part of the last steps in which each process was in a stage."""
    steps = {int(row["step"]) for row in history.steps[-20:]}
    spans: dict[str, list[tuple[float, float]]] = {}
    for event in history.timeline:
        at, takes, step = event.get("ts"), event.get("dur"), event.get("args", {}).get("step")
        if step in steps and isinstance(at, int | float) and isinstance(takes, int | float):
            spans.setdefault(str(event.get("pid")), []).append((at, at + takes))
    if not spans:
        return {}
    every = [span for own in spans.values() for span in own]
    whole = max(end for _, end in every) - min(begin for begin, _ in every)
    return {who: _covered(own) / max(whole, 1) for who, own in spans.items()}


def _covered(spans: list[tuple[float, float]]) -> float:
    """The length of their union."""
    total, reached = 0.0, float("-inf")
    for start, stop in sorted(spans):
        total += max(0.0, stop - max(start, reached))
        reached = max(reached, stop)
    return total
