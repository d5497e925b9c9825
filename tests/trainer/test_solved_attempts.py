"""A warm start without a teacher: the model's own attempts that were solved with the tool, and no others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from toolwright.cli import main
from toolwright.config import schema
from toolwright.failures import UserError
from toolwright.models.tokenizer import Tokenizer
from toolwright.record import load, save
from toolwright.trainer.solved_attempts import read_run, select
from toolwright.trajectory import Failure, Segment, Task, Trajectory

from .runs import HERE, metrics

SHAPE = ("model.layers=1", "model.width=32", "model.heads=2", "model.kv_heads=2", "model.ffn=64")
TASK = (f"task.name={HERE}/sums.py:tasks", "task.held_out_size=4", "run.threads=1", "tools={calculator: {}}")
TURNS = ("rollout.max_tokens=24", "rollout.max_turns=3", "model.context=96", "rollout.tool_prompt=''")
SUMS = (*TASK, *TURNS)
CLEAN = {"tool_calls": 1.0, "tool_errors": 0.0}


def attempt(answer: int = 1, *, task: str = "a", reward: float = 1.0, **known: Any) -> Trajectory:
    known = {"counts": dict(CLEAN), "stop": "eos", **known}
    asked = Task(task, [{"role": "user", "content": task}])
    segments = [Segment("prompt", [7, 8]), Segment("policy", [answer, 9], [-0.5, -0.5])]
    return Trajectory(asked, task, reward=reward, segments=segments, **known)


def kept(*attempts: Trajectory, tools: bool = True, **config: Any) -> list[Trajectory]:
    return select(attempts, schema.SolvedAttempts(**config), seed=0, tools=tools).kept


class TestSelection:
    @pytest.mark.parametrize(
        "known",
        [
            {"reward": 0.0},
            {"reward": 0.9},
            {"reward": 1.2, "reward_parts": {"acc": 0.0}},  # paid for its form alone
            {"counts": {}},
            {"counts": {"tool_calls": 2.0, "tool_errors": 1.0}},
            {"counts": {**CLEAN, "format_faults": 1.0}},
            {"counts": {**CLEAN, "calls_refused": 1.0}},
            {"stop": "length"},
            {"failure": Failure("task", "hung")},
        ],
    )
    def test_only_what_is_right_and_clean_is_kept(self, known: dict[str, Any]) -> None:
        good = attempt(1)
        assert kept(good, attempt(2, **known)) == [good]

    def test_without_tools_being_right_is_enough(self) -> None:
        plain = attempt(counts={})
        assert kept(plain, tools=False) == [plain]
        assert kept(plain, calls="any") == [plain]
        with pytest.raises(
            UserError, match="nothing to learn from: 1 of 1 attempts were right, 0 of them with"
        ):
            kept(plain, tools=False, calls="clean")

    def test_easy_tasks_do_not_crowd_out_hard_ones(self) -> None:
        easy, hard = [attempt(n, task="easy") for n in range(20)], attempt(1, task="hard")
        found = kept(*easy, hard, per_task=3)
        assert len(found) == 4
        assert hard in found

    def test_no_two_are_alike(self) -> None:
        assert len(kept(attempt(1), attempt(1), attempt(2))) == 2

    def test_the_choice_follows_from_the_seed(self) -> None:
        every = [attempt(n) for n in range(20)]
        chosen = [
            [t.segments[1].tokens for t in select(every, schema.SolvedAttempts(), seed=seed, tools=True).kept]
            for seed in (0, 0, 1)
        ]
        assert chosen[0] == chosen[1] != chosen[2]

    def test_a_line_tells_what_became_of_the_attempts(self) -> None:
        found = [attempt(1), attempt(2), attempt(3, reward=0.0), attempt(4, task="b"), attempt(5, counts={})]
        line = select(found, schema.SolvedAttempts(per_task=1), seed=0, tools=True).line
        assert line == "4 of 5 attempts were right, 3 of them with clean calls; 2 at 2 tasks are learned from"


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that calls the tool most of the time."""
    runs = tmp_path_factory.mktemp("warm")
    own = ("steps=120", "batch=16", "optimizer.lr=1e-2", f"run.dir={runs}", "run.name=warm")
    assert main(["sft", *SHAPE, *SUMS, *own]) == 0
    return runs / "warm"


