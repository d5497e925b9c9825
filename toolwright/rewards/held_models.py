"""The models that a reward holds, told from its configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from toolwright.rewards.builder import OWN, SCORERS

if TYPE_CHECKING:
    from toolwright.config import schema


def models_of(reward: schema.Reward) -> dict[str, dict[str, Any]]:
    """The settings of each scorer of this reward that holds a model, by its name in the configuration."""
    found = {}
    for name in reward.parts or [reward.function or OWN]:
        function = reward.params.get(name, {}).get("function", name) if reward.parts else name
        if function == OWN or ":" in function:
            continue
        entry = SCORERS.get(function)
        if isinstance(entry.target, type) and "process" in entry.needs:
            found[name] = reward.params.get(name, {})
    return found


def reserved_gpus(reward: schema.Reward) -> float | None:
    """What the reward's actor is to have; None: as it fits. Without a model none at all."""
    settings = list(models_of(reward).values())
    asked = [one["gpus"] for one in settings if one.get("gpus") is not None]
    if settings and not asked:
        return None
    return float(sum(asked))
