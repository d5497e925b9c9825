"""`actor_rollout_ref.actor.*` and `.ref.*`: the loss, the updates and the optimiser."""

from __future__ import annotations

from toolwright.config.names import Registered
from toolwright.verl.config import VerlConfig
from toolwright.verl.table.algorithm import CORRECTION, IN_LOSS, PLAIN, plain_gradient, weight_share
from toolwright.verl.table.data import of_search_r1
from toolwright.verl.translation import Translation

ACTOR = "actor_rollout_ref.actor."
LOSS, LOSS_HERE = f"{ACTOR}policy_loss.loss_mode", f"{ACTOR}loss_mode"
AGGREGATE, ENTROPY = f"{ACTOR}loss_agg_mode", f"{ACTOR}entropy_coeff"
ETA = (f"{ACTOR}sppo_eta", "algorithm.sppo_eta", f"{ACTOR}extra.sppo_eta")
LOSSES = {"vanilla": "ppo", "geo_mean": "gmpo"}
# A loss's further settings: verl's key, and the argument of ours.
ARGUMENTS = {
    "clip_cov": {
        f"{ACTOR}policy_loss.{name}": name for name in ("clip_cov_ratio", "clip_cov_lb", "clip_cov_ub")
    },
    "kl_cov": {f"{ACTOR}policy_loss.{name}": name for name in ("kl_cov_ratio", "ppo_kl_coef")},
    "sapo": {f"{ACTOR}tau_pos": "tau_pos", f"{ACTOR}tau_neg": "tau_neg"},
}


def _loss(verl: VerlConfig) -> tuple[str, str]:
    """The key that names the loss, and the loss's name here."""
    if plain_gradient(verl):
        return verl.first(f"{CORRECTION}loss_type", PLAIN), "reinforce"
    key = verl.first(LOSS, LOSS_HERE)
    return key, LOSSES.get(verl[key], verl[key])


def _elsewhere(key: str) -> str:
    """The same key in another release of verl: inside `policy_loss`, or beside it."""
    inside = f"{ACTOR}policy_loss."
    return key.replace(inside, ACTOR) if key.startswith(inside) else key.replace(ACTOR, inside)


def loss(verl: VerlConfig, to: Translation) -> None:
    key, name = _loss(verl)
    known = Registered("loss", "toolwright.algorithms.losses").names()
    if name not in known:
        to.refuse(f"there is no such loss; there are {', '.join(sorted(known))}", key)
        return
    to.set("algorithm.loss", name, key)
    for key, argument in ARGUMENTS.get(name, {}).items():
        own = verl.first(key, _elsewhere(key))
        to.set(f"algorithm.params.{name}.{argument}", verl[own], own)
    if name == "sppo":
        eta = verl.first(*ETA)
        to.set("algorithm.params.sppo.eta", float(verl[eta]), eta)
    aggregate = verl[AGGREGATE]
    if name in ("gspo", "sapo") and aggregate != "seq-mean-token-mean":
        text = f"{verl.as_typed(AGGREGATE)}: {name} averages by seq-mean-token-mean in verl whatever it says"
        if verl[IN_LOSS] or verl[ENTROPY]:
            to.near(f"{text}; so do the reference and the entropy here, which go by the key in verl")
        else:
            to.note(f"{text}, and so it does here")
        aggregate = "seq-mean-token-mean"
    to.set("algorithm.aggregate", aggregate, AGGREGATE)
    scale = verl[f"{ACTOR}loss_scale_factor"]
    longest = verl["actor_rollout_ref.rollout.response_length"]
    to.set("algorithm.norm_tokens", int(scale or longest), f"{ACTOR}loss_scale_factor")


def entropy(verl: VerlConfig, to: Translation) -> None:
    """verl-agent's rewards are larger than those here, and so are advantages that stay as large."""
    coef, share = verl[ENTROPY], weight_share(verl)
    if coef and share != 1:
        to.near("a tenth of it, as advantages are a tenth", ENTROPY)
    to.set("algorithm.entropy_coef", coef if share == 1 else coef * share, ENTROPY)


def clip(verl: VerlConfig, to: Translation) -> None:
    both = f"{ACTOR}clip_ratio"
    for side in ("low", "high"):
        key = f"{both}_{side}"
        chosen = both if (verl.is_set(both) and not verl.is_set(key)) or verl[key] is None else key
        to.set(f"algorithm.clip_{side}", verl[chosen], chosen)
    ignored = [key for key in (f"{both}_low", f"{both}_high") if not verl.is_set(key)]
    if verl.is_set(both) and not of_search_r1(verl) and any(verl[both] != verl[key] for key in ignored):
        own = " and ".join(map(verl.as_typed, ignored))
        to.near(f"bounds the ratio, where verl goes by its own {own}", both)


def micro_tokens(verl: VerlConfig, to: Translation) -> None:
    """Sequences a pass as tokens a pass: each counted at its longest."""
    fixed = verl.first(f"{ACTOR}ppo_micro_batch_size_per_gpu", f"{ACTOR}ppo_micro_batch_size")
    budget = f"{ACTOR}ppo_max_token_len_per_gpu"
    if verl[f"{ACTOR}use_dynamic_bsz"] or (verl.is_set(budget) and verl[fixed] is None):
        to.set("update.micro_tokens", verl.number(budget), budget)
    elif verl[fixed] is not None:
        lengths = ("data.max_prompt_length", "actor_rollout_ref.rollout.response_length")
        to.set("update.micro_tokens", verl.number(fixed) * sum(map(verl.number, lengths)), fixed)
