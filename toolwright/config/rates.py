"""Learning rates by the number of a model's parameters: what `auto` means, and a warning of one far above it.

Usual rates of AdamW. Those for a billion parameters and more are the field's: 1e-6 for all weights (verl and
TRL), 1e-5 for a critic (verl), more than ten times as much for an adapter ("LoRA Without Regret", Thinking
Machines, 2025, found about ten). Small models take, and need, far more.
"""

from __future__ import annotations

from typing import NamedTuple

FAR = 10.0  # times the usual rate


class UsualRates(NamedTuple):
    policy: float
    adapter: float
    critic: float
    sft: float
    sft_adapter: float


SMALL = 50_000_000  # below it a model is trained from scratch or nearly so, and survives any rate here
# From so many parameters on.
USUAL = {
    1_000_000_000: UsualRates(policy=1e-6, adapter=2e-5, critic=1e-5, sft=1e-5, sft_adapter=1e-4),
    SMALL: UsualRates(policy=5e-6, adapter=5e-5, critic=2e-5, sft=2e-5, sft_adapter=2e-4),
    0: UsualRates(policy=1e-4, adapter=1e-4, critic=3e-3, sft=3e-3, sft_adapter=3e-3),
}


def usual(learned: str, parameters: int, *, adapted: bool) -> float:
    """`learned`: policy, critic or sft. `parameters`: of the whole model. `adapted`: an adapter is learned in
    place of the weights."""
    rates = next(rates for least, rates in USUAL.items() if parameters >= least)
    of_adapters = {"policy": rates.adapter, "sft": rates.sft_adapter}
    rate: float = getattr(rates, learned)
    return of_adapters.get(learned, rate) if adapted else rate


def warning(key: str, rate: float, usual_rate: float, parameters: int) -> str | None:
    """A warning if the rate would ruin a trained model."""
    if parameters < SMALL or rate <= FAR * usual_rate:
        return None
    return (
        f"{key}={rate:g} is far above what suits a trained model of {parameters / 1e6:,.0f}M parameters; "
        f"{usual_rate:g} is usual, and what {key}=auto takes"
    )
