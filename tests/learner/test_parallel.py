"""Ranks that divide sequences, a pass's tokens or matrices among themselves compute what one process does."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
import transformers
from ranks import Ranks
from torch import Tensor

from toolwright.config import schema
from toolwright.config.places import RankLayout
from toolwright.failures import UserError
from toolwright.learner import checkpoints, sharded_checkpoints
from toolwright.learner.optimizer import Optimizer
from toolwright.learner.ranks import ALONE
from toolwright.learner.sharded_checkpoints import Saver
from toolwright.learner.sharding import RankGroup
from toolwright.models import adapter_folder, huggingface, lora, own_forward
from toolwright.models.decoder import Decoder
from toolwright.trainer.learning import Learner
from toolwright.trajectory import Trajectory

STEPS = 2
ALGORITHMS: dict[str, dict[str, Any]] = {
    "grpo": {"adv_estimator": "grpo", "entropy_coef": 0.01, "kl": {"where": "loss", "coef": 0.1}},
    "gspo": {"adv_estimator": "grpo", "loss": "gspo", "kl": {"where": "none"}},
    "ppo": {"adv_estimator": "gae", "lam": 0.9, "kl": {"where": "reward", "coef": 0.05}},
    "otb": {"adv_estimator": "optimal_token_baseline", "kl": {"where": "none"}},  # asks for Σ π²
    "selective": {
        "loss": "clip_cov",
        "top_entropy_fraction": 0.7,
        "params": {"clip_cov": {"clip_cov_ratio": 0.3, "clip_cov_lb": 0.05, "clip_cov_ub": 50.0}},
    },
}
NORMED: dict[str, Any] = {"kv_heads": 2, "qk_norm": True, "family": "qwen3"}
UNTIED: dict[str, Any] = {"heads": 8, "kv_heads": 2, "tied": False, "vocab": 23}
LAYOUTS = {
    "sequence": RankLayout(sequence=2),
    "tensor": RankLayout(tensor=2),
    "data and sequence": RankLayout(data=2, sequence=2),
    "data and tensor": RankLayout(data=2, tensor=2),
    "sequence and tensor": RankLayout(sequence=2, tensor=2),
    "four of a sequence": RankLayout(sequence=4),
}


def config_of(algorithm: str, **model: Any) -> schema.Config:
    return schema.Config.model_validate(
        {
            "algorithm": ALGORITHMS[algorithm],
            "update": {"minibatches": 2, "micro_tokens": 60, "policy": {"lr": 1e-3}, "critic": {"lr": 1e-3}},
            "model": model,
            "rollout": {"max_tokens": 32},
        }
    )


def learner_of(
    algorithm: str,
    shape: dict[str, Any],
    ranks: Any = ALONE,
    *,
    rank: int = 0,
    used: bool = False,
    **model: Any,
) -> Learner:
    """With an adapter of this rank; one that was `used` adds something from the beginning."""
    config = config_of(algorithm, **model)
    decoder = tiny.decoder(**shape).recomputing(config.model.gradient_checkpointing)
    if rank:
        lora.attach(decoder, lora.Adapter(rank, 4.0, 2.0), lora.matched(decoder, "all-linear"), seed=1)
    if used:
        generator = torch.Generator().manual_seed(2)
        with torch.no_grad():
            for b in (b for _, low in lora.parts(decoder) for b in low.b):
                b.normal_(0, 0.1, generator=generator)
    return Learner(config, decoder, max_turns=3, ranks=ranks)


def attempts(step: int, count: int = 9) -> list[Trajectory]:
    made = tiny.conversations(count, seed=step, longest=50)
    for trajectory in made:
        trajectory.reward = random.Random(f"{step}{trajectory.tokens}").random()
    return made


def learn(learner: Learner, steps: range, count: int = 9) -> list[dict[str, float]]:
    return [learner.learn(attempts(step, count), step, exact=False, baselines={})[0] for step in steps]


def remember_gradients(optimizer: Optimizer) -> list[dict[str, Tensor]]:
    """Every update's, whole, before it is clipped."""
    seen: list[dict[str, Tensor]] = []
    step = optimizer.step

    def remembering() -> dict[str, float]:
        gradients = {name: p.grad for name, p in optimizer.named if p.grad is not None}
        saved = optimizer.ranks.saved(optimizer.module, gradients)
        whole = {name: g.full_tensor() if hasattr(g, "full_tensor") else g for name, g in saved.items()}
        seen.append({name: gradient.clone() for name, gradient in whole.items()})
        return step()

    optimizer.step = remembering  # type: ignore[method-assign]
    return seen


