"""The diagnosis of a run: every symptom that it shows, the likeliest cause first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from toolwright.doctor.result import Status
from toolwright.doctor.run_history import RunHistory
from toolwright.registry import Registry


@dataclass(frozen=True)
class Diagnosis:
    """Something that looks wrong: figures that show it, and the override that changes it."""

    status: Status
    name: str
    evidence: str
    remedy: str
    # How often it is what causes the others where several are seen: an engine that is away, of no rewards.
    cause: float = 0.5
    quote: str = ""  # of an attempt; a report leaves it out unless attempts are asked for


Symptom = Callable[[RunHistory], Diagnosis | None]
SYMPTOMS: Registry[Symptom] = Registry("symptom", "toolwright.doctor.symptoms")


def diagnose(history: RunHistory) -> list[Diagnosis]:
    """Problems before warnings, causes before what follows from them."""
    found = [one for name in SYMPTOMS.names() if (one := _judged(name, history)) is not None]
    return sorted(found, key=lambda one: (one.status != "problem", -one.cause, one.name))


def _judged(name: str, history: RunHistory) -> Diagnosis | None:
    try:
        return SYMPTOMS.get(name).target(history)
    except Exception as error:  # a folder may hold anything, and one symptom is not to hide the others
        why = " ".join(f"{type(error).__name__}: {error}".split())
        return Diagnosis("warning", name, f"could not be judged: {why}", "", cause=0.0)
