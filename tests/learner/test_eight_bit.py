"""Moments in eight bits, weights in bfloat16: rounded without bias, learning as in float32, resumed alike."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import tiny
import torch
from torch import Tensor, nn

from toolwright.config import schema
from toolwright.learner import eight_bit
from toolwright.learner.objective import Objective
from toolwright.learner.optimizer import Optimizer
from toolwright.learner.policy import Policy
from toolwright.models.decoder import Decoder
from toolwright.models.loose import hashed, noise

FORMATS = pytest.mark.parametrize("mantissa", [eight_bit.SIGNED, eight_bit.UNSIGNED])
CPU = torch.device("cpu")


def bits(count: int, seed: int) -> Tensor:
    return noise(0, count, seed=hashed(seed), device=CPU)


class TestTheFormat:
    @FORMATS
    def test_every_code_stands_for_a_larger_number_and_back(self, mantissa: int) -> None:
        codes = torch.arange(1 << 4 + mantissa, dtype=torch.int32)
        numbers = eight_bit.decoded(codes, mantissa)
        assert (numbers.diff() > 0).all()
        assert numbers[0] == 0
        assert numbers[-1] == eight_bit.top(mantissa)
        for chance in (0, -1):  # no noise, and the most there can be
            assert torch.equal(eight_bit.encoded(numbers, mantissa, torch.full_like(codes, chance)), codes)

    @FORMATS
    def test_a_number_goes_to_one_of_its_neighbours_and_on_average_to_itself(self, mantissa: int) -> None:
        numbers = torch.linspace(0, eight_bit.top(mantissa), 301).pow(3) / eight_bit.top(mantissa) ** 2
        known = eight_bit.decoded(torch.arange(1 << 4 + mantissa, dtype=torch.int32), mantissa)
        above = known[torch.searchsorted(known, numbers).clamp(max=len(known) - 1)]
        below = known[(torch.searchsorted(known, numbers, right=True) - 1).clamp(min=0)]
        total, rounds = torch.zeros_like(numbers), 2000
        for seed in range(rounds):
            found = eight_bit.decoded(
                eight_bit.encoded(numbers, mantissa, bits(len(numbers), seed)), mantissa
            )
            assert ((found == above) | (found == below)).all()
            total += found
        spread = (above - below).clamp(min=1e-12)
        # The mean of so many draws is within five standard deviations of what is expected.
        assert float(((total / rounds - numbers) / spread).abs().max()) < 5 * 0.5 / rounds**0.5

    def test_a_weight_in_bfloat16_moves_by_what_it_should_on_average(self) -> None:
        weight = torch.full((4096,), 1.0)
        wanted, step = 1.0, 2.0**-13  # a 32nd of the distance to the next number above 1
        total = 0.0
        for seed in range(200):
            moved = eight_bit.rounded(weight + step, bits(len(weight), seed)).float()
            assert set(moved.tolist()) <= {1.0, 1.0 + 2.0**-7}
            total += float(moved.double().mean())
        assert total / 200 - wanted == pytest.approx(step, rel=0.03)

    def test_numbers_that_are_not_finite_stay_so(self) -> None:
        odd = torch.tensor([float("inf"), -float("inf"), float("nan")])
        found = eight_bit.rounded(odd, torch.full((3,), -1, dtype=torch.int32))
        assert torch.equal(found.isnan(), odd.isnan())
        assert torch.equal(found[:2].float(), odd[:2])


def stepped(parameter: Tensor, gradients: list[Tensor], *, packs: bool) -> tuple[nn.Parameter, Optimizer]:
    holder = nn.Module()
    holder.weight = nn.Parameter(parameter.clone())
    config = schema.OptimizerConfig(lr=0.01, weight_decay=0.1, betas=(0.9, 0.99), max_grad_norm=1e9)
    optimizer = Optimizer(holder, config, total_updates=1000, packs=packs)
    for gradient in gradients:
        holder.weight.grad = gradient.to(parameter.dtype)
        optimizer.step()
    return holder.weight, optimizer


class TestAnUpdate:
    def test_the_first_is_that_of_float32_to_rounding(self) -> None:
        """Moments are rounded when they are stored, not before they are used."""
        start, gradient = torch.randn(2, 24, 300, generator=torch.Generator().manual_seed(0))
        plain, _ = stepped(start, [gradient], packs=False)
        packed, _ = stepped(start, [gradient], packs=True)
        torch.testing.assert_close(packed, plain, rtol=1e-6, atol=1e-6)

    def test_sixty_updates_stay_close_to_those_of_float32(self) -> None:
        generator = torch.Generator().manual_seed(0)
        start = torch.randn(24, 300, generator=generator)
        pull = torch.randn(24, 300, generator=generator)
        gradients = [pull + torch.randn(24, 300, generator=generator) for _ in range(60)]
        plain, _ = stepped(start, gradients, packs=False)
        packed, _ = stepped(start, gradients, packs=True)
        way, other = (plain - start).flatten().detach(), (packed - start).flatten().detach()
        assert float(torch.cosine_similarity(way, other, dim=0)) > 0.995
        assert float(other.norm() / way.norm()) == pytest.approx(1, abs=0.02)

    def test_a_second_moment_falls_although_its_steps_are_small(self) -> None:
        """β₂ = 0.99 takes 0.5 % from a root whose neighbour is 3 % away: to the nearest it would stay."""
        start = torch.zeros(16, 256)
        gradients = [torch.ones(16, 256), *[torch.full((16, 256), 1e-6)] * 200]
        _, optimizer = stepped(start, gradients, packs=True)
        (state,) = optimizer.inner.state.values()
        root = eight_bit._unpacked(state["root_avg_sq"], state["root_avg_sq_scale"], eight_bit.UNSIGNED)
        assert float(root.square().mean()) == pytest.approx(0.01 * 0.99**200, rel=0.1)

    def test_a_tiny_gradient_beside_a_large_one_moves_by_no_more_than_the_rate(self) -> None:
        start = torch.zeros(16, 256)
        gradient = torch.full((16, 256), 1e-9)
        gradient[:, 0] = 1.0
        found, _ = stepped(start, [gradient] * 20, packs=True)
        assert float(found.detach().abs().max()) < 20 * 0.01 * 3

    def test_small_and_narrow_ones_stay_in_float32(self) -> None:
        layer = nn.Linear(64, 80)  # 5,120 numbers, and a bias
        small = nn.Linear(8, 8)
        both = nn.ModuleList([layer, small])
        optimizer = Optimizer(both, schema.OptimizerConfig(), total_updates=1, packs=True)
        for parameter in both.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        kinds = {name: "exp_avg_scale" in optimizer.inner.state[p] for name, p in both.named_parameters()}
        assert kinds == {"0.weight": True, "0.bias": False, "1.weight": False, "1.bias": False}

    def test_its_state_takes_a_quarter_of_the_memory(self) -> None:
        found = [
            sum(t.numel() * t.element_size() for t in stepped_state(packs).values())
            for packs in (False, True)
        ]
        assert found[1] < 0.26 * found[0]

    def test_a_gradient_in_bfloat16_is_measured_in_float32(self) -> None:
        weight = torch.zeros(64, 128, dtype=torch.bfloat16)
        holder = nn.Module()
        holder.weight = nn.Parameter(weight)
        optimizer = Optimizer(holder, schema.OptimizerConfig(), total_updates=1)
        holder.weight.grad = torch.full_like(weight, 0.1)
        wanted = float(holder.weight.grad.float().norm())
        assert optimizer.step()["grad_norm"] == pytest.approx(wanted, rel=1e-5)


def stepped_state(packs: bool) -> dict[str, Tensor]:
    _, optimizer = stepped(torch.zeros(64, 1024), [torch.ones(64, 1024)], packs=packs)
    (state,) = optimizer.inner.state.values()
    return state


def policy_of(decoder: Decoder, dtype: torch.dtype, *, packs: bool, lr: float = 3e-3) -> Policy:
    return Policy(
        decoder,
        schema.OptimizerConfig(lr=lr),
        total_updates=100,
        temperature=1.0,
        micro_tokens=5000,
        dtype=dtype,
        packs=packs,
    )


def wide(stored: Any = "float32") -> Decoder:
    """Matrices that are large enough for eight bits."""
    made = tiny.decoder(width=64, heads=4, head_dim=16, ffn=96)
    if stored == "float32":
        return made
    other = Decoder(made.shape, stored=stored)
    other.load_state_dict(made.state_dict())
    return other


def learn(policy: Policy, updates: int = 30) -> None:
    batch = tiny.batch(16)
    batch.columns["old_log_prob"] = policy.statistics(batch)["log_prob"]
    batch.columns["advantages"] = torch.ones(len(batch.actions))
    objective = Objective(schema.Algorithm(loss="reinforce"), norm_tokens=16)
    for _ in range(updates):
        policy.update(batch, objective)


def likelihood(policy: Policy) -> float:
    return float(policy.statistics(tiny.batch(16))["log_prob"].mean())


class TestARun:
    def test_reaches_what_float32_reaches(self) -> None:
        """Thirty updates that make the same actions likelier, in every way to keep weights and moments."""
        ways = {
            "float32": policy_of(wide(), torch.float32, packs=False),
            "8 bit": policy_of(wide(), torch.float32, packs=True),
            "bfloat16 products": policy_of(wide(), torch.bfloat16, packs=False),
            "bfloat16 weights": policy_of(wide("bfloat16"), torch.bfloat16, packs=True),
        }
        start = likelihood(ways["float32"])
        reached = {}
        for name, policy in ways.items():
            learn(policy)
            reached[name] = likelihood(policy) - start
        assert reached["float32"] > 0.5
        assert reached["8 bit"] == pytest.approx(reached["float32"], rel=0.05)
        assert reached["bfloat16 weights"] == pytest.approx(reached["bfloat16 products"], rel=0.1)

    def test_small_updates_of_weights_in_bfloat16_are_not_lost(self) -> None:
        """A rate at which the nearest number is always the one that a weight is at."""
        ways = [
            policy_of(wide(), torch.bfloat16, packs=False, lr=2e-5),
            policy_of(wide("bfloat16"), torch.bfloat16, packs=True, lr=2e-5),
        ]
        gained = []
        for policy in ways:
            before = likelihood(policy)
            learn(policy, 20)
            gained.append(likelihood(policy) - before)
        assert gained[1] == pytest.approx(gained[0], rel=0.35)

    @pytest.mark.parametrize("stored", ["float32", "bfloat16"])
    def test_goes_on_from_a_checkpoint_as_if_nothing_had_happened(self, stored: str) -> None:
        dtype = torch.float32 if stored == "float32" else torch.bfloat16
        unbroken = policy_of(wide(stored), dtype, packs=True)
        learn(unbroken, 3)
        saved = copy.deepcopy(unbroken.state_dict())
        resumed = policy_of(wide(stored), dtype, packs=True)
        resumed.load_state_dict(saved)
        for policy in (unbroken, resumed):
            learn(policy, 2)
        mine, theirs = (policy.decoder.state_dict() for policy in (resumed, unbroken))
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)
        moments = [policy.optimizer.state_dict()["adamw"]["state"] for policy in (resumed, unbroken)]
        for name, state in moments[0].items():
            assert all(torch.equal(value, moments[1][name][key]) for key, value in state.items()), name
