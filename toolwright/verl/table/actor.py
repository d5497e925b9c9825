"""`actor_rollout_ref.actor.*` and `.ref.*`: the loss, the updates and the optimiser."""

from __future__ import annotations

from collections.abc import Iterator

from toolwright.config.names import Registered
from toolwright.verl.asked import VerlConfig
from toolwright.verl.row import (
    KeyRow,
    Note,
    Outcome,
    TranslatedSetting,
    TranslationProblem,
    always,
    part,
    refused,
    same,
    unused,
)
from toolwright.verl.table import optimizer
from toolwright.verl.table.data import MINI_BATCH, batch

ACTOR = "actor_rollout_ref.actor."
REF = "actor_rollout_ref.ref."
LOSS, LOSS_HERE = f"{ACTOR}policy_loss.loss_mode", f"{ACTOR}loss_mode"
AGGREGATE = f"{ACTOR}loss_agg_mode"
LOSSES = {"vanilla": "ppo", "geo_mean": "gmpo"}
# A loss's further settings: verl's key, and the argument of ours.
ARGUMENTS = {
    "clip_cov": {
        f"{ACTOR}policy_loss.{name}": name for name in ("clip_cov_ratio", "clip_cov_lb", "clip_cov_ub")
    },
    "kl_cov": {f"{ACTOR}policy_loss.{name}": name for name in ("kl_cov_ratio", "ppo_kl_coef")},
    "sapo": {f"{ACTOR}tau_pos": "tau_pos", f"{ACTOR}tau_neg": "tau_neg"},
}


def loss(asked: VerlConfig) -> Iterator[Outcome]:
    key = asked.first(LOSS_HERE, LOSS)
    name = LOSSES.get(asked[key], asked[key])
    known = Registered("loss", "toolwright.algorithms.losses").names()
    if name not in known:
        yield TranslationProblem(
            f"{asked.shown(key)}: there is no such loss; there are {', '.join(sorted(known))}"
        )
        return
    yield TranslatedSetting("algorithm.loss", name, (key,))
    for said, argument in ARGUMENTS.get(name, {}).items():
        yield TranslatedSetting(f"algorithm.params.{name}.{argument}", asked[said], (said,))
    aggregate = asked[AGGREGATE]
    if name == "gspo" and aggregate != "seq-mean-token-mean":
        yield Note(
            "gspo averages by seq-mean-token-mean in verl whatever loss_agg_mode says, so it does here"
        )
        aggregate = "seq-mean-token-mean"
    yield TranslatedSetting("algorithm.aggregate", aggregate, (AGGREGATE,))
    scale = asked[f"{ACTOR}loss_scale_factor"]
    longest = asked["actor_rollout_ref.rollout.response_length"]
    yield TranslatedSetting("algorithm.norm_tokens", int(scale or longest), (f"{ACTOR}loss_scale_factor",))


def clip(asked: VerlConfig) -> Iterator[Outcome]:
    both = f"{ACTOR}clip_ratio"
    for side in ("low", "high"):
        key = f"{both}_{side}"
        chosen = both if (asked.says(both) and not asked.says(key)) or asked[key] is None else key
        yield TranslatedSetting(f"algorithm.clip_{side}", asked[chosen], (chosen,))
    if asked.says(both) and not asked.says(f"{both}_low", f"{both}_high"):
        yield Note(
            f"{asked.shown(both)} holds on both sides; verl would go by its own clip_ratio_low and _high"
        )


def micro_tokens(asked: VerlConfig) -> Iterator[Outcome]:
    """Sequences a pass as tokens a pass: each counted at its longest."""
    fixed = asked.first(f"{ACTOR}ppo_micro_batch_size_per_gpu", f"{ACTOR}ppo_micro_batch_size")
    budget = f"{ACTOR}ppo_max_token_len_per_gpu"
    if asked[f"{ACTOR}use_dynamic_bsz"] or (asked.says(budget) and asked[fixed] is None):
        yield TranslatedSetting("update.micro_tokens", asked.number(budget), (budget,))
    elif asked[fixed] is not None:
        longest = asked.number("data.max_prompt_length") + asked.number(
            "actor_rollout_ref.rollout.response_length"
        )
        yield TranslatedSetting("update.micro_tokens", asked.number(fixed) * longest, (fixed,))


ONE_BUDGET = "one budget, `update.micro_tokens`, for every pass; it never changes a gradient"
MEMORY = "not there yet; a matter of memory, not of what is learned"

