"""Keys of verl's that change learning: from the command line to the objective, on fixed numbers.

The numbers expected are computed here, token by token, from what verl says that each key does.
"""

from __future__ import annotations

from math import exp, isclose, log
from typing import Any

import pytest
import torch

from tests.verl.conftest import BARE
from toolwright.algorithms import advantages, aggregate, correction, kl, losses
from toolwright.verl.config import Machine
from toolwright.verl.translate import translate

ACTOR, RS = "actor_rollout_ref.actor", "algorithm.rollout_correction.rollout"
# Two answers, of three tokens and of two.
NEW = [[-0.5, -1.0, -0.2], [-2.0, -0.7, 0.0]]
OLD = [[-0.9, -0.8, -0.2], [-1.2, -1.3, 0.0]]
REF = [[-0.6, -1.4, -0.1], [-1.9, -0.2, 0.0]]
SAMPLED = [[-1.4, -0.8, -0.3], [-1.2, -0.6, 0.0]]
ENTROPY = [[0.3, 0.6, 0.1], [0.9, 0.2, 0.0]]
MASK = [[1, 1, 1], [1, 1, 0]]
GAIN = [[1.5, 1.5, 1.5], [-2.0, -2.0, 0.0]]
TOKENS = [(row, place) for row in range(2) for place in range(3) if MASK[row][place]]


def settings(*words: str) -> dict[str, Any]:
    line = ["data.train_files=x.parquet", "actor_rollout_ref.model.path=m", "algorithm.adv_estimator=grpo"]
    found = translate([*line, *words], machine=BARE, fit=True, files_may_miss=True)
    assert found.problems == []
    return {setting.ours: setting.value for setting in found.settings}


def objective(*words: str) -> float:
    """What a step minimises with these keys, by the functions that the learner calls."""
    own = settings(*words)
    new, old, mask = (torch.tensor(x, dtype=torch.float64) for x in (NEW, OLD, MASK))
    name, how, norm = own["algorithm.loss"], own["algorithm.aggregate"], own["algorithm.norm_tokens"]
    clips = {key: own[f"algorithm.{key}"] for key in ("clip_low", "clip_high", "clip_c")}
    weights = None
    if own["algorithm.correction.mode"] != "none":
        prefix = "algorithm.correction."
        chosen = {key.removeprefix(prefix): own[key] for key in own if key.startswith(prefix)}
        sampled = torch.tensor(SAMPLED, dtype=torch.float64)
        weights, _ = correction.compute(old_log_prob=old, sampled_log_prob=sampled, mask=mask, **chosen)
    loss, _ = losses.compute(
        name,
        log_prob=new,
        old_log_prob=old,
        advantages=torch.tensor(GAIN, dtype=torch.float64),
        mask=mask,
        aggregate=how,
        norm_tokens=norm,
        weights=weights,
        **losses.registry.get(name).accepted(**clips),
    )
    if own["algorithm.kl.where"] == "loss":
        away = kl.compute(own["algorithm.kl.estimator"], new, torch.tensor(REF, dtype=torch.float64), mask)
        loss = loss + own["algorithm.kl.coef"] * aggregate.compute(how, away, mask, norm_tokens=norm)
    entropy = torch.tensor(ENTROPY, dtype=torch.float64)
    bonus = aggregate.compute(how, entropy, mask, norm_tokens=norm)
    return float(loss - own["algorithm.entropy_coef"] * bonus)


def clipped(low: float = 0.2, high: float = 0.2, c: float = 3.0) -> list[list[float]]:
    """PPO's loss of each token, with verl's dual clip."""
    found = [[0.0] * 3 for _ in range(2)]
    for row, place in TOKENS:
        gain, ratio = GAIN[row][place], exp(NEW[row][place] - OLD[row][place])
        worse = max(-gain * ratio, -gain * min(max(ratio, 1 - low), 1 + high))
        found[row][place] = min(worse, -gain * c) if gain < 0 else worse
    return found


def mean(values: list[list[float]]) -> float:
    return sum(values[row][place] for row, place in TOKENS) / len(TOKENS)


def each(function: Any) -> list[list[float]]:
    return [[function(row, place) if MASK[row][place] else 0.0 for place in range(3)] for row in range(2)]


def times(values: list[list[float]], weights: list[list[float]]) -> list[list[float]]:
    return each(lambda row, place: values[row][place] * weights[row][place])


