"""`recipe.prime`: its reward model learns beside the policy, as that of `algorithm=prime`."""

from __future__ import annotations

import math

from toolwright.verl.config import VerlConfig
from toolwright.verl.translation import Translation

MARK = "reward_model.prime_granularity"  # which only the recipe's configuration has
OURS = "algorithm.params.prime"
MODEL = "reward_model.model."
PATH, POLICY = f"{MODEL}path", "actor_rollout_ref.model.path"
FILTERED, OVERSAMPLED, WHOLE = "data.filter_accuracy", "data.oversample_factor", "data.filter_truncate"
LOWEST, HIGHEST = "data.accuracy_lower_bound", "data.accuracy_upper_bound"
SELECTION = "algorithm.selection."


def is_prime(verl: VerlConfig) -> bool:
    return verl.is_set(MARK)


def settings(verl: VerlConfig, to: Translation) -> None:
    if not is_prime(verl):
        return
    if verl[PATH] is not None and verl[PATH] != verl[POLICY]:
        to.set(f"{OURS}.path", str(verl[PATH]), PATH)
    elif verl.is_set(PATH):
        to.note("nothing to set: the reward model begins as the policy", PATH)


def groups(verl: VerlConfig, to: Translation) -> None:
    """The recipe samples `oversample_factor` batches at once and learns from groups of middling accuracy
    first. Here a batch is sampled at a time, until there are enough groups that are neither all right nor all
    wrong: the same groups where a group has so few attempts that nothing lies between."""
    chosen = bool(verl[FILTERED])
    to.set(f"{SELECTION}dynamic_sampling", chosen, FILTERED)
    if not chosen:
        return
    rounds = max(1, math.ceil(float(verl[OVERSAMPLED])))
    to.set(f"{SELECTION}max_rounds", rounds, OVERSAMPLED)
    to.near(
        "groups that are all "
        "right or all wrong are left out, and where too few are left, none of those fills up the step",
        FILTERED,
        LOWEST,
        HIGHEST,
    )
    if verl[WHOLE]:
        to.near("a group with an answer that ran out of tokens stays", WHOLE)
