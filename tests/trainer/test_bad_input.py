"""What cannot work is refused by the whole command: status 2, one message to act on, nothing written."""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.disk import room_for
from toolwright.cli import main
from toolwright.failures import UserError
from toolwright.learner import checkpoints
from toolwright.trainer.run_folder import RunFolder
from toolwright.trainer.run_log import RunLog

from .runs import HERE, configured, metrics, trained, words

Refused = Callable[..., str]
FEW_TASKS = "task.train_size=8"  # instead of ten thousand, which no refusal needs


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Refused:
    """The message that a command line earns; nothing may have come of it."""

    def by(*own: str, command: str = "train") -> str:
        if "run.resume=true" in own:
            line = list(own)
        else:
            line = [FEW_TASKS, *own] if command == "sft" else words(*own)
        before = contents(tmp_path)
        capsys.readouterr()
        assert main([command, *line]) == 2
        said = capsys.readouterr()
        assert contents(tmp_path) == before, "something was written"
        assert "Traceback" not in said.err
        assert said.err.startswith("toolwright: ")
        assert said.out == ""
        return said.err.removeprefix("toolwright: ").strip()

    return by


def contents(folder: Path) -> dict[Path, bytes | None]:
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def task_file(*rows: dict[str, Any]) -> tuple[str, str, str]:
    """Words that train on these rows."""
    Path("tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return ("task=file", "task.name=file", "task.train=tasks.jsonl")


def row(question: str = "1+1=", truth: Any = "2", **more: Any) -> dict[str, Any]:
    return {
        "prompt": question,
        "data_source": "arithmetic",
        "reward_model": {"ground_truth": truth},
        **more,
    }


def test_an_unknown_key(refused: Refused) -> None:
    said = refused("rollout.sampels=4")
    assert said == "rollout.sampels=4: unknown key; did you mean rollout.samples?"


def test_an_unknown_algorithm(refused: Refused) -> None:
    said = refused("algorithm=grppo")
    assert "did you mean" in said
    assert all(name in said for name in ("grpo", "dapo", "gigpo", "rloo", "sppo"))


def test_a_task_file_without_a_prompt(refused: Refused) -> None:
    said = refused(*task_file({"question": "1+1="}))
    assert said.startswith("tasks.jsonl, row 1: there is no `prompt`; the row has question.")
    assert "toolwright data prepare hub FILE --map prompt=… --map answer=…" in said


def test_an_empty_data_set(refused: Refused) -> None:
    assert refused(*task_file()) == "tasks.jsonl has no rows"
    assert "has no training tasks" in refused(f"task.name={HERE}/letters.py:none")


def test_a_ground_truth_of_the_wrong_type(refused: Refused) -> None:
    said = refused(*task_file(row(), row("2+2=", {"answer": 4})), "task.held_out_size=1")
    assert said.startswith("task tasks.jsonl:2: the ground truth must be")
    assert "dict" in said


def test_tasks_that_nobody_can_score(refused: Refused) -> None:
    said = refused(
        *task_file(row(data_source="mine"), row("2+2=", data_source="mine")), "task.held_out_size=1"
    )
    assert (
        "no scorer is known for these tasks: their data_source 'mine' has none; set reward.function" in said
    )


def test_long_prompts_are_skipped_and_counted_or_refused(
    refused: Refused, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row(f"{n}+1=", str(n + 1)) for n in range(8)] + [row("1+" * 20 + "1=", "21") for _ in range(3)]
    own = (*task_file(*rows), "task.held_out=held.jsonl", "task.max_prompt_tokens=12")
    Path("held.jsonl").write_text(json.dumps(rows[0]) + "\n" + json.dumps(rows[-1]) + "\n")
    assert "task tasks.jsonl:9: its prompt is longer than 12 tokens" in refused(
        *own, "task.long_prompts=error"
    )
    assert "every prompt is longer than 3 tokens" in refused(*own, "task.max_prompt_tokens=3")
    assert main(["train", *words(*own, "train.steps=1")]) == 0
    out = capsys.readouterr().out
    assert "8 training tasks, 1 held out" in out
    assert "3 training prompts are too long and were skipped" in out
    assert "1 held-out prompts are too long and were skipped" in out


def test_a_model_folder_that_is_not_one(refused: Refused, tmp_path: Path) -> None:
    assert "model.path=nowhere is not a folder" in refused("model.path=nowhere")
    folder = tmp_path / "model"
    folder.mkdir()
    alone = f"{folder} is not a model folder: it has no config.json"
    assert refused(f"model.path={folder}") == alone
    (folder / "model").mkdir()  # a run's folder has one
    (folder / "model/config.json").write_text("{}")
    assert refused(f"model.path={folder}") == f"{alone}; {folder}/model is one"
    (folder / "config.json").write_text('{"model_type": "gpt2"}')
    assert "it is a 'gpt2' model" in refused(f"model.path={folder}", "model.fast=yes")
    assert "has no tokenizer.json" in refused(f"model.path={folder}")
    (folder / "config.json").write_text("{")
    assert "config.json" in refused(f"model.path={folder}")


def test_a_run_folder_that_exists(refused: Refused, tmp_path: Path) -> None:
    trained(tmp_path / "runs", "run.name=x", "train.steps=1")
    said = refused("run.name=x")
    assert said == "run folder runs/x exists; continue it with run.resume=true, or choose another run.name"


def test_a_run_to_resume_that_does_not_exist(refused: Refused, tmp_path: Path) -> None:
    trained(tmp_path / "runs", "run.name=mine", "train.steps=1")
    assert "did you mean 'mine'?" in refused("run.name=mien", "run.resume=true")


def test_a_resumed_run_with_another_seed_other_tasks_or_another_model(
    refused: Refused, tmp_path: Path
) -> None:
    trained(tmp_path / "runs", "run.name=x", "train.steps=1")
    resumed = ("run.name=x", "run.resume=true")
    assert "the checkpoint's task order has seed=0, this run has seed=7" in refused(*resumed, "run.seed=7")
    assert "resume with the same tasks and seed" in refused(*resumed, "task=digits")
    assert "the checkpoint is of another model" in refused(*resumed, "model.width=64")


@pytest.mark.parametrize(
    ("own", "said"),
    [
        (["rollout.temperature=0"], "a policy that never explores cannot learn"),
        (["algorithm=rloo", "rollout.samples=1"], "adv_estimator=rloo learns nothing from rollout.samples=1"),
        (
            ["algorithm=dapo", "rollout.samples=1", "update.minibatches=1"],
            "rollout.samples=1 must be at least 2",
        ),
        (["algorithm.params.grpo.epsilom=1"], "'grpo' takes no 'epsilom'"),
        (["algorithm.params.grpoo.epsilon=1"], "no estimator and no loss of this name; did you mean 'grpo'?"),
        (["algorithm.params.ppo.clip_c=0.5"], "clip_c=0.5 must be above 1"),
        (["algorithm=gigpo", "algorithm.params.gigpo.mode=median"], "unknown mode 'median'"),
    ],
)
def test_an_algorithm_that_cannot_work_as_it_is_set(own: list[str], said: str, refused: Refused) -> None:
    assert said in refused(*own)


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ("rollout.agent=nowhere.py:Agent", "no such file"),
        (f"rollout.agent={HERE}/letters.py:LETTERS", "is not an agent"),
        ("reward.function=nowhere.py:score", "no such file"),
        (f"reward.function={HERE}/letters.py:_task", "expected f(data_source"),
        (f"task.name={HERE}/letters.py:nothing", "has no 'nothing'"),
        (f"algorithm.adv_estimator={HERE}/letters.py:nothing", "has no 'nothing'"),
    ],
)
def test_code_of_the_user_that_is_not_there_or_not_what_is_meant(
    own: str, said: str, refused: Refused
) -> None:
    assert said in refused(own)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import json\njson.loads('')", "own.py cannot be imported: json.decoder.JSONDecodeError: Expecting"),
        ("\nimport not_installed_here", "No module named 'not_installed_here' (line 2)"),
        ("x = (", "own.py cannot be imported: SyntaxError"),
        (
            "raise SystemExit('usage: own.py FILE')",
            "own.py cannot be imported: SystemExit: usage: own.py FILE",
        ),
    ],
)
def test_code_of_the_user_that_cannot_be_imported(
    source: str, said: str, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # Python's own file beside it is nothing of ours
    Path("own.py").write_text(source)
    assert said in refused("rollout.agent=own.py:run")


def test_nothing_held_out_to_evaluate_on(refused: Refused) -> None:
    own = words(f"task.name={HERE}/letters.py:nothing_held_out")
    assert "there are no held-out tasks to evaluate on" in refused(*own, command="eval")


def test_a_ground_truth_of_the_wrong_type_in_an_evaluation(refused: Refused) -> None:
    own = (*task_file(row(), row("2+2=", [4])), "task.held_out=tasks.jsonl")
    assert "task tasks.jsonl:2: the ground truth must be" in refused(*own, command="eval")


def test_demonstrations_that_are_none(refused: Refused) -> None:
    def said_of(text: str) -> str:
        Path("said.jsonl").write_text(text)
        return refused("demonstrations=said.jsonl", command="sft")

    assert "demonstrations: no such file: nowhere.jsonl" in refused(
        "demonstrations=nowhere.jsonl", command="sft"
    )
    assert "said.jsonl is neither Parquet nor JSON lines" in said_of("hello\n")
    assert said_of("\n") == "demonstrations: said.jsonl has no rows"
    assert "said.jsonl, row 1: expected `messages`" in said_of('{"prompt": "1+1="}\n')
    only_asked = [{"role": "user", "content": "1"}]
    assert "has no assistant message to learn from" in said_of(json.dumps({"messages": only_asked}))
    long = [{"role": "user", "content": "1"}, {"role": "assistant", "content": "1" * 400}]
    assert "no demonstration fits into model.context=256" in said_of(json.dumps({"messages": long}))


def test_a_full_disk_while_checkpointing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The checkpoint before stays whole: once there is room again, the run goes on from it."""
    save = checkpoints.save

    def cramped(folder: Path, step: int, *args: Any, **kwargs: Any) -> Path:
        with room_for(10_000 if step == 2 else resource.RLIM_INFINITY):
            return save(folder, step, *args, **kwargs)

    monkeypatch.setattr(checkpoints, "save", cramped)
    assert main(["train", *words("run.name=x", "train.steps=3", "checkpoint.every=1")]) == 2
    said = capsys.readouterr().err
    run = tmp_path / "runs/x"
    assert said.startswith("toolwright: could not write checkpoint runs/x/checkpoints/step_2: ")
    assert "the last whole one is runs/x/checkpoints/step_1" in said
    assert "make room on the disk, then continue the run with run.resume=true" in said
    assert [p.name for p in (run / "checkpoints").iterdir()] == ["step_1"]
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert main(["train", "run.name=x", "run.resume=true"]) == 0
    assert [row["step"] for row in metrics(run)] == [0, 1, 2, 3]


@pytest.mark.parametrize("writing", ["the model", "the attempts", "the metrics"])
def test_a_full_disk_at_any_other_time(
    writing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    owner, name = {
        "the model": (RunFolder, "save_model"),
        "the attempts": (RunFolder, "save_rollouts"),
        "the metrics": (RunLog, "record"),
    }[writing]
    write, calls = getattr(owner, name), []

    def cramped(*args: Any) -> None:
        calls.append(args)
        with room_for(100 if len(calls) == 3 else resource.RLIM_INFINITY):
            write(*args)

    monkeypatch.setattr(owner, name, cramped)
    assert main(["train", *words("run.name=x", "train.steps=4", "checkpoint.every=1")]) == 2
    said = capsys.readouterr().err
    assert said.startswith("toolwright: no room to write in runs/x: ")
    assert "the last whole checkpoint is runs/x/checkpoints/step_" in said
    assert "make room, then continue with: toolwright train run.name=x run.resume=true" in said
    assert not list(tmp_path.rglob("*.partial"))
    assert (tmp_path / "runs/x/model/model.safetensors").is_file(), "the model before stays"
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert main(["train", "run.name=x", "run.resume=true"]) == 0
    assert [row["step"] for row in metrics(tmp_path / "runs/x")] == [0, 1, 2, 3, 4]


def test_other_errors_of_the_system_are_not_taken_for_a_full_disk(tmp_path: Path) -> None:
    folder = RunFolder.claim(configured(f"run.dir={tmp_path}").run, made_of=["x"])
    with pytest.raises(PermissionError), folder.explaining_write_errors(then="go on"):
        raise PermissionError(13, "Permission denied")
    with (
        pytest.raises(UserError, match="make room, then go on"),
        folder.explaining_write_errors(then="go on"),
    ):
        raise OSError(28, "No space left on device")


CALCULATOR = "tools={calculator: {}}"
AUTO = ("rollout.agent=auto", "model.context=2048")


def test_text_about_tools_counts_as_prompt(refused: Refused) -> None:
    own = (*task_file(row()), "task.held_out=tasks.jsonl", "task.max_prompt_tokens=60", *AUTO)
    said = refused(*own, CALCULATOR)
    assert "every prompt is longer than 60 tokens, the shortest has " in said
    assert "shorten the text about tools with rollout.tool_prompt" in said
    said = refused(*own, CALCULATOR, "task.long_prompts=error")
    assert "task tasks.jsonl:1: its prompt is longer than 60 tokens" in said


def test_no_room_for_an_answer_after_any_prompt(refused: Refused) -> None:
    own = (*task_file(row()), "task.held_out=tasks.jsonl", "rollout.max_total_tokens=5")
    said = refused(*own)
    assert "every prompt is longer than 4 tokens" in said
    assert "raise task.max_prompt_tokens or rollout.max_total_tokens" in refused(*own, "model.context=auto")


def test_a_task_that_offers_a_tool_which_is_not_there(refused: Refused) -> None:
    offering = row() | {"extra_info": {"tools": ["calculater"]}}
    own = (*task_file(offering), "task.held_out=tasks.jsonl", *AUTO)
    assert "task tasks.jsonl:1 offers the tool 'calculater', which is not configured" in refused(
        *own, CALCULATOR
    )


def test_an_mcp_server_that_does_not_start(refused: Refused) -> None:
    said = refused("tools={files: {path: mcp, command: no-such-server, start_timeout_s: 5}}")
    assert "no-such-server" in said


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"name": "gridwrld"}, "unknown environment 'gridwrld'"),
        ({"name": "gridworld", "level": "@*", "veiw": "map"}, "has no setting veiw"),
        ({"name": "gridworld"}, "needs the setting level"),
        ({}, "task tasks.jsonl:1 names no environment"),
    ],
)
def test_an_environment_that_is_not_there(environment: dict[str, str], said: str, refused: Refused) -> None:
    own = task_file(row() | {"extra_info": {"environment": environment}})
    assert said in refused(*own, "task.held_out=tasks.jsonl", "rollout.agent=environment")


@pytest.mark.parametrize("name", ["mps", "meta", "gpu"])
def test_a_device_that_no_run_trains_on(refused: Refused, name: str) -> None:
    said = refused(*task_file(row(), row("2+2=")), "task.held_out_size=1", f"model.device={name}")
    assert f"model.device={name} is no device to train on; write auto, cpu, cuda or cuda:N" in said
