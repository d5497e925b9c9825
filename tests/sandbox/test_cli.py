"""The command, and the choice of layers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from toolwright.failures import UserError
from toolwright.sandbox import layers
from toolwright.sandbox.local import command

from .conftest import needs_isolation

ROOT = Path(__file__).parents[2]


def toolwright(*arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), input=text, capture_output=True, text=True, timeout=60)


@needs_isolation
def test_one_file_is_run_and_its_exit_code_kept(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys; print('out'); print('err', file=sys.stderr); sys.exit(4)")
    done = toolwright("run", str(script))
    assert (done.returncode, done.stdout, done.stderr) == (4, "out\n", "err\n")


@needs_isolation
def test_code_comes_from_standard_input_and_limits_from_options() -> None:
    done = toolwright("run", "-", "--timeout-s", "0.5", text="while True: pass")
    assert done.returncode == 128 + 9
    assert "timeout" in done.stderr


def test_a_file_that_is_not_there_is_an_error_for_its_reader() -> None:
    from toolwright.cli.sandbox import main

    with pytest.raises(UserError, match=r"nowhere\.py"):
        main(["run", "/nowhere.py"])


@needs_isolation
def test_the_load_generator_starts_a_server_and_measures_it() -> None:
    line = [sys.executable, str(ROOT / "benchmarks/load.py"), "--seconds", "0.5", "--concurrency", "2"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300)
    assert "runs/s" in done.stdout
    assert "'ok'" in done.stdout


def test_layers_are_chosen_by_name() -> None:
    assert layers.choose("none") == frozenset()
    with pytest.raises(UserError, match="did you mean 'seccomp'"):
        layers.choose("-secomp")
    if not layers.missing():
        assert layers.choose("full") >= set(layers.REQUIRED)
        assert "network" not in layers.choose("-network")
        assert layers.choose("user,pid") == {"user", "pid"}


def test_a_server_without_a_requested_layer_does_not_start_and_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(layers, "missing", lambda: {"landlock": "the kernel was built without it"})
    with pytest.raises(UserError, match="landlock: the kernel was built without it") as refused:
        layers.choose("full")
    assert "--isolation=-landlock" in str(refused.value)
    assert "landlock" not in layers.choose("-landlock")
    assert "landlock" not in layers.choose("available")


def test_the_sandbox_imports_without_torch() -> None:
    code = "import sys, toolwright.sandbox.app, toolwright.sandbox.client; sys.exit('torch' in sys.modules)"
    root = Path(__file__).resolve().parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root).returncode == 0
