"""Plugins that other packages bring, as pip installs them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
GREET = """
\"\"\"Say hello.\"\"\"
def main(argv):
    print("hello", *argv)
    return 0
"""


def installed(folder: Path, plugin: str) -> dict[str, str]:
    """Put a package with that plugin where Python finds it, and return the environment that does."""
    (folder / "guest.py").write_text(plugin)
    (folder / "guest_command.py").write_text(GREET)
    about = folder / "guest-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: guest\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[toolwright.plugins]\nguest = guest\n")
    return {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}


def toolwright(*words: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "toolwright", *words]
    return subprocess.run(line, env=env, capture_output=True, text=True, timeout=240)


def test_an_installed_package_adds_a_command(tmp_path: Path) -> None:
    env = installed(tmp_path, 'ADDS = {"toolwright.cli": {"greet": "guest_command:main"}}\n')
    assert toolwright("greet", "you", env=env).stdout == "hello you\n"
    assert "greet" in toolwright("--help", env=env).stdout
    assert "Say hello." in toolwright("--help", env=env).stdout


def test_a_plugin_that_cannot_be_imported_is_named(tmp_path: Path) -> None:
    env = installed(tmp_path, "import no_such_package\n")
    done = toolwright("config", env=env)
    assert done.returncode == 2
    assert "the plugin guest cannot be used: ModuleNotFoundError" in done.stderr
    assert "Traceback" not in done.stderr
