"""The same configuration in one process and over actors: the same tokens, the same losses, the same end."""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

import pytest
import ray
import tiny

from tests.rewards.scorers_of_models import classifier
from tests.trainer import pairs
from tests.trainer.runs import as_lists, metrics, rollouts, token_values
from toolwright.models import adapter_folder, huggingface, lora
from toolwright.models.tokenizer import Tokenizer
from toolwright.trainer.loop import TrainingLoop, train
from toolwright.trainer.run_folder import RunFolder
from toolwright.trajectory import Trajectory

from .clusters import HERE, comparable, configured, walked
from .conftest import Build

pytestmark = pytest.mark.xdist_group("ray runs")

ALGORITHMS = {
    "tool-using GRPO": ["algorithm=grpo", "algorithm.kl.where=loss"],
    "PPO with critic": [
        "algorithm=ppo",
        "algorithm.loss=clip_cov",  # draws tokens at random
        "algorithm.entropy_target=3.5",
        "algorithm.top_entropy_fraction=0.7",
        "algorithm.params.clip_cov={clip_cov_ratio: 0.3, clip_cov_lb: 0.0, clip_cov_ub: 50.0}",
        "algorithm.kl.where=reward",
        "update.minibatches=2",
        "checkpoint.every=1",
        f"reward.function={HERE}/echoes.py:by_turn",
    ],
}


ROLES = {
    "tool-using GRPO": ["policy", "reference", "reward", "rollout-0"],
    "PPO with critic": ["critic", "policy", "reference", "reward", "rollout-0"],
}


def assert_apart(trainer: TrainingLoop, roles: list[str]) -> None:
    """Each an actor of its own."""
    slots = trainer.roles.pool.slots  # type: ignore[attr-defined]
    assert sorted(slots) == roles
    assert len({slot.identity.pid for slot in slots.values()}) == len(roles)
    assert all(ray.get_actor(f"{slot.run}/{name}", "toolwright") for name, slot in slots.items())


def essence(t: Trajectory) -> Any:
    return (
        t.group,
        t.index,
        t.seed,
        t.segments,
        t.reward,
        t.reward_parts,
        t.step_rewards,
        t.counts,
        t.weights_version,
    )


# PPO has GRPO's actors and the critic, and uses the same tool; GRPO's numbers are in the next test as well.
@pytest.mark.parametrize(
    "algorithm", ["PPO with critic", pytest.param("tool-using GRPO", marks=pytest.mark.slow)]
)
def test_the_same_numbers_as_in_one_process(algorithm: str, build: Build, tmp_path: Path) -> None:
    """And nothing but configurations, trajectories, tensors and metrics crosses. Over actors the cache is in
    pages, and has room for two sequences of sixteen."""
    own = [*ALGORITHMS[algorithm], "train.steps=4"]
    here = train(configured(f"run.dir={tmp_path}", "run.name=here", *own), command=["toolwright"])
    with walked():
        pages = ["engine.params.page_tokens=4", "engine.params.cache_tokens=64"]
        trainer = build(f"run.dir={tmp_path}", "run.name=there", *own, *pages)
    assert_apart(trainer, ROLES[algorithm])
    folder = RunFolder.claim(trainer.config.run, made_of=["x"])
    list(trainer.steps(folder, command=["toolwright"]))
    there = folder.path
    assert all(0 < row["use/cache"] <= 1 for row in metrics(there) if row["step"])
    for mine, theirs in zip(comparable(metrics(here)), comparable(metrics(there)), strict=True):
        assert mine.keys() == theirs.keys()
        for key, value in mine.items():
            assert theirs[key] == pytest.approx(value, abs=1e-6), (mine["step"], key)
    for step, attempts in rollouts(here).items():
        assert list(map(essence, attempts)) == list(map(essence, rollouts(there)[step]))
        assert {t.weights_version for t in attempts} == {step - 1}
        values = [list(map(as_lists, token_values(run)[step])) for run in (here, there)]
        assert values[0] == values[1]
        assert all(None not in of_attempt for of_attempt in values[0])
    assert (here / "model/model.safetensors").read_bytes() == (there / "model/model.safetensors").read_bytes()


