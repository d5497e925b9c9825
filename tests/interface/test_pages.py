"""The pages "write your own": their code is as short as they promise. tests/docs runs it."""

from __future__ import annotations

import re
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


@pytest.mark.parametrize("kind", [*MOST_LINES, "trackers"])
def test_what_you_write_yourself_is_short(kind: str) -> None:
    page = f"write-your-own-{kind}.md" if kind in MOST_LINES else f"{kind}.md"
    own = [code for _, code in blocks(DOCS / page) if module_of(code)]
    assert own
    for code in own:
        assert len(code.splitlines()) <= MOST_LINES.get(kind, 30)
