"""A learner over several ranks is the learner of one process: losses, gradients, weights, checkpoints."""

from __future__ import annotations

import math
import random
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ranks import Ranks
from torch import Tensor
from torch.distributed.checkpoint import FileSystemWriter

from toolwright.batch import partition
from toolwright.config import schema
from toolwright.failures import UserError
from toolwright.learner import checkpoints, sharded_checkpoints
from toolwright.learner.minibatches import plan, shares
from toolwright.learner.optimizer import Optimizer
from toolwright.learner.ranks import ALONE
from toolwright.learner.sharded_checkpoints import Saver
from toolwright.learner.sharding import RankGroup
from toolwright.models import huggingface
from toolwright.models.decoder import Decoder
from toolwright.trainer.learning import Learner
from toolwright.trajectory import Trajectory

STEPS = 5
ALGORITHMS: dict[str, dict[str, Any]] = {
    "grpo": {"adv_estimator": "grpo", "entropy_coef": 0.01, "kl": {"where": "loss", "coef": 0.1}},
    "ppo": {"adv_estimator": "gae", "lam": 0.9, "kl": {"where": "reward", "coef": 0.05}},
    "selective": {
        "loss": "clip_cov",
        "entropy_target": 10.0,
        "top_entropy_fraction": 0.7,
        "kl": {"where": "loss", "coef": 0.1, "estimator": "unbiased"},
        "params": {"clip_cov": {"clip_cov_ratio": 0.3, "clip_cov_lb": 0.05, "clip_cov_ub": 50.0}},
    },
    "kto": {"loss": "kto"},
    "distill": {"adv_estimator": "distill", "gamma": 0.5},  # with a teacher, which is sharded as well
}
SHAPE: dict[str, Any] = {"kv_heads": 2, "qk_norm": True, "family": "qwen3"}


def config_of(algorithm: str, teacher: Path | None = None, **model: Any) -> schema.Config:
    taught = {"params": {"distill": {"teacher": str(teacher)}}} if algorithm == "distill" else {}
    return schema.Config.model_validate(
        {
            "algorithm": {**ALGORITHMS[algorithm], **taught},
            "update": {"minibatches": 2, "micro_tokens": 60, "policy": {"lr": 1e-3}, "critic": {"lr": 1e-3}},
            "model": model,
            "rollout": {"max_tokens": 32},
        }
    )


def learner_of(algorithm: str, ranks: Any = ALONE, *, teacher: Path | None = None, **model: Any) -> Learner:
    config = config_of(algorithm, teacher, **model)
    decoder = tiny.decoder(**SHAPE).recomputing(config.model.recomputes)
    return Learner(config, decoder, max_turns=3, ranks=ranks)


def attempts(step: int) -> list[Trajectory]:
    """Of very different lengths, and in the last step of fewer sequences in a minibatch than ranks."""
    made = tiny.conversations(9 if step < STEPS else 3, seed=step, longest=50)
    for trajectory in made:
        trajectory.reward = random.Random(f"{step}{trajectory.tokens}").random()
    return made


def learn(learner: Learner, steps: range) -> list[dict[str, float]]:
    """Answers that are compared come in twos."""
    made = {step: attempts(step) for step in steps}
    whole = {step: found[: len(found) - len(found) % learner.together] for step, found in made.items()}
    return [learner.learn(found, step, exact=False, baselines={})[0] for step, found in whole.items()]


def remember_gradients(optimizer: Optimizer) -> list[dict[str, Tensor]]:
    """Every update's, whole, before it is clipped."""
    seen: list[dict[str, Tensor]] = []
    step = optimizer.step

    def remembering() -> dict[str, float]:
        gradients = [p.grad for p in optimizer.parameters if p.grad is not None]
        whole = [g.full_tensor() if hasattr(g, "full_tensor") else g for g in gradients]
        seen.append({str(number): gradient.clone() for number, gradient in enumerate(whole)})
        return step()

    optimizer.step = remembering  # type: ignore[method-assign]
    return seen