def test_colocated_policy_and_engine_are_one_actor(build: Build) -> None:
    apart = TrainingLoop(configured())
    expected = [apart.learn(apart.sample(step), step) for step in (1, 2)]
    apart.close()
    together = build("runtime.placement.colocate=yes")
    assert_apart(together, ["policy", "reference", "reward"])
    for step, wanted in enumerate(expected, start=1):
        assert together.learn(together.sample(step), step) == pytest.approx(wanted, abs=1e-6)
    assert together.roles.rollouts.weights_version == 2


def test_compared_answers_are_learned_from_with_the_same_numbers(build: Build, tmp_path: Path) -> None:
    """Nothing is sampled, so no weights are published; a tool is offered, whose schema is asked for there."""
    data = pairs.written(tmp_path / "pairs.jsonl", pairs.rows())
    own = [
        f"run.dir={tmp_path}",
        "algorithm=dpo",
        "task.name=preferences",
        f"task.train={data}",
        "model.context=auto",
        "update.minibatches=2",
        "eval.every=2",
    ]
    here = train(configured("run.name=here", *own), command=["toolwright"])
    diary, tracker = tmp_path / "diary", f"{HERE.parent}/observe/own_trackers.py:Diary"
    with walked():
        trainer = build("run.name=there", f"trackers.diary={{path: '{tracker}', file: '{diary}'}}", *own)
    assert_apart(trainer, ["policy", "reference", "reward", "rollout-0"])
    folder = RunFolder.claim(trainer.config.run, made_of=["x"])
    list(trainer.steps(folder, command=["toolwright"]))
    assert comparable(metrics(folder.path)) == comparable(metrics(here))
    told = [json.loads(line) for line in diary.read_text().splitlines()]  # by the driver
    assert [line["step"] for line in told if "step" in line] == [row["step"] for row in metrics(folder.path)]
    assert told[-1]["end"] == "finished"
    weights = "model/model.safetensors"
    assert (folder.path / weights).read_bytes() == (here / weights).read_bytes()


def test_a_teacher_in_its_own_actor_gives_the_same_numbers(build: Build, tmp_path: Path) -> None:
    for seed, name in enumerate(("student", "teacher")):
        tokenizer = Tokenizer.characters(string.printable)
        huggingface.save(tiny.decoder(seed, vocab=tokenizer.size, context=32), tmp_path / name)
        tokenizer.save(tmp_path / name)
    own = [
        "algorithm=distill",
        f"model.path={tmp_path}/student",
        f"algorithm.params.distill.teacher={tmp_path}/teacher",
    ]
    alone = TrainingLoop(configured(*own))
    expected = [alone.learn(alone.sample(step), step) for step in (1, 2)]
    alone.close()
    trainer = build(*own)
    assert_apart(trainer, ["policy", "reward", "rollout-0", "teacher"])
    for step, wanted in enumerate(expected, start=1):
        found = trainer.learn(trainer.sample(step), step)
        assert found == pytest.approx(wanted, abs=1e-6)
        assert found["teacher/kl"] > 0.1


