"""A run that was killed goes on as if it had not been: the same tasks, tokens and losses, to the last bit."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.forks import forks
from tests.waiting import wait_until
from toolwright.cli import main
from toolwright.failures import UserError
from toolwright.learner import checkpoints
from toolwright.runtime.roles import LearnerLost
from toolwright.trainer.loop import TrainingLoop

from . import dies
from .runs import HERE, as_lists, configured, metrics, rollouts, token_values, toolwright, trained, words

STEPS = 8
EVERY_STEP = ("train.steps=8", "checkpoint.every=1", "checkpoint.keep=2", "eval.every=3")
# What a step may depend on besides the weights: the order of tasks, the critic, coefficients, counts, draws.
SETTINGS = {
    "three steps an epoch": ("algorithm=grpo", "task.train_size=12"),
    "rounds and minibatches": (
        "algorithm=dapo",
        "algorithm.entropy_target=3.0",
        "algorithm.top_entropy_fraction=0.7",
        "algorithm.loss=clip_cov",
        "algorithm.params.clip_cov={clip_cov_ratio: 0.3, clip_cov_lb: 0.0, clip_cov_ub: 50.0}",
        "update.minibatches=3",
        "update.epochs=2",
        "task.train_size=9",
    ),
    "critic and adaptive KL": (
        "algorithm=ppo",
        "algorithm.kl.target=0.01",
        "algorithm.kl.horizon=100",
        "update.minibatches=2",
        "update.epochs=2",
        "update.critic_warmup=1",
        "update.policy.warmup_steps=5",
        "update.policy.decay=cosine",
    ),
}


def history(run: Path) -> list[dict[str, Any]]:
    """The metrics of every step, but for how long things took."""
    clocks = ("time/", "throughput/", "use/")
    return [{k: v for k, v in row.items() if not k.startswith(clocks)} for row in metrics(run)]


def attempts(run: Path) -> dict[int, list[Any]]:
    """Step by step: which task, from which seed, every token of every segment, what it cost, and what the
    learner made of it."""
    values = token_values(run)
    return {
        step: [
            (
                (t.task.id, t.group, t.index, t.seed, t.reward, t.weights_version),
                [(s.source, s.tokens, s.log_probs) for s in t.segments],
                as_lists(learned),
            )
            for t, learned in zip(found, values[step], strict=True)
        ]
        for step, found in rollouts(run).items()
    }


@pytest.fixture(scope="module")
def in_one_go(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The same run without any accident, once for each of the settings."""
    runs = tmp_path_factory.mktemp("in_one_go")
    done: dict[str, Path] = {}

    def of(settings: str) -> Path:
        if settings not in done:
            name = f"run.name={len(done)}"
            done[settings] = trained(runs, *EVERY_STEP, *SETTINGS[settings], name)
        return done[settings]

    return of


def killed(cwd: Path, settings: str, moment: str) -> Path:
    """A run killed in step 3 at the moment that `dies.py` knows by this name."""
    line = ["train", *words(*EVERY_STEP, *SETTINGS[settings], "run.name=x")]
    process = forks().Process(target=dies.run, args=(moment, 3, line, cwd))
    process.start()
    process.join(400)
    assert process.exitcode == -signal.SIGKILL, (cwd / "said.txt").read_text()
    return cwd / "runs/x"


def recorded(run: Path) -> int:
    return metrics(run)[-1]["step"] if (run / "metrics.jsonl").exists() else 0


def killed_by_hand(cwd: Path, settings: str) -> Path:
    """A run killed from outside, whatever it is doing once the third step is recorded."""
    line = words(*EVERY_STEP, *SETTINGS[settings], "run.name=x")
    run = cwd / "runs/x"
    while True:
        process = subprocess.Popen([sys.executable, "-m", "toolwright", "train", *line], cwd=cwd)
        wait_until(lambda: process.poll() is not None or recorded(run) >= 3, "three steps are recorded")  # noqa: B023
        process.kill()
        if process.wait() == -signal.SIGKILL:
            return run
        assert process.returncode == 0
        shutil.rmtree(run)  # it was over before it could be killed


