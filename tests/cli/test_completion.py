"""The completion scripts, by what the shells make of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from toolwright.cli import commands, main

TRY = """
source {script}
COMP_LINE=$1 COMP_POINT=${{#1}}
_toolwright 2> {errors}
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Printed by the command in a process that must not load torch."""
    code = (
        "import sys; from toolwright.cli import main; main(['completion', 'bash']); "
        "sys.exit('torch' in sys.modules and 'torch was imported')"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert printed.returncode == 0, printed.stderr
    file = tmp_path_factory.mktemp("completion") / "toolwright.bash"
    file.write_text(printed.stdout)
    return file


def completed(script: Path, line: str, cwd: Path) -> list[str]:
    """What bash offers at the end of the line. It finds no program: a completion starts none."""
    bash = shutil.which("bash")
    assert bash is not None
    errors = cwd / "errors.txt"
    ran = subprocess.run(
        [bash, "--norc", "-c", TRY.format(script=script, errors=errors), "bash", line],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "PATH": str(cwd)},
        timeout=60,
    )
    assert not ran.stderr
    said = errors.read_text()
    assert "command not found" not in said
    assert "No such file" not in said
    return ran.stdout.split()


needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")


@needs_bash
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("toolwright tra", ["train"]),
        ("toolwright train rollout.sam", ["rollout.samples="]),
        ("toolwright train task=su", ["sums"]),
        ("toolwright train task=sums algorithm=dr", ["dr_grpo"]),
        ("toolwright train engine.name=htt", ["http"]),
        ("toolwright train run.resume=t", ["true"]),
        ("toolwright train --multi", ["--multirun"]),
        ("toolwright eval model=sm", ["small"]),
        ("toolwright sft demon", ["demonstrations="]),
        ("toolwright config sft demon", ["demonstrations="]),
        ("toolwright workflow sea", ["search"]),
        ("toolwright workflow search search.sel", ["search.select="]),
        ("toolwright data pre", ["prepare"]),
        ("toolwright runs prune --check", ["--checkpoints"]),
        ("toolwright replay somewhere algorithm=gs", ["gspo"]),
        ("toolwright completion f", ["fish"]),
        ("toolwright train nonsense", []),
    ],
)
def test_bash_completes(script: Path, line: str, offered: list[str], tmp_path: Path) -> None:
    assert completed(script, line, tmp_path) == offered


@needs_bash
def test_bash_completes_every_command_and_the_names_of_runs(script: Path, tmp_path: Path) -> None:
    assert set(commands()) < set(completed(script, "toolwright ", tmp_path))
    for name in ("runs/plain", "runs/sweep/first"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.yaml").touch()
    assert completed(script, "toolwright view pl", tmp_path) == ["plain"]
    assert completed(script, "toolwright runs compare plain swe", tmp_path) == ["sweep/first"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_can_read_their_script(
    shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", shell]) == 0
    script = tmp_path / "script"
    script.write_text(capsys.readouterr().out)
    assert "rollout.samples=" in script.read_text()
    if shutil.which(shell):
        read = subprocess.run([shell, "-n", str(script)], capture_output=True, text=True, timeout=60)
        assert (read.returncode, read.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("fish") is None, reason="there is no fish here")
def test_fish_completes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "fish"]) == 0
    (tmp_path / "script.fish").write_text(capsys.readouterr().out)
    ask = "source script.fish; complete -C 'toolwright train task=su'"
    ran = subprocess.run(["fish", "-N", "-c", ask], capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert "task=sums" in ran.stdout.split()


@pytest.mark.parametrize("words", [[], ["tcsh"], ["bash", "zsh"]])
def test_another_shell_is_a_mistake_in_one_sentence(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", *words]) == 2
    assert "expected one shell: toolwright completion bash | zsh | fish\n" in capsys.readouterr().err