def learned(warm: Path, runs: Path, *own: str, name: str = "own") -> Path:
    words = (f"model.path={warm}/model", "steps=20", "batch=8", "optimizer.lr=1e-3", "rollout.samples=4")
    every = [*SUMS, *words, f"run.dir={runs}", f"run.name={name}", *own]
    last = {word.partition("=")[0]: word for word in every}  # what a test says itself wins
    assert main(["sft", *last.values()]) == 0
    return runs / name


class TestOfTheModelItself:
    def test_a_model_learns_what_it_solves_and_its_attempts_are_kept(
        self, warm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        run = learned(warm, tmp_path, "demonstrations=sampled")
        assert "of 64 attempts were right" in capsys.readouterr().out
        assert len(load(run / "rollouts/step_000000.parquet")) == 64
        losses = [row["policy/loss"] for row in metrics(run)[1:]]
        assert losses[-1] < losses[0]
        assert (run / "model/model.safetensors").is_file()
        assert main(["view", str(run), "--plain"]) == 0

    def test_words_to_sample_with_are_not_in_what_is_learned(self, warm: Path, tmp_path: Path) -> None:
        own = ("demonstrations=sampled", "attempts.tool_prompt='0'", "model.context=128", "steps=1")
        run = learned(warm, tmp_path, *own)
        sampled = load(run / "rollouts/step_000000.parquet")
        assert all("0" in t.segments[0].text.partition(t.task.prompt[0]["content"])[0] for t in sampled)

    def test_a_reward_of_ones_own_says_what_is_solved(self, warm: Path, tmp_path: Path) -> None:
        (tmp_path / "never.py").write_text("def score(solution_str, **_):\n    return 0.0\n")
        words = (f"model.path={warm}/model", f"run.dir={tmp_path}", "demonstrations=sampled", "steps=1")
        assert main(["sft", *SUMS, *words, f"reward.function={tmp_path}/never.py:score"]) == 2

    def test_another_engine_is_refused(self, warm: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["sft", *SUMS, "demonstrations=sampled", "engine.name=vllm"]) == 2
        assert "sft attempts tasks with the native engine only" in capsys.readouterr().err


class TestOfARun:
    def test_exact_tokens_are_learned(self, warm: Path, tmp_path: Path) -> None:
        first = learned(warm, tmp_path, "demonstrations=sampled", "steps=1", name="first")
        second = learned(warm, tmp_path, f"demonstrations={first}", "steps=3", name="second")
        tokenizer = Tokenizer.load(warm / "model")
        found = read_run(first, tokenizer, [])
        assert found == load(first / "rollouts/step_000000.parquet")
        assert metrics(second)[-1]["policy/loss"] > 0

    def test_tasks_that_are_held_out_here_are_left_out(self, warm: Path, tmp_path: Path) -> None:
        run = learned(warm, tmp_path, "demonstrations=sampled", "steps=1")
        tokenizer, every = Tokenizer.load(warm / "model"), load(run / "rollouts/step_000000.parquet")
        judged = every[0].task
        left = read_run(run, tokenizer, [judged])
        assert len(left) == len(every) - 4
        assert all(t.task.prompt != judged.prompt for t in left)

    def test_a_prompt_may_be_written_anew(self, warm: Path, tmp_path: Path) -> None:
        run = learned(warm, tmp_path, "demonstrations=sampled", "steps=1")
        again = learned(
            warm, tmp_path, f"demonstrations={run}", "attempts.prompt=own", "steps=1", name="again"
        )
        recorded = learned(warm, tmp_path, f"demonstrations={run}", "steps=1", name="recorded")
        assert metrics(again)[-1]["policy/loss"] == metrics(recorded)[-1]["policy/loss"], "it was the same"

    def test_tokens_of_another_model_are_refused(
        self, warm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        run = tmp_path / "other"
        (run / "rollouts").mkdir(parents=True)
        save(run / "rollouts/step_000001.parquet", [attempt()])
        words = ["sft", *SUMS, f"model.path={warm}/model", f"demonstrations={run}", f"run.dir={tmp_path}"]
        assert main(words) == 2
        assert "there is no tokenizer.json" in capsys.readouterr().err
        other = json.loads((warm / "model/tokenizer.json").read_text())
        other["added_tokens"] = other["added_tokens"][:-1]
        (run / "tokenizer.json").write_text(json.dumps(other))
        assert main(words) == 2
        assert "the run's model has other tokens than this one" in capsys.readouterr().err

    def test_a_folder_without_attempts_is_refused(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["sft", *SHAPE, *SUMS, f"demonstrations={tmp_path}"]) == 2
        assert "the folder holds no attempts" in capsys.readouterr().err