def all_of_it(ranks: Any, algorithm: str, shape: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    learner = learner_of(algorithm, shape, ranks, **settings)
    gradients = remember_gradients(learner.policy.optimizer)
    of_critic = remember_gradients(learner.critic.optimizer) if learner.critic else []
    metrics = learn(learner, range(1, STEPS + 1))
    return {"metrics": metrics, "gradients": gradients + of_critic, "weights": learner.policy.weights()}


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    made = Ranks(4)
    yield made
    made.close()


def assert_near(found: dict[str, Tensor], wanted: dict[str, Tensor], most: float = 1e-5) -> None:
    """Of the largest number where that is above 1."""
    assert found.keys() == wanted.keys()
    largest = max(float(tensor.abs().max()) for tensor in wanted.values())
    distance = max(float((found[name] - wanted[name]).abs().max()) for name in wanted)
    assert distance <= most * max(1.0, largest)


def assert_as_alone(
    ranks: Ranks, layout: RankLayout, algorithm: str, shape: dict[str, Any], **settings: Any
) -> None:
    alone = all_of_it(ALONE, algorithm, shape, settings)
    first, *others = ranks(layout.size, all_of_it, algorithm, shape, settings, layout=layout)
    assert all(other["metrics"] == first["metrics"] for other in others)
    for found, wanted in zip(first["metrics"], alone["metrics"], strict=True):
        assert found == pytest.approx(wanted, abs=1e-5, rel=1e-5)
    for found, wanted in zip(first["gradients"], alone["gradients"], strict=True):
        assert_near(found, wanted)
    assert_near(first["weights"], alone["weights"])
    assert [other["weights"] for other in others] == [{}] * len(others)


@pytest.mark.parametrize(
    ("layout", "rank"),
    [
        *((layout, 0) for layout in LAYOUTS),
        ("data and tensor", 3),
        *(
            pytest.param(layout, 3, marks=pytest.mark.slow)
            for layout in LAYOUTS
            if layout != "data and tensor"
        ),
    ],
)
def test_losses_gradients_and_weights_are_those_of_one_process(ranks: Ranks, layout: str, rank: int) -> None:
    assert_as_alone(ranks, LAYOUTS[layout], "grpo", NORMED, rank=rank)


@pytest.mark.parametrize(
    ("layout", "algorithm"),
    [
        ("sequence", "gspo"),
        ("tensor", "ppo"),
        *(
            pytest.param(layout, algorithm, marks=pytest.mark.slow)
            for layout, algorithms in {
                "sequence": ["ppo", "otb", "selective"],
                "tensor": ["gspo", "otb", "selective"],
            }.items()
            for algorithm in algorithms
        ),
    ],
)
def test_parallel_passes_agree_for_every_algorithm(ranks: Ranks, layout: str, algorithm: str) -> None:
    assert_as_alone(ranks, LAYOUTS[layout], algorithm, UNTIED)


def test_an_adapter_over_ranks_of_data_alone_is_that_of_one_process(ranks: Ranks) -> None:
    assert_as_alone(ranks, RankLayout(data=2), "grpo", NORMED, rank=3, used=True)
    assert_as_alone(ranks, RankLayout(data=3), "ppo", UNTIED, rank=2)


def on_a_short_base(ranks: Any) -> dict[str, Any]:
    decoder = Decoder(tiny.shape(**NORMED), stored="bfloat16")
    decoder.load_state_dict(tiny.decoder(**NORMED).state_dict())
    lora.attach(decoder, lora.Adapter(3, 4.0, 2.0), lora.matched(decoder, "all-linear"), seed=1)
    learner = Learner(config_of("grpo"), decoder, max_turns=3, ranks=ranks)
    return {"metrics": learn(learner, range(1, STEPS + 1)), "weights": learner.policy.weights()}


@pytest.mark.parametrize("layout", [RankLayout(data=2), RankLayout(sequence=2)], ids=str)
def test_the_base_of_an_adapter_may_be_kept_in_bfloat16(ranks: Ranks, layout: RankLayout) -> None:
    alone, found = on_a_short_base(ALONE), ranks(2, on_a_short_base, layout=layout)[0]
    assert found["metrics"][-1] == pytest.approx(alone["metrics"][-1], abs=1e-5, rel=1e-5)
    assert_near(found["weights"], alone["weights"])


def refused_base(group: RankGroup) -> str:
    with pytest.raises(UserError) as said:
        on_a_short_base(group)
    return str(said.value)


def test_a_bfloat16_base_is_refused_with_tensor_parallelism(ranks: Ranks) -> None:
    assert all(
        "weights kept in bfloat16" in said for said in ranks(2, refused_base, layout=RankLayout(tensor=2))
    )


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["data and sequence", "data and tensor"])
def test_a_reference_that_is_the_adapter_of_the_beginning_is_that_of_one_process(
    ranks: Ranks, layout: str
) -> None:
    assert_as_alone(ranks, LAYOUTS[layout], "grpo", UNTIED, rank=3, used=True)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["sequence", "tensor"])