def all_of_it(ranks: Any, algorithm: str, teacher: Path) -> dict[str, Any]:
    learner = learner_of(algorithm, ranks, teacher=teacher)
    gradients = remember_gradients(learner.policy.optimizer)
    of_critic = remember_gradients(learner.critic.optimizer) if learner.critic else []
    metrics = learn(learner, range(1, STEPS + 1))
    return {"metrics": metrics, "gradients": gradients + of_critic, "weights": learner.policy.weights()}


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    made = Ranks(3)
    yield made
    made.close()


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Larger than the policy, and of other weights."""
    folder = tmp_path_factory.mktemp("teacher")
    huggingface.save(tiny.decoder(1, **SHAPE, width=48, layers=3), folder)
    tiny.characters().save(folder)
    return folder


def assert_near(found: dict[str, Tensor], wanted: dict[str, Tensor], most: float) -> None:
    """Of the largest number where that is above 1."""
    assert found.keys() == wanted.keys()
    largest = max(float(tensor.abs().max()) for tensor in wanted.values())
    distance = max(float((found[name] - wanted[name]).abs().max()) for name in wanted)
    assert distance <= most * max(1.0, largest)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("size", [2, 3])
def test_losses_and_gradients_are_those_of_one_process(
    ranks: Ranks, size: int, algorithm: str, teacher: Path
) -> None:
    alone, *others = all_of_it(ALONE, algorithm, teacher), *ranks(size, all_of_it, algorithm, teacher)
    assert all(other["metrics"] == others[0]["metrics"] for other in others)
    for found, wanted in zip(others[0]["metrics"], alone["metrics"], strict=True):
        assert found == pytest.approx(wanted, abs=1e-5, rel=1e-5)
    for found, wanted in zip(others[0]["gradients"], alone["gradients"], strict=True):
        assert_near(found, wanted, 1e-5)
    assert_near(others[0]["weights"], alone["weights"], 1e-5)
    assert [other["weights"] for other in others[1:]] == [{}] * (size - 1)


def until_saved(group: RankGroup, folder: Path) -> list[dict[str, float]]:
    """Saves after step 2, but is not let write before the weights have changed; the metrics from then on."""
    learner, saver, let = learner_of("ppo", group), Saver(group), threading.Event()
    write = FileSystemWriter.write_data

    def late(*args: Any) -> Any:
        let.wait(600)
        return write(*args)

    learn(learner, range(1, 3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FileSystemWriter, "write_data", late)
        plain, tensors = learner.state()
        saver.save(folder, 2, {**plain, "step": 2}, tensors, keep=1)
        metrics = learn(learner, range(3, STEPS + 1))
        assert checkpoints.latest(folder) is None
        let.set()
        saver.close()
    return metrics


def gone_on(group: RankGroup, path: Path) -> list[dict[str, float]]:
    learner = learner_of("ppo", group)
    assert sharded_checkpoints.restore(path, learner, group)["step"] == 2
    return learn(learner, range(3, STEPS + 1))


def refused(group: RankGroup, path: Path) -> str:
    other = Learner(config_of("ppo"), tiny.decoder(), max_turns=3, ranks=group)
    with pytest.raises(UserError) as said:
        sharded_checkpoints.restore(path, other, group)
    return str(said.value)


def assert_same(found: list[dict[str, float]], wanted: list[dict[str, float]]) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert one == pytest.approx(other, abs=1e-5, rel=1e-5)


class TestACheckpointOfTwoRanks:
    @pytest.fixture(scope="class")
    def saved(
        self, ranks: Ranks, tmp_path_factory: pytest.TempPathFactory
    ) -> tuple[Path, list[dict[str, float]]]:
        folder = tmp_path_factory.mktemp("checkpoints")
        metrics = ranks(2, until_saved, folder)[0]
        assert [path.name for path in folder.iterdir()] == ["step_2"]
        return folder / "step_2", metrics

    @pytest.mark.parametrize("size", [1, 2, 3])
    def test_goes_on_over_any_number_of_them(
        self, ranks: Ranks, saved: tuple[Path, list[dict[str, float]]], size: int
    ) -> None:
        path, wanted = saved
        assert_same(ranks(size, gone_on, path)[0], wanted)

    def test_goes_on_in_a_process_without_ranks(self, saved: tuple[Path, list[dict[str, float]]]) -> None:
        path, wanted = saved
        learner = learner_of("ppo")
        learner.restore(*checkpoints.load(path))
        assert_same(learn(learner, range(3, STEPS + 1)), wanted)

    def test_does_not_go_on_as_another_algorithm(self, saved: tuple[Path, list[dict[str, float]]]) -> None:
        other = Learner(config_of("ppo"), tiny.decoder(), max_turns=3)
        with pytest.raises(UserError, match="of another model or algorithm"):
            other.restore(*checkpoints.load(saved[0]))

    @pytest.mark.parametrize("which", [0, 1], ids=["one that a rank wrote", "where all are"])
    def test_is_known_to_be_broken_by_all_of_them(
        self, ranks: Ranks, saved: tuple[Path, list[dict[str, float]]], which: int, tmp_path: Path
    ) -> None:
        path = Path(shutil.copytree(saved[0], tmp_path / "step_2"))
        names = {0: "__1_0.distcp", 1: ".metadata"}
        listed = {f"tensors/{name}" for name in ("__0_0.distcp", *names.values())}
        assert checkpoints.checksums(path).keys() == {*listed, "state.json"}
        damaged = path / "tensors" / names[which]
        content = bytearray(damaged.read_bytes())
        content[len(content) // 2] ^= 1
        damaged.write_bytes(content)
        for said in (*ranks(2, refused, path), *ranks(1, refused, path)):
            assert said.startswith(f"checkpoint {path} cannot be read: ")
        with pytest.raises(checkpoints.BrokenCheckpoint, match="its checksum differs from the"):
            checkpoints.load(path)

    def test_a_checkpoint_of_another_model_is_refused_over_ranks(
        self, ranks: Ranks, saved: tuple[Path, list[dict[str, float]]]
    ) -> None:
        assert "of another model or algorithm" in ranks(2, refused, saved[0])[0]


def test_a_checkpoint_of_one_process_goes_on_over_ranks(ranks: Ranks, tmp_path: Path) -> None:
    learner = learner_of("ppo")
    learn(learner, range(1, 3))
    plain, tensors = learner.state()
    path = checkpoints.save(tmp_path, 2, {**plain, "step": 2}, tensors, keep=1)
    assert_same(ranks(2, gone_on, path)[0], learn(learner, range(3, STEPS + 1)))


def saves_where_it_cannot(group: RankGroup, folder: Path) -> list[str]:
    """Three checkpoints, the second without room on one rank: what it says, and which ones are there."""
    learner, saver = learner_of("grpo", group), Saver(group)
    said = []
    for step in (1, 2, 3):
        with pytest.MonkeyPatch.context() as patch:
            if step == 2 and group.rank == 1:
                patch.setattr(FileSystemWriter, "write_data", _full_disk)
            saver.save(folder, step, {"step": step}, learner.state()[1], keep=5)
            try:
                saver.wait()
            except UserError as error:
                said.append(str(error))
    saver.close()
    return [*said, *sorted(path.name for path in folder.iterdir())]


def _full_disk(*_: Any) -> None:
    raise OSError(28, "No space left on device")


def test_a_checkpoint_that_one_rank_cannot_write_is_not_there(ranks: Ranks, tmp_path: Path) -> None:
    for said, *there in ranks(2, saves_where_it_cannot, tmp_path):
        assert "No space left on device" in said
        assert f"the last whole one is {tmp_path}/step_1" in said
        assert there == ["step_1", "step_3"]


def saves_nowhere(group: RankGroup, folder: Path) -> str:
    saver = Saver(group)
    with pytest.raises(UserError) as said:
        saver.save(folder, 1, {"step": 1}, learner_of("grpo", group).state()[1], keep=1)
    saver.close()
    return str(said.value)


def test_no_rank_waits_for_a_checkpoint_that_cannot_be_begun(ranks: Ranks, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    for said in ranks(2, saves_nowhere, gone):
        assert said == f"could not write checkpoint {gone}/step_1: its folder is gone"


def stays_fresh(group: RankGroup) -> bool:
    """Whether a learner that is saved before its first update takes that as if it had not been."""
    saved, restored, neither = (learner_of("grpo", group) for _ in range(3))
    saved.state()
    restored.restore(*learner_of("grpo", group).state())
    one, *others = (learn(learner, range(1, 3)) for learner in (saved, restored, neither))
    return all(other == one for other in others)


def test_saving_before_the_first_update_changes_nothing(ranks: Ranks) -> None:
    assert ranks(2, stays_fresh) == [True, True]


def with_a_hole(group: RankGroup) -> list[list[float]]:
    """The middle one of three updates has an advantage that is no number, in one rank's sequences only."""
    learner = learner_of("grpo", group)
    found = []
    for number in range(3):
        batch = tiny.batch(6, seed=number)
        batch.columns["old_log_prob"] = learner.policy.statistics(batch)["log_prob"]
        batch.columns["ref_log_prob"] = batch.columns["old_log_prob"]
        if number == 1:
            batch.columns["advantages"][0] = math.nan
        row = learner.policy.update(batch, learner.objective)
        found.append([row["skipped"], row["lr"], row["loss"] if number != 1 else 0.0])
    return found