PPO = clipped()
GAP = each(lambda row, place: exp(OLD[row][place] - SAMPLED[row][place]))
WHOLE = [exp(sum(OLD[row]) - sum(SAMPLED[row])) for row in range(2)]
AWAY = each(lambda row, place: REF[row][place] - NEW[row][place])
KL = {
    "kl": each(lambda row, place: -AWAY[row][place]),
    "abs": each(lambda row, place: abs(AWAY[row][place])),
    "mse": each(lambda row, place: AWAY[row][place] ** 2 / 2),
    "low_var_kl": each(lambda row, place: exp(AWAY[row][place]) - AWAY[row][place] - 1),
}
IN_LOSS = (f"{ACTOR}.use_kl_loss=True", f"{ACTOR}.kl_loss_coef=0.3")
MOVED = each(lambda row, place: exp(NEW[row][place]) - exp(OLD[row][place]))
CASES: dict[str, tuple[tuple[str, ...], float]] = {
    "defaults": ((), mean(PPO)),
    "clip_ratio": ((f"{ACTOR}.clip_ratio=0.1",), mean(clipped(0.1, 0.1))),
    "clip_ratio_low": ((f"{ACTOR}.clip_ratio_low=0.05",), mean(clipped(low=0.05))),
    "clip_ratio_high": ((f"{ACTOR}.clip_ratio_high=0.45",), mean(clipped(high=0.45))),
    "clip_ratio_c": ((f"{ACTOR}.clip_ratio_c=1.5",), mean(clipped(c=1.5))),
    "entropy_coeff": ((f"{ACTOR}.entropy_coeff=0.01",), mean(PPO) - 0.01 * mean(ENTROPY)),
    "use_kl_loss, kl_loss_coef": (IN_LOSS, mean(PPO) + 0.3 * mean(KL["low_var_kl"])),
    **{
        f"kl_loss_type={name}": ((*IN_LOSS, f"{ACTOR}.kl_loss_type={name}"), mean(PPO) + 0.3 * mean(KL[name]))
        for name in KL
    },
    "loss_agg_mode, a mean of means": (
        (f"{ACTOR}.loss_agg_mode=seq-mean-token-mean",),
        (sum(PPO[0]) / 3 + sum(PPO[1]) / 2) / 2,
    ),
    "loss_agg_mode, a mean of sums": (
        (f"{ACTOR}.loss_agg_mode=seq-mean-token-sum",),
        (sum(PPO[0]) + sum(PPO[1])) / 2,
    ),
    "loss_agg_mode, by a length": (
        (f"{ACTOR}.loss_agg_mode=seq-mean-token-sum-norm", "data.max_response_length=8"),
        (sum(PPO[0]) + sum(PPO[1])) / 2 / 8,
    ),
    "loss_scale_factor": (
        (f"{ACTOR}.loss_agg_mode=seq-mean-token-sum-norm", f"{ACTOR}.loss_scale_factor=5"),
        (sum(PPO[0]) + sum(PPO[1])) / 2 / 5,
    ),
    "loss_mode=gpg": (
        (f"{ACTOR}.policy_loss.loss_mode=gpg",),
        mean(each(lambda row, place: -GAIN[row][place] * NEW[row][place])),
    ),
    "loss_mode=dppo_tv": (
        (f"{ACTOR}.policy_loss.loss_mode=dppo_tv", f"{ACTOR}.clip_ratio_low=0.1", f"{ACTOR}.clip_ratio_c=20"),
        mean(
            each(
                lambda row, place: (
                    0.0
                    if (GAIN[row][place] > 0 and MOVED[row][place] > 0.2)
                    or (GAIN[row][place] < 0 and MOVED[row][place] < -0.1)
                    else -GAIN[row][place] * exp(NEW[row][place] - OLD[row][place]) * NEW[row][place]
                )
            )
        ),
    ),
    "rollout_is=token": (
        (f"{RS}_is=token", f"{RS}_is_threshold=1.5"),
        mean(times(PPO, each(lambda row, place: min(GAP[row][place], 1.5)))),
    ),
    "rollout_is=sequence": (
        (f"{RS}_is=sequence", f"{RS}_is_threshold=1.5"),
        mean(times(PPO, each(lambda row, place: min(WHOLE[row], 1.5)))),
    ),
    "rollout_is_threshold, a band": (
        (f"{RS}_is=token", f"{RS}_is_threshold=0.7_1.2"),
        mean(times(PPO, each(lambda row, place: GAP[row][place] * (0.7 <= GAP[row][place] <= 1.2)))),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_objective_is_that_of_the_key(name: str) -> None:
    words, expected = CASES[name]
    assert isclose(objective(*words), expected, rel_tol=1e-6)


def test_no_two_of_these_keys_are_the_same_by_chance() -> None:
    distinct = {
        round(expected, 9) for name, (_, expected) in CASES.items() if name != "kl_loss_type=low_var_kl"
    }
    assert len(distinct) == len(CASES) - 1


def test_a_rejected_answer_stays_in_the_mean_and_the_line_says_so() -> None:
    # verl's k1 is of the inverse ratio: 1 / WHOLE is kept from 0.5 to 1.1.
    words = (f"{RS}_rs=seq_sum_k1", f"{RS}_rs_threshold=0.5_1.1")
    kept = [row for row in range(2) if 0.5 <= 1 / WHOLE[row] <= 1.1]
    assert len(kept) == 1
    loss, tokens = sum(PPO[kept[0]]), sum(MASK[kept[0]])
    verls = loss / tokens
    assert isclose(objective(*words), verls * tokens / len(TOKENS), rel_tol=1e-6)
    line = ["data.train_files=x", "actor_rollout_ref.model.path=m", "actor_rollout_ref.rollout.name=vllm"]
    with_vllm = Machine(devices=1, engines=frozenset({"native", "vllm"}))
    found = translate([*line, *words], machine=with_vllm, fit=True, files_may_miss=True)
    assert any("counts as 0 in the mean" in text for text in found.changes)


SCORES = [3.0, 1.0, 2.0, 4.0]


@pytest.mark.parametrize(
    ("words", "by_std"), [((), True), (("algorithm.norm_adv_by_std_in_grpo=False",), False)]
)
def test_advantages_of_a_group(words: tuple[str, ...], by_std: bool) -> None:
    own = settings(*words)
    rewards = torch.tensor(SCORES)[:, None]
    ours, _ = advantages.compute(
        own["algorithm.adv_estimator"],
        rewards=rewards,
        mask=torch.ones(4, 1),
        group=["u"] * 4,
        normalize_by_std=own["algorithm.normalize_by_std"],
    )
    spread = (sum((x - 2.5) ** 2 for x in SCORES) / 3) ** 0.5 if by_std else 1.0
    torch.testing.assert_close(
        ours[:, 0], torch.tensor([(x - 2.5) / spread for x in SCORES]), rtol=1e-5, atol=1e-5
    )


def test_gamma_and_lam_of_gae() -> None:
    own = settings("algorithm.adv_estimator=gae", "algorithm.gamma=0.9", "algorithm.lam=0.8")
    assert (own["algorithm.gamma"], own["algorithm.lam"]) == (0.9, 0.8)
    values, reward = [0.5, 0.2], 1.0
    second = reward - values[1]
    first = 0.9 * values[1] - values[0] + 0.9 * 0.8 * second
    _, returns = advantages.compute(
        "gae",
        rewards=torch.tensor([[0.0, reward]]),
        mask=torch.ones(1, 2),
        values=torch.tensor([values]),
        gamma=own["algorithm.gamma"],
        lam=own["algorithm.lam"],
    )
    torch.testing.assert_close(returns, torch.tensor([[first + values[0], second + values[1]]]))


def test_kl_in_the_reward_and_its_coefficient() -> None:
    own = settings(
        "algorithm.use_kl_in_reward=True", "algorithm.kl_ctrl.kl_coef=0.05", "algorithm.kl_penalty=kl"
    )
    assert own["algorithm.kl.where"] == "reward"
    away = kl.compute(own["algorithm.kl.estimator"], torch.tensor([[log(0.5)]]), torch.tensor([[log(0.25)]]))
    assert isclose(own["algorithm.kl.coef"] * float(away), 0.05 * log(2), rel_tol=1e-6)


def test_the_overlong_buffer() -> None:
    words = [
        f"reward_model.overlong_buffer.{word}" for word in ("enable=True", "len=20", "penalty_factor=0.5")
    ]
    own = settings(*words, "data.max_response_length=100")
    # An answer of 90 is half-way into the last 20: half of the penalty.
    within = own["reward.overlong_buffer"] * 100
    assert isclose((90 - (100 - within)) / within * own["reward.overlong_penalty"], 0.25)
