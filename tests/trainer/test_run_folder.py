"""A run folder is a contract: complete enough to repeat, judge and use what the run has learned."""

from __future__ import annotations

import json
import os
import platform
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from toolwright import __version__
from toolwright.cli import main
from toolwright.config import schema, yaml_file
from toolwright.failures import UserError
from toolwright.models import huggingface
from toolwright.models.attention import PackedAttention
from toolwright.runtime.host import born
from toolwright.trainer.loop import train
from toolwright.trainer.run_folder import RunFolder

from .runs import metrics, rollouts, trained

TRAINED = ("train.steps=4", "eval.every=2", "checkpoint.every=2", "rollout.prompts=8", "rollout.samples=8")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("runs"), *TRAINED, "run.name=x")


def test_everything_is_there(run: Path) -> None:
    found = {str(path.relative_to(run)) for path in run.rglob("*") if path.is_file()}
    assert found == {
        "config.yaml",
        "command.txt",
        "metrics.jsonl",
        "evaluations.jsonl",
        "log.txt",
        "report.html",
        "timeline.json",
        "tokenizer.json",
        *(f"rollouts/step_{step:06d}.parquet" for step in (1, 2, 3, 4)),
        *(
            f"checkpoints/step_{step}/{name}"
            for step in (2, 4)
            for name in ("checksums.json", "state.json", "tensors.pt")
        ),
        *(f"model/{name}" for name in ("config.json", "model.safetensors")),
        *(f"model/{name}" for name in ("tokenizer.json", "tokenizer_config.json")),
    }


def test_the_stored_configuration_repeats_the_run(run: Path, tmp_path: Path) -> None:
    config = yaml_file.from_yaml(run / "config.yaml")
    assert isinstance(config, schema.Config)
    again = train(
        config.model_copy(update={"run": config.run.model_copy(update={"dir": str(tmp_path)})}), command=["x"]
    )
    for mine, other in zip(metrics(again), metrics(run), strict=True):
        clocks = ("time/", "throughput/", "use/")
        assert {k: v for k, v in mine.items() if not k.startswith(clocks)} == {
            k: v for k, v in other.items() if not k.startswith(clocks)
        }


def test_the_command_is_kept_with_all_that_it_ran_on(run: Path) -> None:
    text = (run / "command.txt").read_text()
    for part in (
        "toolwright train",
        __version__,
        platform.python_version(),
        torch.__version__,
        "cores",
        "git ",
    ):
        assert part in text


def test_metrics_have_a_line_for_every_step(run: Path) -> None:
    rows = metrics(run)
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4]
    assert [row["step"] for row in rows if "held_out/reward" in row] == [0, 2, 4]
    for row in rows[1:]:
        stages = [row[f"time/{stage}_s"] for stage in ("sample", "score", "update", "record")]
        assert 0 < sum(stages) <= row["time/total_s"] + 1e-6
        for name in ("reward/mean", "policy/loss", "policy/grad_norm", "policy/entropy", "policy/lr"):
            assert name in row
        for name in ("gap/abs_max", "gap/abs_mean", "gap/kl", "throughput/tokens_per_s", "weights_version"):
            assert name in row


def test_rollouts_tell_what_the_agent_did(run: Path) -> None:
    for step, attempts in rollouts(run).items():
        assert len(attempts) == 64
        for attempt in attempts:
            assert [segment.source for segment in attempt.segments] == ["prompt", "policy"]
            prompt, said = attempt.segments
            assert prompt.text == f"<|user|>{attempt.task.id}<|end|><|assistant|>"
            assert len(said.tokens) == len(said.log_probs) > 0
            assert attempt.weights_version == step - 1
            assert attempt.reward is not None
            assert attempt.stop in ("eos", "length")
            assert attempt.timings["attempt_s"] > 0


def test_the_batch_arithmetic_is_said_at_the_start(run: Path) -> None:
    log = (run / "log.txt").read_text()
    assert "8 prompts × 8 samples = 64 trajectories a step → 1 epoch × 1 minibatch of 64 → 1 update" in log


