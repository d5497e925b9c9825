"""Runs that ended too early, or stand still."""

from __future__ import annotations

import re
import statistics

from toolwright.doctor.diagnosis import SYMPTOMS, Diagnosis
from toolwright.doctor.run_history import RunHistory
from toolwright.observe.numbers import duration
from toolwright.observe.summary import STARTED, ending_error

LEAST_SILENCE_S = 300.0
MANY = 10  # times a step's usual time
MOST_TEXT = 400  # characters of an error
# What an error says, and what helps.
REMEDIES = {
    r"out of memory|CUDA error: out|MemoryError|Cannot allocate memory": (
        "engine.slots=32 or model.context=2048 need less; so do update.micro_tokens=4096, "
        "model.gradient_checkpointing=true and model.lora.rank=16"
    ),
    r"No space left|no room to write|File too large": "make room on the disk, or keep runs elsewhere: "
    "run.dir=FOLDER",
    r"not finite": "update.policy.lr=auto, or a tenth of the rate that it had",
    r"Too many open files": "ulimit -n 65536, before the run",
    r"no group is complete|could not be scored|no answer from|refused|Connect|out of reach": (
        "check that the server that it names runs and answers; rollout.retries=5 and rollout.retry_pause_s=5 "
        "bridge a restart"
    ),
    r"no Ray cluster|Ray cannot be started": "toolwright doctor shows whether RAY_ADDRESS answers",
}
STOPPED = re.compile(r"\d (stopped (at|before) step \d+)")


@SYMPTOMS.register("crashed")
def crashed(history: RunHistory) -> Diagnosis | None:
    """The last thing that the log says is the error that ended it."""
    said = ending_error(history.log)
    if not said or history.finished:
        return None
    found = next((remedy for pattern, remedy in REMEDIES.items() if re.search(pattern, said)), "")
    if re.search(r":\w+ (raised|returned) ", said):  # code of the user's own, no server
        found = ""
    go_on = f"then {history.resume_command or 'start it again'}"
    remedy = f"{found}; {go_on}" if found else f"fix what it names, {go_on}"
    return Diagnosis(
        "problem", "crashed", f"after step {history.last_step}: {said[:MOST_TEXT]}", remedy, cause=0.95
    )


@SYMPTOMS.register("killed")
def killed(history: RunHistory) -> Diagnosis | None:
    """Its process is gone, and the log does not say why."""
    if history.alive is not False or not _unfinished(history):
        return None
    return Diagnosis(
        "problem",
        "killed",
        f"the process ended after step {history.last_step} of {history.planned} without a message in "
        "log.txt; often memory ran out (see `dmesg | grep -i oom`), or its terminal or batch job ended",
        f"{history.resume_command} goes on from the last checkpoint; "
        "engine.slots=32 and update.micro_tokens=4096 need less memory",
        cause=0.9,
    )


@SYMPTOMS.register("stalled")
def stalled(history: RunHistory) -> Diagnosis | None:
    """Nothing was written for much longer than a step takes."""
    if history.alive is False or not _unfinished(history):
        return None
    usual = history.values("time/total_s")
    longest = statistics.median(usual) if usual else 0.0
    if history.silent_s < max(LEAST_SILENCE_S, MANY * longest):
        return None
    doing = [event for event in history.timeline if isinstance(event.get("ts"), int | float)]
    after = f", last in {max(doing, key=lambda event: event['ts']).get('name')}" if doing else ""
    sure = history.alive is True
    return Diagnosis(
        "problem" if sure else "warning",
        "stalled",
        f"nothing was written for {duration(history.silent_s)} after step {history.last_step} of "
        f"{history.planned}"
        + (f"; a step takes {duration(longest)}" if usual else "")
        + after
        + ("" if sure else "; whether its process still runs cannot be seen from here"),
        "rollout.timeout_s, rollout.tool_timeout_s, reward.timeout_s and engine.timeout_s bound every wait; "
        "`py-spy dump --pid` shows where it is; Ctrl-C writes a checkpoint",
        cause=0.85,
    )


def _unfinished(history: RunHistory) -> bool:
    """Return True if steps are missing although no error and no user ended the run."""
    if not history.planned or history.finished or crashed(history):
        return False
    for line in reversed(history.log):
        if STARTED in line:
            return True
        if STOPPED.search(line):
            return False
    return True
