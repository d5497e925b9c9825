"""Texts of attempts, names of runs, groups and tasks: nothing in them is obeyed by whoever shows them."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolwright.cli import main as command
from toolwright.observe.report import write_report

from .conftest import OBEYED
from .test_report import Page


def test_nothing_hostile_reaches_the_report(hostile_run: Path) -> None:
    text = write_report(hostile_run).read_text(encoding="utf-8")
    assert OBEYED.findall(text) == []
    assert "⟨U+202E⟩txet" in text
    assert not Page(text).all("script")


@pytest.mark.parametrize(
    "arguments",
    [[], ["--step", "1"], ["--group", ""], ["--best"], ["--step", "1", "--full"], ["--best", "--full"]],
)
def test_nothing_hostile_reaches_the_terminal(
    hostile_run: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["view", str(hostile_run), *arguments]) == 0
    shown = capsys.readouterr()
    assert OBEYED.findall(shown.out) == []
    assert shown.err == ""


@pytest.mark.parametrize("arguments", [["--step", "9"], ["--group", "\x1b[2J"], ["--step", "2", "--worst"]])
def test_nothing_hostile_reaches_the_terminal_in_an_error(
    hostile_run: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    if "--worst" in arguments:
        from toolwright.record import save

        from .conftest import hostile_attempt

        failed = hostile_attempt(1)
        failed.reward = None
        save(hostile_run / "rollouts" / "step_000002.parquet", [failed])
    assert command(["view", str(hostile_run), *arguments]) == 2
    assert OBEYED.findall(capsys.readouterr().err) == []
