"""Symptoms in attempts: answers cut off, tools unused or failing, calls that cannot be read."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from toolwright.doctor.diagnosis import SYMPTOMS, Diagnosis
from toolwright.doctor.run_history import ENOUGH_STEPS, AttemptRow, RunHistory, error_of, first, last, mean
from toolwright.doctor.symptoms.rewards import SURE, has_risen, near_best
from toolwright.observe import rollouts
from toolwright.observe.numbers import compact, percent

OFTEN, MOSTLY = 0.25, 0.5
CUT = ("length", "tokens")
COLD_START = "toolwright sft demonstrations=sampled as this run is set, then model.path=runs/NAME/model"


@SYMPTOMS.register("truncated answers")
def truncated(history: RunHistory) -> Diagnosis | None:
    """Answers that run out of tokens, and earn less for it. Some tasks mean to fill their limit."""
    ended = [attempt for attempt in history.attempts if not attempt.failure]
    cut = [attempt for attempt in ended if attempt.stop in CUT]
    share = len(cut) / len(ended) if ended else 0.0
    if not history.judged or share < OFTEN:
        return None
    earned, others = _rewards(cut), _rewards([a for a in ended if a.stop not in CUT])
    harmless = not _earn_less(earned, others) if others else _earn_enough(history, earned)
    if near_best(history) or harmless:
        return None
    stop = Counter(attempt.stop for attempt in cut).most_common(1)[0][0]
    compared = f"; they earn {compact(mean(earned) or 0.0)}"
    compared += f", the others {compact(mean(others) or 0.0)}" if others else ""
    return Diagnosis(
        "problem" if share >= MOSTLY else "warning",
        "truncated answers",
        f"{percent(share)} of the last {len(ended):,} attempts ran out of tokens{compared}",
        _longer(history, stop),
        cause=0.75,
    )


def _earn_less(some: Sequence[float], others: Sequence[float]) -> bool:
    """Return True if the rewards are clearly below the others'."""
    noise = math.hypot(error_of(some), error_of(others))
    return (mean(others) or 0.0) - (mean(some) or 0.0) > max(SURE * noise, 1e-6)


def _earn_enough(history: RunHistory, rewards: Sequence[float]) -> bool:
    """Return True if attempts, all of them cut off, earn more than the least there is."""
    least, most = history.reward_range
    return (mean(rewards) or 0.0) > least + 0.05 * (most - least)


def _longer(history: RunHistory, stop: str) -> str:
    """The override that gives more room."""
    limit, total = history.number("rollout.max_tokens"), history.number("rollout.max_total_tokens")
    context = history.number("model.context")
    if stop == "length":
        fresh = history.setting("model.path") is None  # its context is as long as one says
        longer = f" model.context={2 * context}" if fresh and context else ""
        return f"rollout.max_tokens={2 * limit}{longer}; reward.truncated=mask if answers are long by right"
    if total:
        return f"rollout.max_total_tokens={2 * total}, or fewer turns: rollout.max_turns"
    return f"model.context={2 * context}, or shorter tool results: rollout.tool_tokens=256"


@SYMPTOMS.register("tools fail")
def tools_fail(history: RunHistory) -> Diagnosis | None:
    """Most calls are answered by an error."""
    calls, errors = history.end("attempts/tool_calls"), history.end("attempts/tool_errors")
    if not history.judged or not calls or errors is None or errors < MOSTLY * calls or near_best(history):
        return None
    names, trouble, said = _failing_calls(history)
    remedies = {
        "timeout": "rollout.tool_timeout_s=120, or a tool that answers sooner",
        "unknown_tool": f"tell the policy which tools there are: {', '.join(_tools(history))}",
        "arguments": "say in the tool's docstring what each parameter is; set rollout.call_format",
    }
    other = "make such a call yourself, and fix the error that it reports; toolwright view shows the calls"
    evidence = (
        f"{percent(errors / calls)} of the calls of the last steps failed ({trouble or 'unknown'}: {names})"
    )
    remedy = remedies.get(trouble, other)
    return Diagnosis("problem", "tool calls fail", evidence, remedy, cause=0.8, quote=said)