def test_transformers_loads_the_model_and_agrees_with_it(run: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = (
        AutoModelForCausalLM.from_pretrained(run / "model"),
        AutoTokenizer.from_pretrained(run / "model"),
    )
    attempt = rollouts(run)[4][0]
    messages = attempt.task.prompt
    tokens = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert tokens == attempt.segments[0].tokens
    ours = huggingface.load(run / "model")
    attend = PackedAttention([len(attempt.tokens)], torch.device("cpu"))
    with torch.no_grad():
        theirs = model(torch.tensor([attempt.tokens])).logits[0]
        mine = ours.head(ours.hidden(torch.tensor(attempt.tokens), attend.positions, attend))
    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


def test_evaluating_the_run_gives_its_last_held_out_figures(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["eval", f"run.name={run.name}", f"run.dir={run.parent}", "run.resume=true", "--json"]
    assert main(line) == 0
    figures = json.loads(capsys.readouterr().out)
    last = metrics(run)[-1]
    assert figures["held_out/reward"] > 0, "something has been learned, or any model would do"
    for name in ("held_out/reward", "held_out/accuracy", "held_out/tokens_mean"):
        assert figures[name] == last[name]


def test_sampled_evaluations_are_repeatable_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(tmp_path, "run.name=x", "eval.temperature=1", "eval.samples=4")
    capsys.readouterr()
    assert main(["eval", "run.name=x", f"run.dir={tmp_path}", "run.resume=true", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["held_out/reward"] == metrics(run)[-1]["held_out/reward"]
    assert figures["held_out/attempts"] == 8 * 4


def test_a_run_without_a_name_gets_a_plain_one() -> None:
    run = schema.RunConfig(dir="runs")
    names = {
        ("grpo", "arithmetic"): "grpo-arithmetic",
        ("grpo", "/some/where/letters.py:tasks"): "grpo-letters",
        ("sft", "package.module:tasks"): "sft-package.module",
    }
    for made_of, name in names.items():
        path = RunFolder.claim(run, made_of=made_of).path
        assert path.parent == Path("runs")
        assert re.fullmatch(rf"{name}-\d{{8}}-\d{{6}}", path.name)


def test_claiming_a_folder_writes_nothing(tmp_path: Path) -> None:
    RunFolder.claim(schema.RunConfig(dir=str(tmp_path / "runs"), name="x"), made_of=["y"])
    assert list(tmp_path.iterdir()) == []


def test_two_runs_begun_in_the_same_second_have_folders_of_their_own(tmp_path: Path) -> None:
    """As far as one of them has begun."""
    run = schema.RunConfig(dir=str(tmp_path))
    names = set()
    for _ in range(3):
        path = RunFolder.claim(run, made_of=["x"]).path
        path.mkdir()
        names.add(path)
    assert len(names) == 3


def test_two_runs_that_begin_at_once_do_not_share_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "strftime", lambda *_: "20260101-000000")
    named = schema.Config(run=schema.RunConfig(dir=str(tmp_path), name="x"))
    first, second = (RunFolder.claim(named.run, made_of=()) for _ in range(2))
    first.begin(named, command=["a"])
    with pytest.raises(
        UserError, match=r"another run has started in .*/x in the meantime; choose another run\.name"
    ):
        second.begin(named, command=["b"])
    unnamed = schema.Config(run=schema.RunConfig(dir=str(tmp_path)))
    first, second = (RunFolder.claim(unnamed.run, made_of=("grpo", "sums")) for _ in range(2))
    first.begin(unnamed, command=["a"])
    second.begin(unnamed, command=["b"])
    assert (first.path.name, second.path.name) == (
        "grpo-sums-20260101-000000",
        "grpo-sums-20260101-000000-2",
    )
    assert "\na\n" in (first.path / "command.txt").read_text()
    assert "\nb\n" in (second.path / "command.txt").read_text()
    second.begin(unnamed, command=["b"])  # a second loop over the same trainer


def test_a_run_that_still_goes_is_not_resumed(tmp_path: Path) -> None:
    config = schema.Config(run=schema.RunConfig(dir=str(tmp_path), name="x"))
    RunFolder.claim(config.run, made_of=()).begin(config, command=["toolwright", "train"])
    resumed = config.run.model_copy(update={"resume": True})
    RunFolder.claim(resumed, made_of=())  # this process itself may go on
    noted = tmp_path / "x/command.txt"
    with subprocess.Popen(["sleep", "60"]) as other:
        lines = noted.read_text().splitlines()
        noted.write_text(
            "\n".join(
                [*lines[:-1], f"process {other.pid} on {socket.gethostname()}, begun {born(other.pid)}\n"]
            )
        )
        with pytest.raises(UserError, match=f"/x is in use: process {other.pid} still runs it"):
            RunFolder.claim(resumed, made_of=())
        (tmp_path / "x/metrics.jsonl").write_text('{"step": 1}\n')
        (tmp_path / "x/report.html").write_text("over")  # the process lives on, as that of a notebook does
        RunFolder.claim(resumed, made_of=())
        (tmp_path / "x/report.html").unlink()
        other.kill()
        os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)  # it is over, and nobody has noticed
        RunFolder.claim(resumed, made_of=())


def test_the_log_takes_any_letter_in_any_locale(tmp_path: Path) -> None:
    code = "import pathlib, sys; from toolwright.trainer.run_folder import RunFolder; "
    code += "RunFolder(pathlib.Path(sys.argv[1])).log('16 \\u00d7 8')"
    plain = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], env={**os.environ, **plain}, check=True)
    assert (tmp_path / "log.txt").read_text(encoding="utf-8").endswith(" 16 × 8\n")
