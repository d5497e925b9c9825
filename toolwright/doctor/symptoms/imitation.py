"""Runs that learn from data: sft, and answers that were compared."""

from __future__ import annotations

from toolwright.doctor.diagnosis import SYMPTOMS, Diagnosis
from toolwright.doctor.run_history import ENOUGH_STEPS, RunHistory, error_of, first, last, mean
from toolwright.observe.metrics import series
from toolwright.observe.numbers import compact, percent


@SYMPTOMS.register("loss")
def loss(history: RunHistory) -> Diagnosis | None:
    """The loss of demonstrations rises or does not fall."""
    losses = history.values("policy/loss")
    if history.kind != "sft" or len(losses) < 2 * ENOUGH_STEPS:
        return None
    early, late = mean(first(losses)) or 0.0, mean(last(losses)) or 0.0
    key, rate = "optimizer.lr", history.lr or 0.0
    if late > early + 3 * error_of(last(losses)):
        evidence = f"the loss went from {compact(early)} to {compact(late)} nats a token"
        remedy = f"{key}={rate / 10:.1g} instead of {rate:g}, or auto"
        return Diagnosis("problem", "loss rises", evidence, remedy, cause=0.7)
    usual = history.usual_lr
    if usual and rate < usual / 10 and late > 0.9 * early:
        evidence = (
            f"the loss went from {compact(early)} to {compact(late)} nats a token in {len(losses)} steps at "
            f"a rate of {rate:g}"
        )
        remedy = f"{key}={usual:g}, or auto"
        return Diagnosis("warning", "loss does not fall", evidence, remedy, cause=0.6)
    return None


@SYMPTOMS.register("sft undoes")
def sft_undoes(history: RunHistory) -> Diagnosis | None:
    """A warm start that knows less than before."""
    points = series(history.rows, "held_out/accuracy")
    if history.kind != "sft" or len(points) < 2 or points[-1][1] > points[0][1] - 0.1:
        return None
    evidence = f"held-out accuracy fell from {percent(points[0][1])} to {percent(points[-1][1])}"
    remedy = (
        f"optimizer.lr={(history.lr or 1e-5) / 10:.1g}, fewer steps, or demonstrations written as the model "
        "writes"
    )
    return Diagnosis("problem", "forgotten", evidence, remedy, cause=0.7)


@SYMPTOMS.register("preferences")
def preferences(history: RunHistory) -> Diagnosis | None:
    """The policy does not come to prefer what the data prefers, or only in the data that it learns from."""
    agreed = history.values("policy/preference_accuracy")
    if history.kind != "preferences" or len(agreed) < 4 * ENOUGH_STEPS:
        return None
    now, rate = mean(last(agreed)) or 0.0, history.lr or 0.0
    if now < 0.55:
        return Diagnosis(
            "warning",
            "preferences not learned",
            f"after {len(agreed)} steps the policy prefers what the data prefers in {percent(now)} of pairs",
            f"update.policy.lr={5 * rate:.1g} instead of {rate:g}; check that `chosen` and `rejected` are "
            "not mixed up",
            cause=0.6,
        )
    seen = [
        value
        for key in ("held_out/preference_accuracy", "held_out/accuracy")
        for _, value in series(history.rows, key)
    ]
    if len(seen) > 1 and now > 0.9 and seen[-1] < max(seen) - 0.1:
        evidence = (
            f"{percent(now)} of training pairs, and held-out agreement fell from {percent(max(seen))} to "
            f"{percent(seen[-1])}"
        )
        remedy = "fewer steps (train.steps), more pairs, or a higher beta: algorithm.params.dpo.beta=0.3"
        return Diagnosis("warning", "preferences learned by heart", evidence, remedy, cause=0.5)
    return None
