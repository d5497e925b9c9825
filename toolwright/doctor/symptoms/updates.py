"""Updates: not finite, too far from the reference, engine and learner apart, rates that cannot be right."""

from __future__ import annotations

import math

from toolwright.config import rates
from toolwright.doctor.diagnosis import SYMPTOMS, Diagnosis
from toolwright.doctor.run_history import ENOUGH_STEPS, RunHistory, error_of, first, last, mean
from toolwright.doctor.symptoms.rewards import calmer, entropy_collapse, has_risen, near_best, reward_collapse
from toolwright.observe.metrics import series
from toolwright.observe.numbers import compact
from toolwright.trainer.run_warnings import GapAlarm

FAR_KL = 1.0  # nats a token: another policy altogether
SLOW = 10.0  # times below the usual rate


@SYMPTOMS.register("updates not finite")
def not_finite(history: RunHistory) -> Diagnosis | None:
    """Updates that were skipped, or metrics that were not finite."""
    skipped = sum(history.values("policy/skipped")) + sum(history.values("critic/skipped"))
    broken = [(row["step"], row["nonfinite"]) for row in history.steps if row.get("nonfinite")]
    if not skipped and not broken:
        return None
    named = f"; {', '.join(broken[0][1][:3])} of step {broken[0][0]} is not finite" if broken else ""
    often = skipped > max(1.0, 0.02 * len(history.steps)) or bool(broken)
    evidence = f"{skipped:.0f} updates were skipped in {len(history.steps)} steps{named}"
    remedy = f"{calmer(history)}; a reward that is not a number; model.dtype=float32"
    return Diagnosis("problem" if often else "warning", "updates not finite", evidence, remedy, cause=0.85)


@SYMPTOMS.register("kl")
def kl(history: RunHistory) -> Diagnosis | None:
    """The policy is far from its reference. Random weights are nothing to stay close to."""
    away = history.values("reference/kl")
    now, before = mean(last(away)) or 0.0, mean(first(away)) or 0.0
    if not history.judged or history.setting("model.path") is None or len(away) < 2 * ENOUGH_STEPS:
        return None
    if now < max(FAR_KL, 3 * before) or has_risen(history):
        return None
    coefficient = float(history.setting("algorithm.kl.coef", 0.001) or 0.001)
    return Diagnosis(
        "problem" if reward_collapse(history) else "warning",
        "KL blow-up",
        f"the KL to the reference went from {compact(before)} to {compact(now)} nats a token",
        f"algorithm.kl.coef={10 * coefficient:g} instead of {coefficient:g}; {calmer(history)}",
        cause=0.6,
    )


@SYMPTOMS.register("gap")
def gap(history: RunHistory) -> Diagnosis | None:
    """The engine's log-probabilities drift away from the learner's. This checks the run's gap alarm over all
    steps."""
    points = series(history.steps, "gap/abs_mean")
    if not points:
        return None
    engine = str(history.setting("engine.name", "native"))
    alarm = GapAlarm(float(history.setting("algorithm.correction.alarm", 0.05)), engine=engine)
    warned = [(step, value) for step, value in points if alarm.warning(value)]
    values = [value for _, value in points]
    early, late = mean(first(values)) or 0.0, mean(last(values)) or 0.0
    grows = len(values) >= 20 and late > 5 * early and late > 0.1 * alarm.limit
    if not warned and not grows:
        return None
    where = f"; {len(warned)} steps were above the alarm, the first step {warned[0][0]}" if warned else ""
    lasts = late > alarm.limit or grows
    return Diagnosis(
        "problem" if lasts else "warning",
        "growing gap" if late > 2 * early else "engine and learner apart",
        f"the mean |Δ log-probability| between engine and learner went from {early:.2g} to {late:.2g}{where}",
        "algorithm.correction.mode=truncate, or reject to drop such sequences; model.dtype=float32 or "
        "engine=native closes the gap; docs/engines.md, The gap",
        cause=0.7,
    )


@SYMPTOMS.register("learning rate high")
def rate_high(history: RunHistory) -> Diagnosis | None:
    """A rate that ruins a trained model; a problem once it has."""
    lr, usual, count = history.lr, history.usual_lr, history.parameters
    if lr is None or usual is None or count is None or history.setting("model.path") is None:
        return None
    key = "optimizer.lr" if history.kind == "sft" else "update.policy.lr"
    signs = (reward_collapse, entropy_collapse, not_finite)
    ruined = [one.name for sign in signs if (one := sign(history)) and one.status == "problem"]
    if lr <= rates.FAR * usual or not (ruined or rates.warning(key, lr, usual, count)):
        return None
    size = f"{count / 1e6:,.0f}M" if count >= 1e6 else f"{count:,}"
    return Diagnosis(
        "problem" if ruined else "warning",
        "learning rate too high",
        f"{key}={lr:g} for a trained model of {size} parameters, where {usual:g} is usual"
        + (f"; seen as {', '.join(ruined)}" if ruined else ""),
        f"{key}={usual:g}, or auto",
        cause=0.87,
    )


@SYMPTOMS.register("learning rate low")
def rate_low(history: RunHistory) -> Diagnosis | None:
    """There is something to learn, and the policy does not move."""
    lr, usual, rewards = history.lr, history.usual_lr, history.values("reward/mean")
    if not history.judged or lr is None or usual is None or lr > usual / SLOW or len(rewards) < 20:
        return None
    flat, groups = history.flat_groups()
    if near_best(history) or has_risen(history) or (groups and flat > 0.9 * groups):
        return None
    moved = abs((mean(last(rewards)) or 0.0) - (mean(first(rewards)) or 0.0))
    noise = math.hypot(error_of(first(rewards)), error_of(last(rewards)))
    evidence = (
        f"after {len(rewards)} steps the reward has moved by {compact(moved)} (± {compact(noise)}), though "
        f"attempts differ; the rate is {lr:g}, and {usual:g} is usual for this model"
    )
    remedy = f"update.policy.lr={usual:g}, or auto"
    return Diagnosis("warning", "learning rate low", evidence, remedy, cause=0.55)
