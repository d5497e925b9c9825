"""The policy learns what it is told is good; the reference does not move; a bad gradient is survived."""

from __future__ import annotations

import io
import math
from typing import Any

import pytest
import tiny
import torch
from torch import Tensor

from toolwright.batch import Batch
from toolwright.config import schema
from toolwright.config.learning import KL
from toolwright.learner.forward import Statistics
from toolwright.learner.minibatches import minibatches
from toolwright.learner.objective import Objective
from toolwright.learner.policy import Policy

pytestmark = pytest.mark.filterwarnings("ignore:this machine reports AMX")
PLAIN = Objective(schema.Algorithm(), norm_tokens=16)


def policy_of(*, dtype: torch.dtype = torch.float32, **optimizer: Any) -> Policy:
    return Policy(
        tiny.decoder(),
        schema.OptimizerConfig(**{"lr": 0.01, **optimizer}),
        total_updates=20,
        temperature=1.0,
        micro_tokens=200,
        dtype=dtype,
    )


def weights(policy: Policy) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in policy.decoder.parameters()]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def judged(seed: int = 0) -> Batch:
    """Half of the attempts were good, the others bad."""
    batch = tiny.batch(8, seed=seed)
    good = torch.tensor([1.0, -1.0] * 4).repeat_interleave(torch.tensor(batch.action_lengths))
    batch.columns["advantages"] = good
    return batch


class TestLearning:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
    def test_the_good_becomes_likelier_and_the_bad_less_so(self, dtype: torch.dtype) -> None:
        policy, batch = policy_of(dtype=dtype), judged()
        before = policy.statistics(batch)["log_prob"]
        losses = [policy.update(batch, PLAIN)["loss"] for _ in range(10)]
        change = policy.statistics(batch)["log_prob"] - before
        good = batch.columns["advantages"] > 0
        assert float(change[good].mean()) > 0.3
        assert float(change[~good].mean()) < -0.3
        assert all(math.isfinite(loss) for loss in losses)

    def test_bfloat16_keeps_its_weights_in_float32(self) -> None:
        policy = policy_of(dtype=torch.bfloat16)
        policy.update(judged(), PLAIN)
        assert {p.dtype for p in policy.decoder.parameters()} == {torch.float32}
        assert policy.statistics(judged())["log_prob"].dtype == torch.float32

    def test_bfloat16_says_about_what_float32_says(self) -> None:
        low, full = (
            policy_of(dtype=dtype).statistics(judged())["log_prob"]
            for dtype in (torch.bfloat16, torch.float32)
        )
        assert not torch.equal(low, full), "else it was not used"
        torch.testing.assert_close(low, full, rtol=0.05, atol=0.2)

    def test_an_entropy_bonus_keeps_it_undecided(self) -> None:
        entropies = []
        for coefficient in (0.0, 0.5):
            policy = policy_of()
            objective = Objective(schema.Algorithm(entropy_coef=coefficient), norm_tokens=16)
            for _ in range(10):
                policy.update(judged(), objective)
            entropies.append(float(policy.statistics(judged())["entropy"].mean()))
        assert entropies[1] > entropies[0] + 0.1

    def test_every_update_draws_anew_where_the_loss_draws_tokens_at_random(self) -> None:
        params = {"clip_cov_ratio": 0.3, "clip_cov_lb": 0.0, "clip_cov_ub": 1e3}
        objective = Objective(schema.Algorithm(loss="clip_cov", params={"clip_cov": params}), norm_tokens=16)
        policy, batch = policy_of(), judged()
        now = policy.statistics(batch)["log_prob"]
        batch.columns["old_log_prob"] = now
        first, again, second = (
            objective.prepare(batch, Statistics(now, now), seed=seed)["prepared/dropped"]
            for seed in (1, 1, 2)
        )
        assert torch.equal(first, again)
        assert not torch.equal(first, second)

        def weights_after(seed: int) -> list[Tensor]:
            policy = policy_of()
            policy.update(batch, objective, seed=seed)
            return weights(policy)

        assert same(weights_after(1), weights_after(1))
        assert not same(weights_after(1), weights_after(2))

    def test_only_the_least_decided_tokens_are_learned_from(self) -> None:
        """Where the advantages of all other tokens are 0, they might as well not have been chosen."""
        policy, batch = policy_of(), judged()
        entropies = policy.statistics(batch)["entropy"]
        count = int(0.2 * len(entropies))
        top = torch.zeros(len(entropies))
        top[entropies.argsort(descending=True, stable=True)[:count]] = 1
        policy.update(batch, Objective(schema.Algorithm(top_entropy_fraction=0.2), norm_tokens=16))
        by_hand = policy_of()
        batch.columns["advantages"] = batch.columns["advantages"] * top
        by_hand.update(batch, PLAIN)
        assert same(weights(policy), weights(by_hand))

    def test_a_token_that_a_schema_forced_is_not_learned_from(self) -> None:
        policy, batch = policy_of(), judged()
        free = (torch.arange(len(batch.actions)) % 3 > 0).float()
        batch.columns["free"] = free
        policy.update(batch, PLAIN)
        by_hand = policy_of()
        del batch.columns["free"]
        batch.columns["advantages"] = batch.columns["advantages"] * free
        by_hand.update(batch, PLAIN)
        assert same(weights(policy), weights(by_hand))

    def test_the_gap_to_what_the_engine_recorded_is_measured(self) -> None:
        policy, batch = policy_of(), judged()
        now = policy.statistics(batch)["log_prob"]
        batch.columns["sampled_log_prob"] = now - 0.25
        batch.columns["sampled_log_prob"][3] = now[3] + 0.75
        metrics = policy.update(batch, PLAIN)
        count = len(now)
        assert metrics["gap/abs_max"] == pytest.approx(0.75, abs=1e-5)
        assert metrics["gap/abs_mean"] == pytest.approx((0.25 * (count - 1) + 0.75) / count, abs=1e-5)
        assert metrics["gap/kl"] == pytest.approx(-(0.25 * (count - 1) - 0.75) / count, abs=1e-5)


