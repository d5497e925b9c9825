"""`algorithm.*`: estimator, reference, selection of groups, correction."""

from __future__ import annotations

from toolwright.config.names import Registered
from toolwright.verl.config import VerlConfig
from toolwright.verl.table import prime
from toolwright.verl.table.data import KEPT, RESAMPLED, SAMPLES, WORLD, makes_tasks, resamples
from toolwright.verl.table.environment import reward_share
from toolwright.verl.table.prime import is_prime
from toolwright.verl.translation import Translation

ESTIMATOR = "algorithm.adv_estimator"
ESTIMATORS = {"grpo_vectorized": "grpo", "rloo_vectorized": "rloo"}
BY_STD = "algorithm.norm_adv_by_std_in_grpo"
BY_TURNS = ("grpo", "grpo_passk", "rloo", "reinforce_plus_plus_baseline")  # means over turns, in verl-agent
WHITENED = ("gae", "reinforce_plus_plus", "reinforce_plus_plus_baseline")
PARTS, WEIGHTS = "algorithm.gdpo_reward_keys", "algorithm.gdpo_reward_weights"
GIGPO = "algorithm.gigpo."
SIMILAR = f"{GIGPO}similarity_thresh"
HGPO, PAST = "algorithm.hgpo.", "env.history_length"
TEACHER = "distillation."
TEACHERS = f"{TEACHER}teacher_models"
IN_LOSS, IN_REWARD = "actor_rollout_ref.actor.use_kl_loss", "algorithm.use_kl_in_reward"
KL_NAMES = {"kl": "k1", "mse": "k2", "low_var_kl": "k3"}
CORRECTION = "algorithm.rollout_correction."
BYPASS = (f"{CORRECTION}bypass_mode", f"{CORRECTION}bypass_old_logprob_for_rollout")
PLAIN = f"{CORRECTION}use_policy_gradient"
FILTER = "algorithm.filter_groups."
CAP = "actor_rollout_ref.actor.tis_imp_ratio_cap"
UNLIMITED_ROUNDS = 1_000
REJECT = f"{CORRECTION}rollout_rs"
REJECTIONS = {"token_k1": "token", "seq_sum_k1": "sequence", "seq_mean_k1": "geometric"}
LEVELS = ("token", "sequence", "geometric")  # the names before 0.8, whose bands are of the ratio itself


def has_critic(verl: VerlConfig) -> bool:
    return bool(verl[ESTIMATOR] == "gae")


def distils(verl: VerlConfig) -> bool:
    return bool(verl[f"{TEACHER}enabled"])


def distillation(verl: VerlConfig, to: Translation) -> None:
    """verl's teacher by policy gradient (k1), without the task's reward, is our `distill`."""
    if not distils(verl):
        return
    loss = f"{TEACHER}distillation_loss."
    paths = {
        f"{TEACHERS}.{name}.model_path": own["model_path"]
        for name, own in verl[TEACHERS].items()
        if isinstance(own, dict) and own.get("model_path")
    }
    if len(paths) != 1:
        to.refuse(f"{TEACHERS}: one teacher grades, and {len(paths)} are named")
        return
    if verl[f"{loss}loss_mode"] != "k1" or not verl[f"{loss}use_policy_gradient"]:
        to.near(
            "a teacher "
            "grades sampled tokens by the reverse KL, as a reward (loss_mode=k1 with "
            "use_policy_gradient=True); both are least where the policy is the teacher",
            f"{loss}loss_mode",
            f"{loss}use_policy_gradient",
        )
    for name in ("loss_max_clamp", "log_prob_min_clamp"):
        if verl[f"{loss}{name}"] is not None:
            to.near("the teacher's grades are not clamped", f"{loss}{name}")
    ((key, path),) = paths.items()
    to.set("algorithm.params.distill.teacher", str(path), key)
    rewarded, coef = f"{loss}use_task_rewards", f"{loss}distillation_loss_coef"
    to.set("algorithm.params.distill.reward_weight", 1.0 if verl[rewarded] else 0.0, rewarded)
    to.set("algorithm.params.distill.coef", float(verl[coef]), coef)
    to.set("algorithm.gamma", 0.0, f"{TEACHER}enabled")


