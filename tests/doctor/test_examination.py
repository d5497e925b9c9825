"""How checks are made: in order, within their time, and without ending the command."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from toolwright.cli import main
from toolwright.doctor import examination
from toolwright.doctor.checks import Check, in_order
from toolwright.doctor.examination import examine
from toolwright.doctor.result import CheckResult, ok, problem
from toolwright.registry import Entry

from .commands import doctor

PLUGIN = (
    'ADDS = {"toolwright.doctor.checks": {"coffee": "guest_check:coffee", "tea": "guest_check:no_tea"}}\n'
)
COFFEE = """
from toolwright.doctor.result import warning
def coffee():
    return warning("there is none left", "make some")
"""


def entry(name: str, check: Check, *needs: str) -> Entry[Check]:
    return Entry(name, check, frozenset(needs))


def test_a_check_that_fails_says_so_and_the_next_is_made() -> None:
    def fails() -> CheckResult:
        raise ZeroDivisionError("one\ntwo")

    def leaves() -> CheckResult:
        sys.exit(3)

    found = list(examine([entry("a", fails), entry("b", leaves), entry("c", lambda: ok("well"))]))
    assert [one.result.status for one in found] == ["warning", "warning", "ok"]
    assert found[0].result.text == "could not be checked: ZeroDivisionError: one two"


def test_a_check_that_hangs_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "LIMIT_S", 0.2)
    ends = threading.Event()
    try:
        found = list(examine([entry("a", lambda: ok(str(ends.wait()))), entry("b", lambda: ok("well"))]))
    finally:
        ends.set()
    assert [one.result.status for one in found] == ["warning", "ok"]
    assert found[0].result.text == "no answer within 0.2 s"


def test_checks_that_wait_for_the_network_wait_side_by_side() -> None:
    both = threading.Barrier(2)

    def waits() -> CheckResult:
        both.wait(timeout=60)
        return ok("met")

    found = list(examine([entry("a", waits, "network"), entry("b", waits, "network")]))
    assert [one.result.text for one in found] == ["met", "met"]


def test_nothing_imports_torch_before_the_lines_that_need_it() -> None:
    code = (
        "import sys\n"
        "from toolwright.doctor.checks import in_order\n"
        "from toolwright.doctor.examination import examine\n"
        "checks = [one for one in in_order() if 'torch' not in one.needs]\n"
        "print([one.name for one in examine(checks)], 'torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert done.stdout.rstrip().endswith("False"), done.stderr
    needs = ["torch" in one.needs for one in in_order()]
    assert needs == sorted(needs), "the last of all"


def test_a_plugin_adds_a_check_and_a_broken_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "guest.py").write_text(PLUGIN)
    (tmp_path / "guest_check.py").write_text(COFFEE)
    about = tmp_path / "guest-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: guest\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[toolwright.plugins]\nguest = guest\n")
    done = doctor("--only", "coffee,tea,python", PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "warning  coffee                   there is none left" in done.stdout
    assert "→ make some" in done.stdout
    assert "could not be loaded: UserError" in done.stdout


@pytest.mark.parametrize(("found", "status"), [(ok("so"), 0), (problem("so", "do this"), 1)])
def test_the_exit_code_tells_of_problems(
    found: CheckResult,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("toolwright.doctor.command.in_order", lambda: [entry("one", lambda: found)])
    assert main(["doctor"]) == status
    assert f"{found.status:<8} one" in capsys.readouterr().out
    assert main(["doctor", "--json"]) == status
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["name"], row["status"], row["text"]) == ("one", found.status, "so")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--only", "memmory"], "no check is called 'memmory'; did you mean 'memory'?"),
        (["no/such/run"], "no run at no/such/run"),
        (["."], ". is not a run folder: it has neither config.yaml nor metrics.jsonl nor log.txt"),
        (["--with-attempts"], "--with-attempts and --out belong to --report"),
    ],
)
def test_mistakes_are_one_sentence(
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["doctor", *words]) == 2
    assert said in capsys.readouterr().err


def test_a_hostile_message_does_nothing_to_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = problem("\x1b[2J[bold]x[/bold]\nnext", "\x1b]0;t\x07")
    monkeypatch.setattr("toolwright.doctor.command.in_order", lambda: [entry("one", lambda: shown)])
    assert main(["doctor"]) == 1
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert "[bold]x[/bold] next" in printed