class TestTheReference:
    def test_does_not_move_while_the_policy_does(self) -> None:
        policy, batch = policy_of(), judged()
        reference = tiny.frozen_copy(policy)
        before = reference.statistics(batch)["log_prob"]
        assert torch.equal(before, policy.statistics(batch)["log_prob"]), "it begins as the policy"
        for _ in range(3):
            policy.update(batch, PLAIN)
        assert torch.equal(reference.statistics(batch)["log_prob"], before)
        assert not torch.equal(policy.statistics(batch)["log_prob"], before)

    def test_takes_no_gradients(self) -> None:
        reference = tiny.frozen_copy(policy_of())
        assert not any(p.requires_grad for p in reference.decoder.parameters())

    def test_holds_the_policy_back(self) -> None:
        distances = []
        for coefficient in (0.0, 5.0):
            policy, batch = policy_of(), judged()
            reference = tiny.frozen_copy(policy)
            batch.columns["ref_log_prob"] = reference.statistics(batch)["log_prob"]
            kl = KL(where="loss", coef=coefficient, estimator="k2")
            objective = Objective(schema.Algorithm(kl=kl), norm_tokens=16)
            for _ in range(10):
                policy.update(batch, objective)
            change = policy.statistics(batch)["log_prob"] - batch.columns["ref_log_prob"]
            distances.append(float(change.abs().mean()))
        assert distances[1] < distances[0] / 2


class TestAGradientThatIsNotFinite:
    @pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
    def test_skips_the_update_and_is_counted(self, poison: float) -> None:
        policy, batch = policy_of(), judged()
        policy.update(batch, PLAIN)
        before, moments = weights(policy), policy.optimizer.state_dict()["adamw"]["state"]
        kept = {i: {k: v.clone() for k, v in state.items()} for i, state in moments.items()}
        bad = judged()
        bad.columns["advantages"][0] = poison
        metrics = policy.update(bad, PLAIN)
        assert metrics["skipped"] == 1
        assert not math.isfinite(metrics["grad_norm"])
        assert same(weights(policy), before)
        for i, state in policy.optimizer.state_dict()["adamw"]["state"].items():
            for name, value in state.items():
                assert torch.equal(value, kept[i][name]), "nor is it remembered in the moments"

    def test_the_update_after_a_skipped_one_is_as_if_nothing_had_happened(self) -> None:
        one, other = policy_of(), policy_of()
        bad = judged()
        bad.columns["advantages"][0] = math.nan
        one.update(bad, PLAIN)
        assert one.update(judged(), PLAIN)["skipped"] == 0
        other.update(judged(), PLAIN)
        assert same(weights(one), weights(other))


class TestGoingOn:
    """State saved and loaded continues bit for bit."""

    OPTIMIZER: dict[str, Any] = {  # noqa: RUF012
        "warmup_steps": 3,
        "decay": "cosine",
        "weight_decay": 0.1,
        "max_grad_norm": 0.5,
    }

    def test_a_restored_policy_updates_as_if_it_had_never_stopped(self) -> None:
        straight = policy_of(**self.OPTIMIZER)
        for seed in range(6):
            last = straight.update(judged(seed), PLAIN)
        first = policy_of(**self.OPTIMIZER)
        for seed in range(3):
            first.update(judged(seed), PLAIN)
        buffer = io.BytesIO()
        torch.save(first.state_dict(), buffer)
        buffer.seek(0)
        second = policy_of(**self.OPTIMIZER)
        with torch.no_grad():
            for parameter in second.decoder.parameters():
                parameter.zero_()
        second.load_state_dict(torch.load(buffer, weights_only=True))
        for seed in range(3, 6):
            metrics = second.update(judged(seed), PLAIN)
        assert metrics == last
        assert same(weights(second), weights(straight))

    def test_loading_writes_into_the_tensors_that_the_engine_shares(self) -> None:
        policy = policy_of()
        places = [parameter.data_ptr() for parameter in policy.decoder.parameters()]
        policy.load_state_dict(policy_of(lr=0.5).state_dict())
        assert [parameter.data_ptr() for parameter in policy.decoder.parameters()] == places


class TestMinibatches:
    @pytest.mark.parametrize("count", [1, 2, 3, 8])
    def test_hold_every_attempt_once(self, count: int) -> None:
        batch = tiny.batch(8)
        batch.group = [str(i) for i in range(8)]
        parts = list(minibatches(batch, count, seed=0, step=1, epoch=0))
        assert len(parts) == count
        assert sorted(name for part in parts for name in part.group) == sorted(batch.group)
        assert max(map(len, parts)) - min(map(len, parts)) <= 1

    def test_are_the_same_again_and_others_in_another_epoch(self) -> None:
        batch = tiny.batch(8)
        batch.group = [str(i) for i in range(8)]

        def order(step: int, epoch: int) -> list[list[str]]:
            return [part.group for part in minibatches(batch, 2, seed=0, step=step, epoch=epoch)]

        assert order(1, 0) == order(1, 0)
        assert order(1, 0) != order(1, 1)
        assert order(1, 0) != order(2, 0)

    def test_are_fewer_where_there_are_fewer_attempts(self) -> None:
        assert len(list(minibatches(tiny.batch(2), 5, seed=0, step=1, epoch=0))) == 2