def test_all_ranks_skip_an_update_that_is_not_finite_on_one(ranks: Ranks) -> None:
    one, other = ranks(2, with_a_hole)
    assert one == other
    assert [skipped for skipped, *_ in one] == [0.0, 1.0, 0.0]


def exported(group: RankGroup, folder: Path) -> dict[str, Tensor]:
    learner = learner_of("grpo", group)
    learn(learner, range(1, 2))
    learner.policy.export(folder)
    return learner.policy.weights()


def test_the_first_rank_writes_the_whole_model(ranks: Ranks, tmp_path: Path) -> None:
    weights, nothing = ranks(2, exported, tmp_path)
    assert not nothing
    written = huggingface.load(tmp_path).state_dict()
    assert written.keys() == weights.keys()
    assert all(torch.equal(written[name], weights[name]) for name in weights)
    assert weights["embedding.weight"].data_ptr() == weights["unembedding.weight"].data_ptr()
    Decoder(tiny.shape(**SHAPE)).load_state_dict(weights)


def sparing(ranks: Any, dtype: str) -> list[dict[str, float]]:
    learner = learner_of("ppo", ranks, dtype=dtype, gradient_checkpointing=True)
    return learn(learner, range(1, 3))


def test_offload_and_recomputing_change_nothing(ranks: Ranks) -> None:
    found = ranks(2, sparing, "float32", offload=True)[0]
    assert_same(found, learn(learner_of("ppo"), range(1, 3)))


