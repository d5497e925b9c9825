"""The pages "write your own": their code runs as it stands, and is as short as they promise."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
MOST_LINES = {"estimator": 50, "tool": 30, "environment": 60, "reward": 30}


def blocks(page: Path) -> list[tuple[str, str]]:
    """(language, code) of every block."""
    return re.findall(
        r"^```(python|sh)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )


def module_of(code: str) -> str | None:
    """The file that a block is, if its first line names one."""
    named = re.match(r"# (\w+\.py)\n", code)
    return named[1] if named else None


@pytest.mark.parametrize("kind", MOST_LINES)
def test_what_you_write_yourself_is_short(kind: str) -> None:
    own = [code for _, code in blocks(DOCS / f"write-your-own-{kind}.md") if module_of(code)]
    assert own
    for code in own:
        assert len(code.splitlines()) <= MOST_LINES[kind]


@pytest.mark.parametrize("page", [*(f"write-your-own-{kind}" for kind in MOST_LINES), "python"])
@pytest.mark.slow
def test_the_code_of_a_page_runs(page: str, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": f"{DOCS.parent}",
    }
    for number, (language, code) in enumerate(blocks(DOCS / f"{page}.md")):
        if name := module_of(code):
            (tmp_path / name).write_text(code)
            continue
        script = tmp_path / f"block_{number}.py"
        script.write_text(code)
        line = [sys.executable, str(script)] if language == "python" else ["sh", "-ec", code]
        done = subprocess.run(
            line, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=500
        )
        assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