@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.slow), "bfloat16"])
def test_an_adapter_alone_is_sent_and_the_reference_needs_no_actor(
    dtype: str, build: Build, tmp_path: Path
) -> None:
    decoder = tiny.decoder(vocab=Tokenizer.characters(string.printable).size, context=32)
    for parameter in decoder.parameters():
        parameter.data.copy_(parameter.bfloat16())  # as the hub stores them
    huggingface.save(decoder, tmp_path)
    Tokenizer.characters(string.printable).save(tmp_path)
    lora.attach(decoder, lora.Adapter(2, 4.0, 2.0, base=str(tmp_path)), decoder.adaptable(), seed=0)
    for tensor in decoder.learned_state().values():
        tensor.add_(0.1)  # an adapter that says something
    adapter_folder.save(decoder, tmp_path / "adapter")
    varied = f"reward.function={HERE}/echoes.py:varied"  # with nothing to prefer, nothing would be learned
    own = [f"model.path={tmp_path}", f"model.lora.path={tmp_path / 'adapter'}", varied]
    own += ["algorithm.kl.where=loss", f"model.dtype={dtype}"]
    alone = TrainingLoop(configured(*own))
    expected = [alone.learn(alone.sample(step), step) for step in (1, 2, 3)]
    alone.close()
    trainer = build(*own)
    slots = trainer.roles.pool.slots  # type: ignore[attr-defined]
    assert sorted(slots) == ["policy", "reward", "rollout-0"]
    steps = [trainer.learn(trainer.sample(step), step) for step in (1, 2, 3)]
    for found, wanted in zip(steps, expected, strict=True):
        assert found == pytest.approx(wanted, abs=1e-6)
        near = 1e-5 if dtype == "float32" else 0.05  # what rounding costs there
        assert found["gap/abs_max"] <= near, "what was published is what the learner has"
    drift = [found["reference/kl"] for found in steps]  # each before its step's update
    assert drift[0] == pytest.approx(0, abs=1e-7), "the reference is the adapter as it began"
    assert drift[1] > 0.01
    assert drift[2] > 0.01
    _, published = slots["policy"].ask("policy", "weights", 3, returns=2)
    assert ray.get(published).flat.nbytes < 4 * sum(p.numel() for p in decoder.parameters()) / 2


def test_curriculum_and_replay_are_the_same_over_actors(build: Build) -> None:
    own = ["task.order=difficulty", "algorithm.selection.replay=8", "task.train_size=4"]
    own.append(f"reward.function={HERE}/echoes.py:wrong")

    def learned(trainer: TrainingLoop) -> tuple[dict[str, float], Any]:
        """In the second step every group is a failure, and every task has an earlier success."""
        first = trainer.sample(1)
        for group in first.groups:
            trainer.sampler.replay.observe(group, [True] + [False] * 3)
        trainer.learn(first, 1)
        second = trainer.sample(2)
        assert second.replayed == len(second.groups) == 4
        return trainer.learn(second, 2), trainer.order.state()

    alone = TrainingLoop(configured(*own))
    expected, order = learned(alone)
    alone.close()
    found, there = learned(build(*own))
    assert found == pytest.approx(expected, abs=1e-6)
    assert there == order
    assert found["correction/weight_mean"] != 1.0


def test_a_reward_model_scores_as_in_one_process(build: Build, tmp_path: Path) -> None:
    model = classifier(tmp_path / "scorer")
    own = ["algorithm=grpo", "train.steps=2", "reward.parts={task: 1.0, liked: 0.5}"]
    own += [f"reward.params.liked={{function: reward_model, path: {model}, sigmoid: true}}"]
    here = train(configured(f"run.dir={tmp_path}", "run.name=here", *own), command=["toolwright"])
    trainer = build(f"run.dir={tmp_path}", "run.name=there", *own)
    there = RunFolder.claim(trainer.config.run, made_of=["x"])
    list(trainer.steps(there, command=["toolwright"]))
    alone, apart = (
        [essence(t) for step in rollouts(run).values() for t in step] for run in (here, there.path)
    )
    assert alone == apart
    assert len({of_attempt[5]["liked"] for of_attempt in alone}) > 3


def test_a_reward_model_that_learns_is_an_actor_with_the_same_numbers(build: Build, tmp_path: Path) -> None:
    own = [f"run.dir={tmp_path}", "algorithm=prime", "train.steps=2"]
    here = train(configured("run.name=here", *own), command=["toolwright"])
    with walked():
        trainer = build("run.name=there", *own)
    assert_apart(trainer, ["policy", "process_reward", "reward", "rollout-0"])
    folder = RunFolder.claim(trainer.config.run, made_of=["x"])
    list(trainer.steps(folder, command=["toolwright"]))
    for mine, theirs in zip(comparable(metrics(here)), comparable(metrics(folder.path)), strict=True):
        assert mine == pytest.approx(theirs, abs=1e-6)
    weights = "model/model.safetensors"
    assert (folder.path / weights).read_bytes() == (here / weights).read_bytes()