def _failing_calls(history: RunHistory) -> tuple[str, str, str]:
    """The tools, the commonest trouble and the commonest answer of calls that failed in the last step."""
    files = rollouts.files(history.path)
    if not files:
        return "", "", ""
    names: Counter[str] = Counter()
    troubles: Counter[str] = Counter()
    said: Counter[str] = Counter()
    for trajectory in rollouts.read(files[max(files)]):
        for segment in trajectory.segments:
            bad = [call for call in segment.calls if call.get("trouble")]
            names.update(str(call.get("name") or "?") for call in bad)
            troubles.update(str(call["trouble"]) for call in bad)
            if bad:
                said[" ".join(segment.text.split())[:160]] += 1
    trouble, answer = ("".join(text for text, _ in found.most_common(1)) for found in (troubles, said))
    return ", ".join(name for name, _ in names.most_common(3)), trouble, answer


def _tools(history: RunHistory) -> list[str]:
    tools = history.setting("tools", {})
    return sorted(tools) if isinstance(tools, dict) else []


@SYMPTOMS.register("tools unused")
def tools_unused(history: RunHistory) -> Diagnosis | None:
    """Tools are offered and never called, or no longer."""
    calls = history.values("attempts/tool_calls")
    offered = _tools(history) or history.setting("tool_config_path")
    if not history.judged or not offered or near_best(history):
        return None
    risen = has_risen(history)
    if max(calls, default=0.0) == 0:
        evidence = f"the run offers tools, but no attempt of {len(history.steps)} steps has called one"
        remedy = (
            f"{COLD_START}; or an example in rollout.tool_prompt; rollout.call_format as the model knows it"
        )
        return Diagnosis("warning" if risen else "problem", "no tool calls", evidence, remedy, cause=0.7)
    before, after = mean(first(calls)) or 0.0, mean(last(calls)) or 0.0
    silent = max(calls[-ENOUGH_STEPS:]) == 0
    if not silent and (before < 0.2 or after > 0.1 * before):
        return None
    unknown = mean(first(history.values("attempts/tool_calls/unknown"))) or 0.0
    made_up = (
        f", {percent(unknown / before)} of them of tools that do not exist" if unknown and before else ""
    )
    how = "rose without them" if risen else "did not rise"
    return Diagnosis(
        "warning",
        "tool calls vanish",
        f"from {before:.2g} an attempt at the start{made_up} to {after:.2g} in the last steps, and the "
        f"reward {how}",
        f"{COLD_START}; reward.parts={{task: 1, tool_helped: 0.1}} pays for a call that found the answer; "
        "rollout.call_params.near_misses=map runs calls by other names",
        cause=0.6,
    )


@SYMPTOMS.register("format faults")
def format_faults(history: RunHistory) -> Diagnosis | None:
    """Calls or actions that cannot be read."""
    faults, turns = history.values("attempts/format_faults"), history.end("turns/mean") or 1.0
    now, before = mean(last(faults)), mean(first(faults))
    if not history.judged or now is None or before is None or near_best(history):
        return None
    share, new = now / max(turns, 1.0), history.setting("model.path") is None
    if share < OFTEN or now < 0.7 * before or (new and len(history.steps) < 4 * ENOUGH_STEPS):
        return None  # few, being unlearned, or random weights that have only begun
    return Diagnosis(
        "problem" if share >= MOSTLY else "warning",
        "format faults",
        f"{percent(share)} of the turns of the last steps hold a call or an action that cannot be read (at "
        f"the start {percent(before / max(turns, 1.0))})",
        "rollout.call_format as the model writes calls, an example in rollout.tool_prompt, or a warm start: "
        "toolwright sft",
        cause=0.7,
    )


def _rewards(attempts: Sequence[AttemptRow]) -> list[float]:
    return [attempt.reward for attempt in attempts if attempt.reward is not None]
