"""How many tokens a pass takes: as asked, or as memory has room for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tiny
import torch

from toolwright.config import schema
from toolwright.failures import UserError
from toolwright.learner import budget
from toolwright.learner.critic import Critic
from toolwright.learner.objective import Objective
from toolwright.learner.policy import Policy


def policy_of(micro_tokens: int | None) -> Policy:
    return Policy(
        tiny.decoder(),
        schema.OptimizerConfig(lr=0.01),
        total_updates=10,
        temperature=1.0,
        micro_tokens=micro_tokens,
        dtype=torch.float32,
    )


def test_what_is_asked_for_is_taken_and_a_cpu_has_a_number_of_its_own() -> None:
    assert policy_of(123).budget.tokens == 123
    assert policy_of(None).budget.tokens == budget.ON_A_CPU


def test_a_larger_model_leaves_more_behind() -> None:
    small, large = tiny.shape(), tiny.shape(layers=4)
    assert budget.token_bytes(small) < budget.token_bytes(large) < 2.1 * budget.token_bytes(small)


def test_a_pass_that_memory_has_no_room_for_is_done_in_smaller_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """And gives the gradient that it would have given."""
    plain, cramped = policy_of(100_000), policy_of(100_000)
    batch, objective = tiny.batch(8), Objective(schema.Algorithm(), norm_tokens=16)
    batch.columns["advantages"] = torch.randn(len(batch.actions), generator=torch.Generator().manual_seed(0))
    inner, most = cramped._update, max(batch.lengths)

    def update(*given: object) -> dict[str, float]:
        found = inner(*given)  # type: ignore[arg-type]
        if cramped.budget.tokens > 2 * most:
            raise torch.OutOfMemoryError
        return found

    before = {name: p.clone() for name, p in cramped.decoder.named_parameters()}
    monkeypatch.setattr(cramped.optimizer.inner, "step", lambda lr, moves: None)
    monkeypatch.setattr(cramped, "_update", update)
    monkeypatch.setattr(plain.optimizer.inner, "step", lambda lr, moves: None)
    wanted, found = plain.update(batch, objective), cramped.update(batch, objective)
    assert most < cramped.budget.tokens <= 2 * most
    assert found["grad_norm"] == pytest.approx(wanted["grad_norm"], rel=1e-5)
    assert found["loss"] == pytest.approx(wanted["loss"], rel=1e-5)
    assert all(torch.equal(before[name], p) for name, p in cramped.decoder.named_parameters())
    cramped.budget.tokens = most
    monkeypatch.setattr(cramped, "_update", no_room)
    with pytest.raises(UserError, match=rf"no memory .* one sequence of {most} tokens; set model\.grad"):
        cramped.update(batch, objective)


def no_room(*_: object) -> dict[str, float]:
    raise torch.OutOfMemoryError


CUBLAS = RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")


def test_an_error_that_is_not_about_memory_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, batch = policy_of(None), tiny.batch(2)

    def broken(*_: object) -> None:
        raise RuntimeError("sizes differ")

    monkeypatch.setattr(policy.decoder, "forward", broken)
    with pytest.raises(RuntimeError, match="sizes differ"):
        policy.statistics(batch)
    assert policy.budget.tokens == budget.ON_A_CPU


@pytest.mark.parametrize("error", [torch.OutOfMemoryError(), CUBLAS], ids=["torch", "cublas"])
@pytest.mark.parametrize("kind", ["statistics", "policy", "values", "critic"])
def test_every_pass_is_divided_wherever_memory_ends(
    kind: str, error: RuntimeError, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second part is where memory ends, so that the first has left something behind."""
    batch = tiny.batch(8)
    asked = 2 * max(batch.lengths)
    made = Critic(
        tiny.decoder(),
        schema.OptimizerConfig(lr=0.01),
        total_updates=10,
        micro_tokens=asked,
        clip=1.0,
        dtype=torch.float32,
    )
    policy, objective = policy_of(asked), Objective(schema.Algorithm(), norm_tokens=16)
    asks: dict[str, Callable[[], object]] = {
        "statistics": lambda: policy.statistics(batch)["log_prob"].tolist(),
        "policy": lambda: policy.update(batch, objective),
        "values": lambda: made.values(batch).tolist(),
        "critic": lambda: made.update(batch),
    }
    for one in (policy, made):
        monkeypatch.setattr(one.optimizer.inner, "step", lambda lr, moves: None)
    wanted, passes = asks[kind](), 0
    owner: Policy | Critic = policy if kind in ("statistics", "policy") else made
    model = policy.decoder if owner is policy else made.model.body
    forward = model.forward

    def second_fails(*given: Any) -> Any:
        nonlocal passes
        passes += 1
        if passes == 2:
            raise error
        return forward(*given)

    monkeypatch.setattr(model, "forward", second_fails)
    assert asks[kind]() == pytest.approx(wanted, rel=1e-5)
    assert passes > 4
    assert owner.budget.tokens == asked // 2