@pytest.mark.filterwarnings("ignore:this machine reports AMX")
def test_half_precision_is_as_near_as_it_is_in_one_process(ranks: Ranks) -> None:
    found, alone = ranks(2, sparing, "bfloat16")[0], sparing(ALONE, "bfloat16")
    for one, other in zip(found, alone, strict=True):
        assert one["policy/loss"] == pytest.approx(other["policy/loss"], abs=0.05)
        assert one["critic/loss"] == pytest.approx(other["critic/loss"], rel=0.1)
        assert one["policy/entropy"] == pytest.approx(other["policy/entropy"], rel=0.02)


def test_recomputing_gives_the_same_bits_in_one_process() -> None:
    with_it, without = learner_of("ppo", gradient_checkpointing=True), learner_of("ppo")
    assert learn(with_it, range(1, 4)) == learn(without, range(1, 4))


def test_offload_without_ranks_is_refused() -> None:
    config = config_of("grpo")
    update = config.update.model_copy(update={"optimizer_state": "host"})
    with pytest.raises(UserError, match=r"optimizer_state=host needs a learner over ranks"):
        Learner(config.model_copy(update={"update": update}), tiny.decoder(), max_turns=1)


lengths = st.lists(st.integers(1, 60), min_size=1, max_size=40)
quick = settings(max_examples=100, deadline=None, derandomize=True)


class TestShares:
    @given(lengths, st.integers(1, 8))
    @quick
    def test_everything_is_given_to_somebody_and_nearly_evenly(self, lengths: list[int], ranks: int) -> None:
        given_ = shares(lengths, ranks)
        assert sorted(row for rows in given_ for row in rows) == list(range(len(lengths)))
        loads = [sum(lengths[row] for row in rows) for rows in given_]
        assert max(loads) - min(loads) <= max(lengths)

    @given(lengths, st.integers(1, 8), st.integers(1, 200))
    @quick
    def test_every_rank_runs_as_many_micro_batches(self, lengths: list[int], ranks: int, budget: int) -> None:
        planned = plan(lengths, ranks, budget)
        assert len({len(bins) for bins in planned}) == 1
        assert sorted(row for bins in planned for rows in bins for row in rows) == list(range(len(lengths)))
        for bins in planned:
            for rows in bins:
                assert len(rows) < 2 or len(rows) * max(lengths[row] for row in rows) <= budget

    @given(lengths, st.integers(1, 200))
    @quick
    def test_one_rank_runs_what_a_process_alone_does(self, lengths: list[int], budget: int) -> None:
        assert plan(lengths, 1, budget) == [
            [sorted(rows, key=lambda row: (-lengths[row], row)) for rows in partition(lengths, budget)]
        ]