ROWS: list[KeyRow] = [
    part(MINI_BATCH, "update.minibatches", "`train_batch_size` ÷ it, rounded up: both count prompts", batch),
    same(f"{ACTOR}ppo_epochs", "update.epochs"),
    part(
        f"{ACTOR}ppo_micro_batch_size_per_gpu",
        "update.micro_tokens",
        "× (prompt + response length), where it is set: a budget of tokens, which never changes a gradient",
        micro_tokens,
    ),
    part(f"{ACTOR}ppo_micro_batch_size", "update.micro_tokens", "the same", micro_tokens),
    part(
        f"{ACTOR}ppo_max_token_len_per_gpu",
        "update.micro_tokens",
        "where `use_dynamic_bsz`, or it is set",
        micro_tokens,
    ),
    part(
        f"{ACTOR}use_dynamic_bsz",
        "update.micro_tokens",
        "always so: a micro-batch is a token budget",
        micro_tokens,
    ),
    part(
        LOSS,
        ("algorithm.loss", "algorithm.params"),
        "`vanilla` → `ppo`, `geo_mean` → `gmpo`, other names as they are",
        loss,
    ),
    part(LOSS_HERE, "algorithm.loss", "the same, as some forks have it", loss),
    *(
        part(key, f"algorithm.params.{name}.{argument}", f"with `loss_mode={name}`", loss)
        for name, arguments in ARGUMENTS.items()
        for key, argument in arguments.items()
    ),
    part(AGGREGATE, "algorithm.aggregate", "the same names; with `gspo` always `seq-mean-token-mean`", loss),
    part(
        f"{ACTOR}loss_scale_factor",
        "algorithm.norm_tokens",
        "unset: the response length, as verl has it",
        loss,
    ),
    part(
        f"{ACTOR}clip_ratio",
        ("algorithm.clip_low", "algorithm.clip_high"),
        "where it is set and the two below are not",
        clip,
    ),
    part(f"{ACTOR}clip_ratio_low", "algorithm.clip_low", "", clip),
    part(f"{ACTOR}clip_ratio_high", "algorithm.clip_high", "", clip),
    same(f"{ACTOR}clip_ratio_c", "algorithm.clip_c"),
    same(f"{ACTOR}entropy_coeff", "algorithm.entropy_coef"),
    *optimizer.rows(ACTOR, "update.policy"),
    always(f"{ACTOR}rollout_n", "follows from `rollout.samples`"),
    always(f"{REF}rollout_n", "follows from `rollout.samples`"),
    always(f"{ACTOR}calculate_entropy", "the entropy is in every step's metrics"),
    always(f"{ACTOR}calculate_sum_pi_squared", "computed when the estimator asks for it"),
    always(f"{ACTOR}use_prefix_grouper", "a group's prompt is computed once"),
    always(f"{ACTOR}use_remove_padding", "sequences are packed"),
    always(f"{ACTOR}shuffle", "minibatches are drawn at random, by the run's seed"),
    unused(f"{ACTOR}data_loader_seed", "random choices follow from `run.seed`"),
    always(f"{ACTOR}state_masking", "tokens that the policy did not sample are never learned from"),
    refused(f"{ACTOR}policy_loss.dro_beta", "there is no DRO loss"),
    unused(f"{ACTOR}freeze_vision_tower", "models here read text only"),
    *(
        unused(f"{role}{key}", ONE_BUDGET)
        for role in (REF, "actor_rollout_ref.rollout.")
        for key in (
            "log_prob_micro_batch_size",
            "log_prob_micro_batch_size_per_gpu",
            "log_prob_use_dynamic_bsz",
            "log_prob_max_token_len_per_gpu",
        )
    ),
    refused(f"{REF}model", "the reference is the policy as it was at the start", harmless=({},)),
    *(
        unused(f"{role}{key}", MEMORY)
        for role in (ACTOR, REF)
        for key in (
            "strategy",
            "fsdp_config.*",
            "ulysses_sequence_parallel_size",
            "entropy_from_logits_with_chunking",
            "entropy_from_logits_chunk_size",
            "entropy_checkpointing",
            "pad_to_length",
            "use_torch_compile",
        )
    ),
    unused(f"{ACTOR}use_fused_kernels", "a matter of speed"),
    always(
        f"{ACTOR}checkpoint.*",
        "a checkpoint holds everything a run needs, and `model/` is a Hugging Face folder",
    ),
    refused(f"{ACTOR}qat.*", "there is no training for quantised weights"),
    refused(f"{ACTOR}fsdp_config.qat.*", "there is no training for quantised weights"),
    refused(f"{ACTOR}router_replay.*", "there are no mixtures of experts"),
    refused(f"{REF}router_replay.*", "there are no mixtures of experts"),
]