def discounts(verl: VerlConfig) -> bool:
    return not distils(verl)


def is_gigpo(verl: VerlConfig) -> bool:
    return bool(verl[ESTIMATOR] == "gigpo")


def is_hgpo(verl: VerlConfig) -> bool:
    return bool(verl[ESTIMATOR] == "hgpo")


def gigpo(verl: VerlConfig, to: Translation) -> None:
    if is_gigpo(verl) and verl[f"{GIGPO}enable_similarity"]:
        sources = (f"{GIGPO}enable_similarity", SIMILAR)
        to.set("algorithm.params.gigpo.similarity", float(verl[SIMILAR]), *sources)


def hgpo(verl: VerlConfig, to: Translation) -> None:
    """verl-agent weighs levels by the length of the history that their steps share."""
    if not is_hgpo(verl):
        return
    if verl[f"{HGPO}weight_type"] != "length":
        to.refuse("levels are weighed by their length", f"{HGPO}weight_type")
    to.set("algorithm.params.hgpo.history", int(verl[PAST]), PAST)


def estimator(verl: VerlConfig, to: Translation) -> None:
    if distils(verl) or is_prime(verl):
        sources = (f"{TEACHER}enabled", ESTIMATOR) if distils(verl) else (ESTIMATOR,)
        for key in ("algorithm.name", "algorithm.adv_estimator"):
            to.set(key, "distill" if distils(verl) else "prime", *sources)
        return
    source = verl[ESTIMATOR]
    name = ESTIMATORS.get(source, source)
    known = Registered("advantage estimator", "toolwright.algorithms.advantages").names()
    if name not in known:
        to.refuse(f"no such estimator; there are {', '.join(sorted(known))}", ESTIMATOR)
        return
    if verl[WORLD] is not None and name in BY_TURNS and verl.family != "RAGEN":
        if name == "grpo" and makes_tasks(verl):
            _by_turns(verl, to)
            return
        to.near(
            "an attempt is compared with the others of its group, where "
            "verl-agent's mean counts an attempt once for each of its turns",
            ESTIMATOR,
        )
    to.set("algorithm.name", "ppo" if name == "gae" else name, ESTIMATOR)
    to.set("algorithm.adv_estimator", name, ESTIMATOR)
    if name == "gdpo":
        _parts(verl, to)


def _by_turns(verl: VerlConfig, to: Translation) -> None:
    """verl-agent's GRPO compares an attempt with the mean over its group's turns: GiGPO without its steps."""
    to.set("algorithm.name", "gigpo", ESTIMATOR)
    to.set("algorithm.adv_estimator", "gigpo", ESTIMATOR)
    to.set("algorithm.params.gigpo.step_weight", 0.0, ESTIMATOR)
    mode = "mean_std_norm" if verl[BY_STD] else "mean_norm"
    to.set("algorithm.params.gigpo.mode", mode, BY_STD)


def weight_share(verl: VerlConfig) -> float:
    """The factor for the weights of reference and entropy, since verl-agent's rewards are larger: 1 if
    advantages are divided by their spread."""
    mode = {"gigpo": f"{GIGPO}mode", "hgpo": f"{HGPO}mode"}.get(str(verl[ESTIMATOR]))
    divided = verl[mode] == "mean_std_norm" if mode else verl[ESTIMATOR] in WHITENED
    if verl[ESTIMATOR] == "grpo":
        divided = bool(verl[BY_STD])
    return 1.0 if divided else reward_share(verl)


def _parts(verl: VerlConfig, to: Translation) -> None:
    """Parts of the reward by the names that the reward function returns them under; all count alike unless
    weights are given."""
    names, weights = verl[PARTS], verl[WEIGHTS]
    if not names:
        to.refuse(f"{PARTS} does not say which parts there are", ESTIMATOR)
    elif weights is not None and len(weights) != len(names):
        to.refuse(f"a weight for each of {verl.as_typed(PARTS)}", WEIGHTS)
    else:
        for name, weight in zip(names, weights or [1.0] * len(names), strict=True):
            to.set(f"algorithm.params.gdpo.scorer_weights.{name}", float(weight), PARTS, WEIGHTS)