def assert_same(resumed: Path, whole: Path) -> None:
    assert attempts(resumed) == attempts(whole)
    assert history(resumed) == history(whole)
    assert [row["step"] for row in metrics(resumed)] == list(range(STEPS + 1))
    weights = "model/model.safetensors"
    assert (resumed / weights).read_bytes() == (whole / weights).read_bytes()
    left = [p.name for p in resumed.rglob("*") if p.name.endswith((".partial", ".old"))]
    assert not left
    assert [p.name for p in sorted((resumed / "checkpoints").iterdir())] == ["step_7", "step_8"]


@pytest.mark.parametrize(
    ("settings", "moment", "goes_on_after"),
    [
        ("three steps an epoch", "once_it_is_written", 3),  # the third step ends the epoch
        ("three steps an epoch", "half_way_through_its_tensors", 2),
        ("critic and adaptive KL", "before_it_has_its_name", 2),
        ("critic and adaptive KL", "while_the_model_is_replaced", 3),
        ("rounds and minibatches", "before_its_attempts_are_kept", 2),
    ],
)
def test_three_steps_a_kill_and_the_rest_are_eight_steps(
    settings: str,
    moment: str,
    goes_on_after: int,
    tmp_path: Path,
    in_one_go: Callable[[str], Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = killed(tmp_path, settings, moment)
    assert checkpoints.latest(run / "checkpoints") == run / f"checkpoints/step_{goes_on_after}"
    assert main(["train", "run.name=x", "run.resume=true", f"run.dir={run.parent}"]) == 0
    assert f"going on after step {goes_on_after}\n" in capsys.readouterr().out
    assert_same(run, in_one_go(settings))


@pytest.mark.slow  # the test above kills at every place that is worth a name
def test_a_kill_at_any_time_is_as_good(tmp_path: Path, in_one_go: Callable[[str], Path]) -> None:
    run = killed_by_hand(tmp_path, "rounds and minibatches")
    done = toolwright("train", "run.name=x", "run.resume=true", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert_same(run, in_one_go("rounds and minibatches"))


def test_the_settings_put_to_the_test_what_they_are_named_for(in_one_go: Callable[[str], Path]) -> None:
    epoch = [rollouts(in_one_go("three steps an epoch"))[step] for step in (1, 2, 3)]
    assert len({t.task.id for step in epoch for t in step}) == 12, "three steps take every task once"
    rounds = [row["groups/rounds"] for row in metrics(in_one_go("rounds and minibatches"))[1:]]
    assert max(rounds) > 1, "some groups had to be sampled again"
    dropped = [row["policy/dropped_fraction"] for row in metrics(in_one_go("rounds and minibatches"))[1:]]
    assert max(dropped) > 0.05, "tokens were drawn at random"
    bonus = [row["policy/entropy_coef"] for row in metrics(in_one_go("rounds and minibatches"))[1:]]
    assert len(set(bonus)) > 3, "the bonus adapts"
    coefficients = [row.get("reference/kl_coef") for row in metrics(in_one_go("critic and adaptive KL"))[2:]]
    assert len(set(coefficients)) == len(coefficients), "the coefficient adapts at every step"


def test_a_run_killed_before_its_first_checkpoint_begins_again(tmp_path: Path) -> None:
    whole = trained(tmp_path, "run.name=whole", "checkpoint.every=0")
    torn = trained(tmp_path, "run.name=torn", "train.steps=1")
    for file in (torn / "checkpoints").rglob("*"):
        if file.is_file():
            file.unlink()
    (torn / "checkpoints/step_1").rmdir()
    resumed = trained(tmp_path, "run.name=torn", "run.resume=true", "train.steps=2")
    assert history(resumed) == history(whole)


def test_a_resumed_run_may_be_longer_than_it_was_meant_to_be(tmp_path: Path) -> None:
    whole = trained(tmp_path, "run.name=whole", "train.steps=4", "eval.every=2")
    trained(tmp_path, "run.name=longer", "train.steps=2", "eval.every=2")
    longer = trained(tmp_path, "run.name=longer", "train.steps=4", "eval.every=2", "run.resume=true")
    assert history(longer) == history(whole)


def test_resuming_a_finished_run_says_so_and_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained(tmp_path, "run.name=done")
    before = history(run)
    capsys.readouterr()
    trained(tmp_path, "run.name=done", "run.resume=true")
    assert "all 2 steps are done; raise train.steps to train further" in capsys.readouterr().out
    assert history(run) == before


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("run.seed=1", "the checkpoint's task order has seed=0, this run has seed=1"),
        ("task.train_size=16", "the checkpoint's task order has size=32, this run has size=16"),
        ("task.order=as_listed", "the checkpoint's task order has shuffle=True"),
        (f"task.name={HERE}/letters.py:backwards", "the checkpoint is of other training tasks"),
        ("model.width=48", "the checkpoint is of another model or algorithm"),
        ("model.layers=2", "the checkpoint is of another model or algorithm"),
        ("algorithm.adv_estimator=gae", "the checkpoint has no critic, and this run's algorithm needs one"),
        ("train.steps=1", "x has taken 2 steps already, more than train.steps=1"),
    ],
)
def test_a_run_does_not_go_on_as_another_one(change: str, said: str, tmp_path: Path) -> None:
    run = trained(tmp_path, "run.name=x")
    kept = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    with pytest.raises(UserError, match=said):
        trained(tmp_path, "run.name=x", "run.resume=true", *({"train.steps=3"} - {change}), change)
    assert {file: file.read_bytes() for file in run.rglob("*") if file.is_file()} == kept


@pytest.mark.parametrize(
    ("began_with", "change", "said"),
    [
        ("algorithm.adv_estimator=gae", "algorithm=rloo", "a critic, and this run's algorithm does not use"),
        ("algorithm=prime", "algorithm=dapo", "a process reward, and this run's algorithm does not use"),
        ("algorithm=prime", "algorithm=grpo", "no reference, and this run's algorithm needs one: resume"),
    ],
)
def test_what_learned_beside_the_policy_is_neither_dropped_nor_made_up(
    began_with: str, change: str, said: str, tmp_path: Path
) -> None:
    run = trained(tmp_path, "run.name=x", began_with)
    kept = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    with pytest.raises(UserError, match=f"the checkpoint has {said}"):
        trained(tmp_path, "run.name=x", "run.resume=true", "train.steps=3", change)
    assert {file: file.read_bytes() for file in run.rglob("*") if file.is_file()} == kept


def test_a_run_goes_on_with_another_estimator_and_without_its_reference(tmp_path: Path) -> None:
    trained(tmp_path, "run.name=x", "algorithm=grpo")
    again = trained(tmp_path, "run.name=x", "run.resume=true", "train.steps=3", "algorithm=rloo")
    assert [row["step"] for row in metrics(again)] == [0, 1, 2, 3]


def test_a_coefficient_that_does_not_adapt_is_the_resumed_runs_own(tmp_path: Path) -> None:
    own = ("run.name=x", "algorithm.kl.where=loss")
    trained(tmp_path, *own, "algorithm.kl.coef=0.1", "algorithm.entropy_coef=0.2")
    changed = ("algorithm.kl.coef=0.3", "algorithm.entropy_coef=0.4")
    run = trained(tmp_path, *own, "run.resume=true", "train.steps=3", *changed)
    assert [row["reference/kl_coef"] for row in metrics(run)[1:]] == [0.1, 0.1, 0.3]
    state = checkpoints.plain(run / "checkpoints/step_3")
    assert (state["kl_coef"], state["entropy"]["coef"]) == (0.3, 0.4)


def test_a_resumed_run_says_which_settings_are_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained(tmp_path, "run.name=x")
    capsys.readouterr()
    trained(tmp_path, "run.name=x", "run.resume=true", "train.steps=3", "update.policy.lr=0.007")
    said = "settings that differ from before: train.steps=3 (was 2), update.policy.lr=0.007 (was 0."
    assert said in capsys.readouterr().out
    assert said in (run / "log.txt").read_text()
    trained(tmp_path, "run.name=x", "run.resume=true", "train.steps=3", "update.policy.lr=0.007")
    assert "other settings" not in capsys.readouterr().out


def test_the_stored_configuration_is_of_a_new_run_even_after_a_resume(tmp_path: Path) -> None:
    """Or training from it elsewhere would look for a run to go on with."""
    run = trained(tmp_path, "run.name=x")
    trained(tmp_path, "run.name=x", "run.resume=true", "train.steps=3")
    assert "resume: false" in (run / "config.yaml").read_text()
    assert "steps: 3" in (run / "config.yaml").read_text()
    assert (run / "command.txt").read_text().count("toolwright train") == 2


def test_only_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    run = trained(tmp_path, "train.steps=5", "checkpoint.every=2", "checkpoint.keep=2")
    assert sorted(p.name for p in (run / "checkpoints").iterdir()) == ["step_4", "step_5"]


def test_a_restored_trainer_takes_the_very_next_step(tmp_path: Path) -> None:
    """Without a run folder: two trainers, one of which is given the other's state."""
    config = configured("algorithm=ppo", "update.minibatches=2")
    first, second = TrainingLoop(config), TrainingLoop(config)
    try:
        first.learn(first.sample(1), 1)
        first.step_done = 1
        first.save(tmp_path, keep=1)
        second.restore(tmp_path / "step_1")
        assert json.dumps(first.learn(first.sample(2), 2)) == json.dumps(second.learn(second.sample(2), 2))
    finally:
        first.close()
        second.close()


class TestALearnerThatIsLost:
    """In a cluster it dies by itself; here it only says so, after it has learned what must be forgotten."""

    @pytest.fixture
    def dying(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """It is lost in each of the steps that are listed, in this order."""
        learn, doomed = TrainingLoop.learn, []

        def lost(trainer: TrainingLoop, sampled: Any, step: int) -> dict[str, float]:
            found = learn(trainer, sampled, step)
            if doomed and step == doomed[0]:
                del doomed[0]
                raise LearnerLost("the policy was lost")
            return found

        monkeypatch.setattr(TrainingLoop, "learn", lost)
        return doomed

    def test_costs_the_steps_since_the_last_checkpoint(self, tmp_path: Path, dying: list[int]) -> None:
        own = ("algorithm=ppo", "train.steps=5", "checkpoint.every=2", "eval.every=2")
        whole = trained(tmp_path, *own, "run.name=whole")
        dying += [4, 4, 5, 5]
        through = trained(tmp_path, *own, "run.name=through", "runtime.learner_restarts=2")
        assert history(through) == history(whole)
        assert attempts(through) == attempts(whole)
        log = (through / "log.txt").read_text()
        assert log.count("step 4: the policy was lost; the run goes back to the checkpoint of step 2") == 2
        assert log.count("step 5: the policy was lost; the run goes back to the checkpoint of step 4") == 2

    def test_repeated_returns_to_one_checkpoint_end_the_run(self, tmp_path: Path, dying: list[int]) -> None:
        dying += [2, 2]
        with pytest.raises(
            UserError, match=r"step 1 after runtime\.learner_restarts=1 times; continue with: "
        ):
            trained(tmp_path, "train.steps=3", "checkpoint.every=1", "runtime.learner_restarts=1")
