"""The examples run from their files, and the launch scripts ask for settings that exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
LADDER = sorted(EXAMPLES.glob("0*.py"))
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(EXAMPLES.parent),
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    "OMP_NUM_THREADS": "1",
}
FEW = {  # the arguments that make each short
    "02_python_interface": ("2", "2"),
    "03_own_reward": ("2", "2"),
    "04_own_tool": ("2", "2"),
    "05_own_environment": ("2",),
    "06_unmodified_agent": ("2", "2"),
    "07_search_agent": ("2", "2"),
    "08_ppo_on_ray": ("1", "2"),
}


def test_the_ladder_has_eight_rungs() -> None:
    assert [path.name[:2] for path in LADDER] == [f"{number:02d}" for number in range(1, 9)]


@pytest.mark.slow
@pytest.mark.parametrize("name", FEW)
def test_an_example_runs(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py"), *FEW[name]],
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "runs").is_dir()


@pytest.mark.parametrize("script", sorted(EXAMPLES.glob("launch/*.sh")), ids=lambda script: script.name)
def test_a_launch_script_asks_for_settings_that_exist(script: Path, tmp_path: Path) -> None:
    wanted = {name: f"some/{name}" for name in re.findall(r"\$\{([A-Z]+):\?", script.read_text())}
    done = subprocess.run(
        ["bash", str(script), "--dry-run"],
        cwd=tmp_path,
        env={**ENVIRONMENT, **wanted},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert script.stem.rpartition("_")[0].removesuffix("_r1") in done.stdout
    assert os.access(script, os.X_OK)