def test_recomputing_changes_nothing(ranks: Ranks, layout: str) -> None:
    assert_as_alone(ranks, LAYOUTS[layout], "grpo", NORMED, gradient_checkpointing=True)


def with_biases(ranks: Any) -> list[dict[str, Tensor]]:
    """Gradients alone: that of a key's bias is rounding, which Adam makes as large as any other."""
    learner = learner_of("grpo", {**tiny.SHAPES["biased"]}, ranks)
    gradients = remember_gradients(learner.policy.optimizer)
    learn(learner, range(1, 2))
    return gradients[:1]


def test_biases_are_divided_with_their_matrix(ranks: Ranks) -> None:
    alone, found = with_biases(ALONE)[0], ranks(2, with_biases, layout=RankLayout(tensor=2))[0][0]
    assert_near(found, alone)


def few_tokens(ranks: Any) -> list[dict[str, float]]:
    """A pass of fewer tokens than ranks."""
    learner = learner_of("gspo", NORMED, ranks)
    made = [tiny.trajectory([("prompt", [3]), ("policy", [4, 5])]) for _ in range(2)]
    made[0].reward, made[1].reward = 0.0, 1.0
    return [learner.learn(made, 1, exact=False, baselines={})[0]]


def test_a_rank_may_have_no_token_of_a_pass(ranks: Ranks) -> None:
    found = ranks(4, few_tokens, layout=RankLayout(sequence=4))[0]
    assert found[0] == pytest.approx(few_tokens(ALONE)[0], abs=1e-5, rel=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:this machine reports AMX")
@pytest.mark.parametrize("layout", ["sequence", "tensor"])
@pytest.mark.parametrize("rank", [0, 3], ids=["", "adapter"])
def test_half_precision_is_as_near_as_it_is_in_one_process(ranks: Ranks, layout: str, rank: int) -> None:
    settings = {"rank": rank, "dtype": "bfloat16"}
    alone = all_of_it(ALONE, "grpo", NORMED, settings)["metrics"]
    found = ranks(2, all_of_it, "grpo", NORMED, settings, layout=LAYOUTS[layout])[0]["metrics"]
    for one, other in zip(found, alone, strict=True):
        assert one["policy/loss"] == pytest.approx(other["policy/loss"], abs=0.05)
        assert one["policy/entropy"] == pytest.approx(other["policy/entropy"], rel=0.02)


def saved(group: RankGroup, folder: Path, settings: dict[str, Any]) -> list[dict[str, float]]:
    """Writes a checkpoint after the first step, and the model after the second; the metrics of that."""
    learner, saver = learner_of("grpo", NORMED, group, **settings), Saver(group)
    learn(learner, range(1, 2))
    plain, tensors = learner.state()
    saver.save(folder, 1, plain, tensors, keep=1)
    saver.close()
    metrics = learn(learner, range(2, 3))
    learner.policy.export(folder / "model")
    return metrics


def gone_on(group: RankGroup, path: Path, settings: dict[str, Any]) -> list[dict[str, float]]:
    learner = learner_of("grpo", NORMED, group, **settings)
    sharded_checkpoints.restore(path, learner, group)
    return learn(learner, range(2, 3))


ADAPTER = {"rank": 3, "used": True}


class TestACheckpoint:
    @pytest.mark.parametrize(
        "layout", [pytest.param("data and sequence", marks=pytest.mark.slow), "sequence and tensor"]
    )
    @pytest.mark.parametrize("settings", [{}, ADAPTER], ids=["", "adapter"])
    def test_is_that_of_one_process_and_goes_on_however_ranks_divide_the_work(
        self, ranks: Ranks, layout: str, settings: dict[str, Any], tmp_path: Path
    ) -> None:
        metrics = ranks(4, saved, tmp_path, settings, layout=LAYOUTS[layout])[0]
        plain, tensors = checkpoints.load(tmp_path / "step_1")
        alone = learner_of("grpo", NORMED, **settings)
        learn(alone, range(1, 2))
        state = alone.state()[1]
        assert tensors.keys() == state.keys()
        assert_near(tensors["policy"]["model"], state["policy"]["model"])
        assert_near(tensors["reference"]["model"], state["reference"]["model"])
        mine, theirs = (tree["policy"]["optimizer"]["adamw"]["state"] for tree in (state, tensors))
        for moment in ("exp_avg", "exp_avg_sq", "step"):
            assert_near({n: m[moment] for n, m in theirs.items()}, {n: m[moment] for n, m in mine.items()})
        other = learner_of("grpo", NORMED, **settings)
        other.restore(plain, tensors)
        for now in (
            learn(other, range(2, 3)),
            ranks(2, gone_on, tmp_path / "step_1", settings)[0],
            ranks(2, gone_on, tmp_path / "step_1", settings, layout=RankLayout(tensor=2))[0],
        ):
            assert now[0] == pytest.approx(metrics[0], abs=1e-5, rel=1e-5)

    def test_of_one_process_goes_on_over_ranks_that_divide_matrices(
        self, ranks: Ranks, tmp_path: Path
    ) -> None:
        learner = learner_of("grpo", NORMED)
        learn(learner, range(1, 2))
        plain, tensors = learner.state()
        path = checkpoints.save(tmp_path, 1, plain, tensors, keep=1)
        found = ranks(4, gone_on, path, {}, layout=LAYOUTS["data and tensor"])[0]
        assert found[0] == pytest.approx(learn(learner, range(2, 3))[0], abs=1e-5, rel=1e-5)

    @pytest.mark.parametrize("settings", [{}, ADAPTER], ids=["", "adapter"])
    def test_the_model_beside_it_is_whole(
        self, ranks: Ranks, settings: dict[str, Any], tmp_path: Path
    ) -> None:
        ranks(2, saved, tmp_path, settings, layout=RankLayout(tensor=2))
        alone = learner_of("grpo", NORMED, **settings)
        learn(alone, range(1, 3))
        if settings:
            base = tmp_path / "base"
            huggingface.save(tiny.decoder(**NORMED), base)
            found = huggingface.load(base)
            adapter_folder.load(found, tmp_path / "model", base=base)
        else:
            found = huggingface.load(tmp_path / "model")
        assert_near(found.learned_state(), alone.policy.decoder.learned_state())


def refusal(group: RankGroup, shape: dict[str, Any]) -> str:
    with pytest.raises(UserError) as said:
        learner_of("grpo", shape, group)
    return str(said.value)


@pytest.mark.parametrize(
    ("layout", "shape", "reason"),
    [
        (RankLayout(tensor=4), {"kv_heads": 2}, "does not divide the model's key-value heads"),
        (RankLayout(sequence=3), {}, "does not go with heads=4 and kv_heads=4 on a rank"),
    ],
)
def test_a_layout_that_does_not_go_with_the_model_is_refused(
    ranks: Ranks, layout: RankLayout, shape: dict[str, Any], reason: str
) -> None:
    assert all(reason in said for said in ranks(layout.size, refusal, shape, layout=layout))


OTHERS: dict[str, dict[str, Any]] = {
    "GPT2": {"n_embd": 32, "n_positions": 64},
    "Bloom": {"hidden_size": 32},
}


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models that run by their own forward."""
    folder = tmp_path_factory.mktemp("others")
    for kind, settings in OTHERS.items():
        config = getattr(transformers, f"{kind}Config")(vocab_size=40, n_layer=2, n_head=4, **settings)
        torch.manual_seed(0)
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder / kind)
    return folder


def by_its_own_forward(ranks: Any, folder: Path) -> list[dict[str, float]]:
    learner = Learner(config_of("gspo"), own_forward.load(folder), max_turns=3, ranks=ranks)
    return learn(learner, range(1, STEPS + 1))


def test_a_model_with_a_forward_of_its_own_has_its_tokens_divided(ranks: Ranks, others: Path) -> None:
    alone = by_its_own_forward(ALONE, others / "GPT2")
    found = ranks(2, by_its_own_forward, others / "GPT2", layout=RankLayout(sequence=2))[0]
    for one, other in zip(found, alone, strict=True):
        assert one == pytest.approx(other, abs=1e-5, rel=1e-5)


def refused_forward(group: RankGroup, folder: Path) -> str:
    with pytest.raises(UserError) as said:
        by_its_own_forward(group, folder)
    return str(said.value)


@pytest.mark.parametrize(
    ("layout", "kind", "reason"),
    [
        (RankLayout(tensor=2), "GPT2", "cannot be divided by tensors"),
        (RankLayout(sequence=2), "Bloom", "needs whole sequences"),
    ],
)
def test_what_such_a_model_cannot_have_divided_is_refused(
    ranks: Ranks, others: Path, layout: RankLayout, kind: str, reason: str
) -> None:
    assert all(reason in said for said in ranks(2, refused_forward, others / kind, layout=layout))