def reference(verl: VerlConfig, to: Translation) -> None:
    in_loss, in_reward = bool(verl[IN_LOSS]), bool(verl[IN_REWARD])
    if in_loss and in_reward:
        to.refuse(f"{IN_LOSS} and {IN_REWARD}: the reference is in the loss or in the reward; choose one")
        return
    if in_reward and is_prime(verl):
        to.note("without effect in PRIME, whose advantages do not read it", IN_REWARD)
        in_reward = False
    where = "loss" if in_loss else "reward" if in_reward else "none"
    to.set("algorithm.kl.where", where, IN_LOSS, IN_REWARD)
    actor, control = "actor_rollout_ref.actor.kl_loss_", "algorithm.kl_ctrl."
    kind, coef = (
        (f"{actor}type", f"{actor}coef") if in_loss else ("algorithm.kl_penalty", f"{control}kl_coef")
    )
    name = str(verl[kind])
    plus = "+" if name.endswith("+") else ""
    if name == "full":
        to.refuse(f"{kind}=full: only the sampled tokens' probabilities are kept; take k3 or kl")
        return
    if where != "none":
        to.set("algorithm.kl.estimator", KL_NAMES.get(name.rstrip("+"), name.rstrip("+")) + plus, kind)
        share = reward_share(verl) if in_reward else weight_share(verl)
        if share != 1:
            to.near("a tenth of it, as rewards are a tenth", coef)
        weight = verl[coef] if share == 1 else verl[coef] * share
        to.set("algorithm.kl.coef", weight, coef)
    adapts = in_reward and verl[f"{control}type"] == "adaptive"
    to.set("algorithm.kl.target", verl[f"{control}target_kl"] if adapts else None, f"{control}type")
    if adapts:
        to.set("algorithm.kl.horizon", verl[f"{control}horizon"], f"{control}horizon")


def groups(verl: VerlConfig, to: Translation) -> None:
    if is_prime(verl) or verl.is_set(prime.FILTERED):
        prime.groups(verl, to)
        return
    on, limit = f"{FILTER}enable", f"{FILTER}max_num_gen_batches"
    enabled, rounds, metric = bool(verl[on]), verl[limit], verl[f"{FILTER}metric"]
    by_reward = enabled and metric in ("score", "seq_reward", "seq_final_reward")
    chosen = "reward" if by_reward else enabled
    to.set("algorithm.selection.dynamic_sampling", chosen, on, f"{FILTER}metric")
    if not enabled:
        return
    most = rounds if rounds and rounds > 0 else UNLIMITED_ROUNDS
    to.set("algorithm.selection.max_rounds", most, limit)
    if metric not in (None, "acc") and not by_reward:
        to.note(f"{FILTER}metric={metric}: groups are told apart by `acc`, or by the reward without one")


