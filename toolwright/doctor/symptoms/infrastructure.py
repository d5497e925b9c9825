"""Symptoms of infrastructure: failing tools and servers, dead processes, too little memory."""

from __future__ import annotations

import re
from collections import Counter

from toolwright.doctor.diagnosis import SYMPTOMS, Diagnosis
from toolwright.doctor.run_history import RunHistory
from toolwright.observe.numbers import percent

MANY, SOME = 0.05, 0.01  # of attempts
MOST_TEXT = 300


@SYMPTOMS.register("failed attempts")
def failed_attempts(history: RunHistory) -> Diagnosis | None:
    """Attempts that could not be made or scored: they teach nothing, and their groups are dropped."""
    failed, dropped = sum(history.values("attempts/failed")), sum(history.values("groups/dropped"))
    a_step = history.number("rollout.prompts") * history.number("rollout.samples")
    tried = a_step * sum(history.values("groups/rounds"))
    share = failed / tried if tried else 0.0
    if share < SOME:
        return None
    kind, said = _commonest(history)
    from_tools = kind == "infrastructure"
    remedy = (
        "check that what it names runs and answers from here; rollout.retries=5, rollout.retry_pause_s=5 "
        "bridge a restart, rollout.tool_timeout_s=60 waits longer"
        if from_tools
        else "fix the reward or environment that it names, or give it more time: reward.timeout_s=60, "
        "rollout.environment_timeout_s=60"
    )
    return Diagnosis(
        "problem" if share >= MANY else "warning",
        "infrastructure failures" if from_tools else "attempts cannot be scored",
        f"{failed:,.0f} of {tried:,.0f} attempts failed ({percent(share)}), {dropped:,.0f} groups were "
        f"dropped; most often: {said[:MOST_TEXT]}",
        remedy,
        cause=0.9,
    )


def _commonest(history: RunHistory) -> tuple[str, str]:
    """The kind and the message of most failures, numbers aside."""
    messages = [attempt.failure for attempt in history.attempts if attempt.failure]
    if not messages:
        logged = [
            line.partition(" first: ")[2] for line in history.log if " attempts failed, first: " in line
        ]
        return ("infrastructure", logged[-1]) if logged else ("", "no message was kept")
    like = Counter(re.sub(r"\d+", "0", text) for text in messages)
    chosen = next(text for text in messages if re.sub(r"\d+", "0", text) == like.most_common(1)[0][0])
    kind, _, said = chosen.partition(": ")
    head, traced, trace = said.partition("Traceback (most recent call last):")
    if traced:  # its last line names the error
        said = f"{head.strip()} … {trace.strip().splitlines()[-1]}"
    return kind, " ".join(said.split())


@SYMPTOMS.register("deaths")
def deaths(history: RunHistory) -> Diagnosis | None:
    """Processes of the run that died and were started again."""
    died = [row for row in history.incidents if row.get("died", True)]
    if not died:
        return None
    who, count = Counter(str(row.get("role") or row.get("who")) for row in died).most_common(1)[0]
    what = " ".join(str(died[-1].get("what", "")).split())
    again = sum(int(row.get("resampled") or 0) for row in died)
    often = len(died) > max(2, 0.1 * len(history.steps))
    memory = bool(re.search(r"memory|oom|signal 9|SIGKILL", what, re.IGNORECASE))
    return Diagnosis(
        "problem" if often else "warning",
        "processes died",
        f"{len(died)} in {len(history.steps)} steps, {count} of them {who}; {again:,} attempts were sampled "
        f"again; the last, in step {died[-1].get('step')}: {what[:MOST_TEXT]}",
        "engine.slots=32 and update.micro_tokens=4096 need less memory"
        if memory
        else "incidents.jsonl and log.txt have each with its stack; runtime.heartbeat_timeout_s=300 waits "
        "longer for a busy machine",
        cause=0.8,
    )


@SYMPTOMS.register("memory")
def memory(history: RunHistory) -> Diagnosis | None:
    """Settings that were lowered because memory is short. The log says it at the start."""
    cut = [line.split(" ", 2)[-1] for line in history.log if "for want of memory" in line]
    if not cut:
        return None
    evidence = cut[-1]
    remedy = (
        "engine.slots=32 leaves more for each; model.gradient_checkpointing=true, model.lora.rank=16 or a "
        "smaller model need less"
    )
    return Diagnosis("warning", "little memory", evidence, remedy, cause=0.4)
