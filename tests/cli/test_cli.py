"""`toolwright` as a user meets it: real processes, their exit statuses and what they print."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import toolwright.cli
from toolwright import __version__
from toolwright.cli import main
from toolwright.failures import UserError


def run(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "toolwright", *words], capture_output=True, text=True, cwd=cwd, timeout=400
    )


def seconds(*words: str) -> float:
    """Processor time of one process and of no other: a busy machine must not fail a test."""
    process = subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return used.ru_utime + used.ru_stime


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in which a file is a command."""
    monkeypatch.setattr(toolwright.cli, "__path__", [*toolwright.cli.__path__, str(tmp_path)])
    yield tmp_path
    sys.modules.pop("toolwright.cli.greet", None)


def test_help_lists_every_command_within_a_second() -> None:
    assert seconds("-m", "toolwright", "--help") < 1
    done = run("--help")
    assert done.returncode == 0
    for name in ("config", "eval", "rm", "sft", "train"):
        assert f"  {name} " in done.stdout
    assert "Train by reinforcement learning." in done.stdout


def test_importing_the_package_takes_less_than_half_a_second() -> None:
    assert seconds("-c", "import toolwright") < 0.5


def test_a_mistake_is_a_message_on_stderr_and_status_2(tmp_path: Path) -> None:
    done = run("train", "rollout.sampels=4", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "toolwright: rollout.sampels=4: unknown key; did you mean rollout.samples?\n"
    assert list(tmp_path.iterdir()) == []


def test_config_prints_yaml_and_nothing_else(tmp_path: Path) -> None:
    done = run("config", "rollout.samples=4", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert yaml.safe_load(done.stdout)["rollout"]["samples"] == 4
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [["--help"], ["config", "--explain"], ["trian"]])
def test_an_encoding_without_our_signs_is_no_error(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "toolwright", *words],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert b"Traceback" not in done.stderr
    assert done.returncode == (2 if words == ["trian"] else 0)
    assert done.stdout.isascii()


def test_a_file_that_may_not_be_read_or_written_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied", str(tmp_path / "tasks.parquet"))

    monkeypatch.setattr(toolwright.cli, "_dispatch", refuse)
    assert main(["data", "prepare", "countdown"]) == 2
    assert capsys.readouterr().err == f"toolwright: {tmp_path}/tasks.parquet: Permission denied\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux")
def test_a_full_disk_behind_standard_output_is_one_sentence() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "toolwright", "config"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert (done.returncode, done.stderr) == (2, "toolwright: [Errno 28] No space left on device\n")


def test_a_closed_pipe_is_no_error() -> None:
    done = subprocess.run(
        f"set -o pipefail; {sys.executable} -m toolwright config --explain | head -n 1",
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        text=True,
    )
    assert (done.stderr, done.stdout) == ("", "run:\n")


def test_an_unknown_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trian"]) == 2
    assert capsys.readouterr().err == "toolwright: unknown command 'trian'; did you mean 'train'?\n"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"toolwright {__version__}\n"


def test_a_new_file_is_a_new_command(command: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (command / "greet.py").write_text(
        '"""Say hello.\n\nAt length."""\ndef main(argv):\n    print(argv)\n    return 3\n'
    )
    assert main(["greet", "a", "--b"]) == 3
    assert main(["--help"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("['a', '--b']\n")
    assert "Say hello.\n" in printed


@pytest.mark.parametrize(
    ("raised", "status", "said"),
    [
        (UserError("not so"), 2, "toolwright: not so\n"),
        (KeyboardInterrupt(), 130, "toolwright: interrupted\n"),
    ],
)
def test_how_a_command_may_end(
    raised: BaseException,
    status: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def start(config: object, command: list[str]) -> None:
        raise raised

    monkeypatch.setattr("toolwright.trainer.loop.train", start)
    assert main(["train"]) == status
    assert capsys.readouterr().err == said


def test_a_bug_keeps_its_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def start(config: object, command: list[str]) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("toolwright.trainer.loop.train", start)
    with pytest.raises(ZeroDivisionError):
        main(["train"])
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", ["train", "sft", "rm", "eval", "config"])
def test_help_of_a_command(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"usage: toolwright {name}")
    assert "Examples:" in printed
    assert "small, tiny" in printed
    presets = printed.partition("Config groups")[2].partition("Options:")[0]
    assert max(map(len, presets.splitlines()), default=0) <= 80
    assert "--explain" in printed


@pytest.mark.parametrize("name", ["train", "sft", "rm", "eval"])
def test_a_dry_run_shows_and_starts_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "toolwright.trainer", None)
    assert main([name, "run.seed=3", "--dry-run"]) == 0
    assert "seed: 3" in capsys.readouterr().out


def test_config_shows_the_schema_of_the_named_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "sft", "--json", "steps=7"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["steps"] == {"value": 7, "origin": "command line"}
    assert "update.epochs" not in shown


def test_options_may_stand_anywhere(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "run.seed=3", "--dry-run", "model=small"]) == 0
    assert "preset model/small" in capsys.readouterr().out


def test_a_file_may_be_named_by_its_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("defaults: [train, _self_]\nrun: {seed: 5}\n")
    assert main(["config", "--config-name", str(file)]) == 0
    assert f"# file {file}" in capsys.readouterr().out


def test_cfg_prints_what_hydra_composed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--cfg", "job", "rollout.samples=4"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["rollout"]["samples"] == 4


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--frobnicate"],
            "unrecognized arguments: --frobnicate; `toolwright train --help` lists the options",
        ),
        (["--config-path", "x"], "--config-path is not supported here; use --config-dir"),
    ],
)
def test_an_option_that_does_not_exist(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *words]) == 2
    assert capsys.readouterr().err == f"toolwright: {said}\n"