def resampled(verl: VerlConfig, to: Translation) -> None:
    """rStar2's GRPO-RoC: of many attempts, the cleanest right ones and some wrong ones are learned from."""
    if not resamples(verl):
        return
    sampled, kept = verl.number(SAMPLES), verl.number(KEPT)
    if sampled % kept:
        to.refuse(f"{verl.as_typed(KEPT)} does not divide {verl.as_typed(SAMPLES)}")
    to.set("algorithm.selection.oversample", sampled // kept, RESAMPLED, KEPT, SAMPLES)
    to.near(
        "right attempts are drawn by their faults, where rStar2 takes the "
        "cleanest, and at least one of each kind stays; groups of equal rewards teach nothing, and stay",
        RESAMPLED,
    )


def correction(verl: VerlConfig, to: Translation) -> None:
    """Three generations of the same setting: 0.9's block, 0.6's flat keys, and the cap before them."""
    block, flat = f"{CORRECTION}rollout_is", "algorithm.rollout_is"
    mode, level, low, high, source = "none", "token", 0.0, 2.0, block
    bounded: tuple[str, ...] = ()
    if verl[block] is not None:
        mode, level, bounded = "truncate", verl[block], (f"{block}_threshold",)
        bounds = str(verl[f"{block}_threshold"]).split("_")  # `low_high` leaves out what lies beyond
        if len(bounds) > 1:
            mode, low = "mask", float(bounds[0])
        high = float(bounds[-1])
    elif verl[flat] and verl[f"{flat}_threshold"] is not None:
        bounded, source = (f"{flat}_threshold", f"{flat}_threshold_lower"), flat
        mode, level, high = (verl[f"{flat}_{name}"] for name in ("mode", "level", "threshold"))
        low = verl[f"{flat}_threshold_lower"] or 1 / high
    elif verl[CAP] and verl[CAP] > 0:
        mode, high, source = "truncate", verl[CAP], CAP
    if verl[REJECT] is not None:
        _rejection(verl, to, None if mode == "none" else level)
        return
    if level not in ("token", "sequence") or mode not in ("none", "truncate", "mask"):
        to.refuse("weights are of a token or a sequence, and truncated or masked", source)
        return
    to.set("algorithm.correction.mode", mode, source)
    if mode == "none":
        return
    to.set("algorithm.correction.level", level, source)
    to.set("algorithm.correction.high", high, source, *bounded)
    if mode == "mask":
        to.set("algorithm.correction.low", low, source, *bounded)


def _rejection(verl: VerlConfig, to: Translation, weighed: str | None) -> None:
    """Drop sequences, or tokens, whose ratio leaves a band. `weighed`: the level of verl's weights."""
    named = [name.strip() for name in str(verl[REJECT]).split(",")]
    bounds = str(verl[f"{REJECT}_threshold"] or 2.0).split(",")
    place = next((place for place, name in enumerate(named) if name in (*REJECTIONS, *LEVELS)), None)
    if place is None:
        to.refuse(f"rejection goes by {', '.join(REJECTIONS)}", REJECT)
        return
    level = REJECTIONS.get(named[place], named[place])
    if len(named) > 1:
        to.near(f"{named[place]} alone rejects", REJECT)
    weights = (f"{CORRECTION}rollout_is", f"{CORRECTION}rollout_is_threshold")
    said = ", ".join(map(verl.as_typed, (REJECT, *weights)))
    if weighed is not None and level != "token":
        to.near(f"{said}: what is kept is not weighed as well")
    elif level == "token" and weighed != "token":
        to.near(f"{said}: tokens that are kept are weighed by their ratio")
    if not _native(verl):
        to.near("what is rejected counts as 0 in the mean, where verl leaves it out", REJECT)
    low, high = _band(verl, bounds[min(place, len(bounds) - 1)])
    if named[place] in REJECTIONS:  # `k1` is of the inverse ratio
        low, high = 1 / high, 1 / low
    sources: tuple[str, ...] = (REJECT, f"{REJECT}_threshold", f"{REJECT}_threshold_lower")
    if weighed is not None:
        sources += weights
    to.set("algorithm.correction.mode", "mask" if level == "token" else "reject", *sources)
    to.set("algorithm.correction.level", level, REJECT)
    to.set("algorithm.correction.high", high, *sources)
    to.set("algorithm.correction.low", low, *sources)


def _band(verl: VerlConfig, text: str) -> tuple[float, float]:
    """`0.5_2.0`, or an upper bound alone, whose inverse is the lower one."""
    low, _, high = text.rpartition("_")
    return float(low or verl[f"{REJECT}_threshold_lower"] or 1 / float(high)), float(high)


def plain_gradient(verl: VerlConfig) -> bool:
    """Return True if verl leaves PPO's clip out: `reinforce`, or its name in 0.6, in bypass mode."""
    return any(verl[key] for key in BYPASS) and (
        verl[f"{CORRECTION}loss_type"] == "reinforce" or bool(verl[PLAIN])
    )


def _native(verl: VerlConfig) -> bool:
    """Return True if the native engine samples. Its log-probabilities are the learner's: every ratio is 1."""
    engine = verl["actor_rollout_ref.rollout.name"]
    return engine in (None, "hf") or (verl.fit and engine not in verl.machine.engines)


def bypass(verl: VerlConfig, to: Translation) -> None:
    for key in BYPASS:
        if not verl[key]:
            continue
        if _native(verl):
            to.note(f"{key}: the native engine's log-probabilities are the learner's, so this holds already")
        else:
            to.near("the old log-probabilities are the learner's own", key)
