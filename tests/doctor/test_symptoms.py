"""What the doctor says of runs: really sick ones, made with sick settings, and healthy ones."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trainer.runs import metrics, words
from tests.waiting import wait_until
from toolwright.cli import main
from toolwright.doctor.run_history import RunHistory

from . import sick
from .sick import found, named


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sick.warm_start(tmp_path_factory.mktemp("warm"))


class TestSickRuns:
    def test_a_rate_that_ruins_the_model(self, warm: Path, tmp_path: Path) -> None:
        run = sick.sums(tmp_path, "hot", warm, "update.policy.lr=0.3", steps=10)
        first = found(run)[0]
        assert (first.status, first.name) == ("problem", "learning rate too high")
        assert "update.policy.lr=0.3 for a trained model of" in first.evidence
        assert first.remedy == "update.policy.lr=0.0001, or auto"
        assert {"reward collapse", "entropy collapse"} & set(named(run))

    def test_answers_that_are_cut_off(self, warm: Path, tmp_path: Path) -> None:
        run = sick.sums(tmp_path, "cut", warm, "rollout.max_tokens=8")
        first = found(run)[0]
        assert (first.status, first.name) == ("problem", "truncated answers")
        assert "100.0 % of the last 128 attempts ran out of tokens; they earn 0" in first.evidence
        assert first.remedy.startswith("rollout.max_tokens=16")

    def test_a_tool_that_is_away_now_and_then(self, warm: Path, tmp_path: Path) -> None:
        run = sick.sums(tmp_path, "flaky", warm, sick.tool("Flaky"), "rollout.retries=0")
        first = found(run)[0]
        assert (first.status, first.name) == ("problem", "infrastructure failures")
        assert "most often: no answer from http://sums.example:80" in first.evidence
        assert "rollout.retries=5" in first.remedy

    def test_a_tool_server_that_is_not_there_at_all(self, warm: Path, tmp_path: Path) -> None:
        gone = "tools={calculator: {path: '" + str(sick.HERE / "sums.py") + ":Away', back: 1e12}}"
        run = sick.sums(tmp_path, "gone", warm, gone, "rollout.retries=0")
        (only,) = found(run)
        assert (only.status, only.name) == ("problem", "crashed")
        assert "no answer from http://sums:80" in only.evidence
        assert "check that the server that it names runs and answers" in only.remedy

    def test_a_tool_that_always_fails(self, warm: Path, tmp_path: Path) -> None:
        run = sick.sums(tmp_path, "broken", warm, sick.tool("Broken"))
        first = found(run)[0]
        assert (first.status, first.name) == ("problem", "tool calls fail")
        assert "100.0 % of the calls of the last steps failed (raised: calculator)" in first.evidence
        assert "the licence of the calculator has expired" in first.quote

    def test_a_cache_that_is_too_small(self, warm: Path, tmp_path: Path) -> None:
        pages = "engine.params={page_tokens: 8, cache_tokens: 96}"
        run = sick.sums(tmp_path, "cramped", warm, pages)
        cramped = next(one for one in found(run) if one.name == "cache too small")
        assert cramped.status == "warning"
        assert "gave their pages to older ones and were computed again" in cramped.evidence
        assert cramped.remedy.startswith("engine.slots=")

    def test_updates_that_are_not_finite(self, warm: Path, tmp_path: Path) -> None:
        run = sick.sums(tmp_path, "nan", warm, "update.policy.lr=1e30", "train.max_skips=3")
        names = named(run)
        assert names[0] == "crashed"
        assert "updates not finite" in names
        assert "learning rate too high" in names

    def test_a_task_that_is_too_hard(self, tmp_path: Path) -> None:
        task = ("task.name=arithmetic", "task.params.max_operand=99999", "task.train_size=64")
        run = sick.trained(tmp_path, "hard", *task, "model.context=64", "rollout.max_tokens=8")
        first = found(run)[0]
        assert (first.status, first.name) == ("problem", "no signal")
        assert "toolwright sft" in first.remedy

    def test_a_reward_that_pays_everybody_the_same(self, tmp_path: Path) -> None:
        reward = tmp_path / "reward.py"
        reward.write_text("def score(solution_str, ground_truth):\n    return 0.7\n")
        run = sick.trained(tmp_path, "alike", f"reward.function={reward}:score")
        (first,) = found(run)
        assert (first.status, first.name) == ("problem", "no signal")
        assert first.remedy.startswith("look at the reward, which gives 0.7 to every attempt")

    @pytest.mark.parametrize("body", ["raise ValueError('the judge said no')", "return None"])
    def test_a_reward_that_never_scores(self, tmp_path: Path, body: str) -> None:
        reward = tmp_path / "reward.py"
        reward.write_text(f"def score(solution_str, ground_truth):\n    {body}\n")
        run = sick.trained(tmp_path, "raises", f"reward.function={reward}:score", "eval.at_start=false")
        (only,) = found(run)
        assert (only.status, only.name) == ("problem", "crashed")
        assert only.remedy.startswith("fix what it names, then toolwright train")

    def test_a_reward_that_raises_at_times(self, tmp_path: Path) -> None:
        reward = tmp_path / "reward.py"
        reward.write_text(
            "def score(solution_str, ground_truth):\n    if solution_str[:1] == 'a':\n"
            "        raise ValueError('the judge said no')\n    return len(solution_str) / 10\n"
        )
        few = ("rollout.prompts=8", "rollout.samples=2")
        run = sick.trained(tmp_path, "raises", f"reward.function={reward}:score", *few)
        unscored = next(one for one in found(run) if one.name == "attempts cannot be scored")
        assert unscored.evidence.endswith("score raised ValueError … ValueError: the judge said no")

    def test_tools_that_are_never_called(self, tmp_path: Path) -> None:
        tools = (*sick.TASK, *sick.ATTEMPTS, *sick.CALCULATOR, "rollout.agent=auto", "rollout.max_tokens=8")
        run = sick.trained(tmp_path, "unused", *tools, "model.context=128", steps=5)
        assert "no tool calls" in named(run)

    @pytest.mark.slow
    def test_a_run_that_was_killed(self, tmp_path: Path) -> None:
        own = words("train.steps=100000", f"run.dir={tmp_path}", "run.name=killed")
        with subprocess.Popen(
            [sys.executable, "-m", "toolwright", "train", *own], stdout=subprocess.DEVNULL
        ) as process:
            run = tmp_path / "killed"
            wait_until(lambda: (run / "metrics.jsonl").exists() and len(metrics(run)) > 5, "it has trained")
            assert RunHistory.read(run).alive
            assert found(run) == []
            process.send_signal(signal.SIGKILL)
        first = found(run)[0]
        assert (first.status, first.name) == ("problem", "killed")
        assert "run.resume=true" in first.remedy


class TestHealthyRuns:
    def test_a_warm_start(self, warm: Path) -> None:
        assert found(warm) == []
        assert RunHistory.read(warm).kind == "sft"

    def test_training_with_a_tool(self, warm: Path, tmp_path: Path) -> None:
        assert found(sick.sums(tmp_path, "well", warm)) == []

    @pytest.mark.parametrize("seed", [0, 1])
    def test_a_task_whose_answers_fill_their_limit(self, seed: int, tmp_path: Path) -> None:
        assert found(sick.trained(tmp_path, "letters", f"run.seed={seed}", steps=25)) == []

    def test_a_run_too_short_to_judge(self, tmp_path: Path) -> None:
        assert found(sick.trained(tmp_path, "short", "rollout.max_tokens=1", steps=2)) == []

    @pytest.mark.slow
    @pytest.mark.parametrize("seed", [0, 1, 2])
    @pytest.mark.parametrize(
        "own", ["algorithm=ppo", "algorithm=gspo", "algorithm.kl.where=loss", "algorithm=rloo"]
    )
    def test_algorithms_and_seeds(self, own: str, seed: int, tmp_path: Path) -> None:
        run = sick.trained(tmp_path, "well", own, f"run.seed={seed}", "eval.every=10", steps=40)
        assert [one for one in found(run) if one.status == "problem"] == []


class TestTheCommand:
    @pytest.fixture(scope="class")
    def run(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        folder = tmp_path_factory.mktemp("told") / "run"
        return sick.written(folder, sick.steps(10, reward__mean=0.5, policy__skipped=1))

    def test_a_problem_is_shown_with_what_to_do(self, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["doctor", str(run)]) == 1
        printed = capsys.readouterr().out
        assert "grpo on sums, step 10 of 10" in printed
        assert "problem  updates not finite       10 updates were skipped in 10 steps" in printed
        assert "→ a lower update.policy.lr" in printed

    def test_programs_get_json(self, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["doctor", str(run), "--json"]) == 1
        told = json.loads(capsys.readouterr().out)
        assert (told["kind"], told["step"], told["finished"]) == ("train", 10, True)
        assert told["findings"][0]["name"] == "updates not finite"

    def test_a_healthy_run_has_a_clean_bill(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        run = sick.written(tmp_path / "well", sick.steps(10, reward__mean=0.5))
        assert main(["doctor", str(run)]) == 0
        assert "nothing looks wrong" in capsys.readouterr().out

    def test_a_folder_in_pieces_is_judged_as_far_as_it_goes(self, tmp_path: Path) -> None:
        run = sick.written(tmp_path / "torn", sick.steps(10, reward__mean=0.5, policy__skipped=1))
        (run / "timeline.json").write_text("[{")
        (run / "incidents.jsonl").write_text('{"step": 1}\n{"ste')
        (run / "rollouts").mkdir()
        (run / "rollouts/step_000003.parquet").write_bytes(b"PAR1")
        assert "updates not finite" in named(run)

    def test_steps_without_an_end_are_no_plan(self, tmp_path: Path) -> None:
        run = sick.written(tmp_path / "endless", sick.steps(10, reward__mean=0.5))
        (run / "config.yaml").write_text("algorithm: {name: grpo}\ntrain: {steps: .inf}\n")
        assert RunHistory.read(run).planned == 0
        assert main(["doctor", str(run)]) == 0
