"""`toolwright doctor` in a process of its own, on a machine that something is made wrong with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def doctor(
    *words: str,
    cwd: Path | None = None,
    broken: Callable[[], None] | None = None,
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """`broken` is called in the process before the command is started in it."""
    path = os.pathsep.join(filter(None, [environment.pop("PYTHONPATH", ""), str(ROOT)]))
    return subprocess.run(
        [sys.executable, "-m", "toolwright", "doctor", *words],
        cwd=cwd,
        preexec_fn=broken,
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=240,
    )


def checked(
    name: str, *, cwd: Path | None = None, broken: Callable[[], None] | None = None, **environment: str
) -> dict[str, Any]:
    """What one check says, and the exit code of the command that made it."""
    done = doctor("--only", name, "--json", cwd=cwd, broken=broken, **environment)
    assert done.stdout, done.stderr
    (row,) = json.loads(done.stdout)
    return {**row, "exit_code": done.returncode}
