"""`recipe.prime`: its reward model learns beside the policy, as that of `algorithm=prime`."""

from __future__ import annotations

import math
from collections.abc import Iterator

from toolwright.verl.config import VerlConfig
from toolwright.verl.row import KeyRow, Near, Note, Outcome, TranslatedSetting, TranslationProblem, part

MARK = "reward_model.prime_granularity"  # which only the recipe's configuration has
OURS = "algorithm.params.prime"
MODEL = "reward_model.model."
PATH, POLICY = f"{MODEL}path", "actor_rollout_ref.model.path"
SAME = {
    f"{MODEL}beta_train": f"{OURS}.beta",
    "algorithm.reward_dpo_coef": f"{OURS}.process_weight",
    "algorithm.reward_gt_coef": f"{OURS}.outcome_weight",
    f"{MODEL}optim.lr": "update.critic.lr",
    f"{MODEL}optim.weight_decay": "update.critic.weight_decay",
    f"{MODEL}optim.grad_clip": "update.critic.max_grad_norm",
}
ONLY = {MARK: "token", "reward_model.prime_norm": "batch_norm", f"{MODEL}loss_type": "ce"}
NEARLY = {
    f"{MODEL}update": ("before", "the reward model learns before it is asked"),
    f"{MODEL}ref_type": ("freeze", "what it began as stays as it is"),
}
MINI_BATCH = "reward_model.mini_batch_size"
FILTERED, OVERSAMPLED, WHOLE = "data.filter_accuracy", "data.oversample_factor", "data.filter_truncate"
LOWEST, HIGHEST = "data.accuracy_lower_bound", "data.accuracy_upper_bound"
SELECTION = "algorithm.selection."


def is_prime(verl: VerlConfig) -> bool:
    return verl.is_set(MARK)


def settings(verl: VerlConfig) -> Iterator[Outcome]:
    if not is_prime(verl):
        return
    for key, ours in SAME.items():
        yield TranslatedSetting(ours, verl[key], (key,))
    if verl[PATH] is not None and verl[PATH] != verl[POLICY]:
        yield TranslatedSetting(f"{OURS}.path", str(verl[PATH]), (PATH,))
    elif verl.is_set(PATH):
        yield Note(f"{verl.as_typed(PATH)}: nothing to set: the reward model begins as the policy")
    for key, only in ONLY.items():
        if verl[key] != only:
            yield TranslationProblem(f"{verl.as_typed(key)}: PRIME here has {only} alone")
    for key, (only, why) in NEARLY.items():
        if verl[key] != only:
            yield Near(f"{verl.as_typed(key)}: {why}")
        elif verl.is_set(key):
            yield Note(f"{verl.as_typed(key)}: as it is here")
    if verl.is_set(MINI_BATCH):
        yield Near(f"{verl.as_typed(MINI_BATCH)}: the reward model takes one update a step")


def groups(verl: VerlConfig) -> Iterator[Outcome]:
    """The recipe samples `oversample_factor` batches at once and learns from groups of middling accuracy
    first. Here a batch is sampled at a time, until there are enough groups that are neither all right nor all
    wrong: the same groups where a group has so few attempts that nothing lies between."""
    chosen = bool(verl[FILTERED])
    yield TranslatedSetting(f"{SELECTION}dynamic_sampling", chosen, (FILTERED,))
    if not chosen:
        return
    rounds = max(1, math.ceil(float(verl[OVERSAMPLED])))
    yield TranslatedSetting(f"{SELECTION}max_rounds", rounds, (OVERSAMPLED,))
    yield Near(
        f"{verl.as_typed(FILTERED)}, {verl.as_typed(LOWEST)}, {verl.as_typed(HIGHEST)}: groups that are all "
        "right or all wrong are left out, and where too few are left, none of those fills up the step"
    )
    if verl[WHOLE]:
        yield Near(f"{verl.as_typed(WHOLE)}: a group with an answer that ran out of tokens stays")


ROWS: list[KeyRow] = [
    *(part(key, ours, "PRIME", settings) for key, ours in SAME.items()),
    *(part(key, (), f"PRIME: {only} alone", settings) for key, only in ONLY.items()),
    *(part(key, (), f"PRIME: {why}", settings) for key, (_, why) in NEARLY.items()),
    part(MINI_BATCH, (), "PRIME: one update a step", settings),
    part(FILTERED, f"{SELECTION}dynamic_sampling", "PRIME", settings),
    part(OVERSAMPLED, f"{SELECTION}max_rounds", "PRIME: rounded up", settings),
    *(
        part(key, (), "PRIME, with `--fit`: neither all right nor all wrong", settings)
        for key in (LOWEST, HIGHEST)
    ),
    part(WHOLE, (), "PRIME, with `--fit`: such groups stay", settings),
]
