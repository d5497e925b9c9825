"""Progress: live on a terminal, plain anywhere else, and no trouble on either."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any

import pytest

from toolwright.observe import progress as progress_module
from toolwright.observe.progress import Progress


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress_module, "monotonic", clock)
    monkeypatch.setattr(progress_module, "perf_counter", clock)
    return clock


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_plain_lines_show_the_progress_of_the_run(capsys: pytest.CaptureFixture[str], clock: Clock) -> None:
    with Progress(100, title="grpo on arithmetic") as progress:
        progress.step(0, {"held_out/accuracy": 0.125})
        clock.now += 3.0
        progress.step(1, {"reward/mean": 0.4312, "throughput/tokens_per_s": 12_345.0})
    assert lines(capsys) == [
        "grpo on arithmetic, 100 steps",
        "step   0/100  held-out 12.5 %",
        "step   1/100  reward 0.431  held-out 12.5 %  12.3k tokens/s  3.00 s a step  4m 57s left",
    ]


def test_what_precedes_the_first_step_is_not_part_of_the_time_left(clock: Clock) -> None:
    progress = Progress(10, title="t")
    clock.now += 120.0
    progress.begin_steps()
    clock.now += 2.0
    progress.step(1, {})
    assert progress.state.left_s == 18.0


def test_plain_lines_are_few(capsys: pytest.CaptureFixture[str], clock: Clock) -> None:
    """The first step, the last, every evaluation, and at most one line in two seconds between."""
    with Progress(100, title="t") as progress:
        progress.step(0, {"held_out/accuracy": 0.1})
        for step in range(1, 101):
            clock.now += 0.125
            progress.step(step, {"reward/mean": 0.5} | ({"held_out/reward": 0.2} if step == 50 else {}))
    shown = [int(line.split("/")[0].split()[1]) for line in lines(capsys)[1:]]
    assert shown[:3] == [0, 1, 17]
    assert 50 in shown
    assert shown[-1] == 100
    assert len(shown) <= 10


def test_a_run_that_ends_early_shows_the_step_it_came_to(
    capsys: pytest.CaptureFixture[str], clock: Clock
) -> None:
    with Progress(100, title="t") as progress:
        for step in (1, 2, 3):
            progress.step(step, {})
    assert lines(capsys)[-1].startswith("step   3/100")


def test_stages_are_timed_until_the_step_ends(clock: Clock) -> None:
    progress = Progress(2, title="t")
    for seconds in (1.0, 2.0):
        with progress.stage("sample"):
            clock.now += seconds
    assert progress.timings == {"sample": 3.0}
    progress.step(1, {})
    assert progress.timings == {}


def test_time_of_an_inner_stage_is_not_counted_twice(clock: Clock) -> None:
    progress = Progress(1, title="t")
    with progress.stage("sample"):
        clock.now += 1.0
        with progress.stage("score"):
            clock.now += 5.0
        assert progress.state.stages == ["sample"]
    assert progress.timings == {"sample": 1.0, "score": 5.0}


def test_a_stage_that_fails_is_timed_and_left(clock: Clock) -> None:
    progress = Progress(1, title="t")
    with suppress(ValueError), progress.stage("update"):
        clock.now += 1.0
        raise ValueError
    assert progress.timings == {"update": 1.0}
    assert progress.state.stages == []


def test_messages_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(1, title="t") as progress:
        progress.line("[tool] 3 attempts failed")
    progress.line("after")
    assert lines(capsys)[1:] == ["[tool] 3 attempts failed", "after"]


def test_values_that_are_not_finite_or_not_numbers_are_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(1, title="t") as progress:
        progress.step(
            1, {"reward/mean": float("nan"), "held_out/accuracy": None, "throughput/tokens_per_s": "x"}
        )
    assert "reward" not in lines(capsys)[-1]


def test_a_step_costs_less_than_a_millisecond_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    values: dict[str, Any] = {f"group/name_{n}": 0.5 for n in range(40)} | {"reward/mean": 0.5}
    with Progress(2000, title="t") as progress:
        began = time.process_time()
        for step in range(1, 1001):
            with progress.stage("sample"), progress.stage("score"):
                pass
            progress.step(step, values)
        assert time.process_time() - began < 1.0


@pytest.mark.parametrize(
    ("name", "value"), [("NO_COLOR", "1"), ("CI", "true"), ("TERM", "dumb")], ids=["NO_COLOR", "CI", "dumb"]
)
def test_no_color_and_dumb_terminals_get_plain_lines(name: str, value: str) -> None:
    assert "\x1b" not in on_a_terminal("p.step(1, {'reward/mean': 0.5})", {name: value})


def test_the_live_display_shows_stage_step_and_reward_and_keeps_messages() -> None:
    shown = on_a_terminal(
        "for s in (1, 2, 3): p.step(s, {'reward/mean': s / 4, 'held_out/accuracy': 0.5})\n"
        "    p.line('[note] a message')\n"
        "    print('a print')\n"
        "    with p.stage('checkpoint'): time.sleep(3)"
    )
    for part in ("grpo", "checkpoint", "3/10", "30%", "reward 0.75", "held-out 50.0 %", "▁▄█", "done in"):
        assert part in shown
    assert "[note] a message" in shown
    assert "a print" in shown
    assert_cursor_is_back(shown)


@pytest.mark.parametrize("error", ["RuntimeError", "KeyboardInterrupt"])
def test_the_terminal_is_whole_after_an_exception(error: str) -> None:
    shown = on_a_terminal(f"raise {error}")
    assert "stopped in" in shown
    assert_cursor_is_back(shown)
    assert error in shown.split("\x1b[?25h")[-1]


def assert_cursor_is_back(shown: str) -> None:
    assert "\x1b[?25l" in shown
    assert shown.rfind("\x1b[?25h") > shown.rfind("\x1b[?25l")


def on_a_terminal(body: str, environment: dict[str, str] | None = None) -> str:
    """What a terminal is sent by a small run in a process of its own."""
    script = (
        "import time\nfrom toolwright.observe.progress import Progress\n"
        f"with Progress(10, title='grpo') as p:\n    {body}\n"
    )
    kept = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "CI")}
    kept |= {"TERM": "xterm", "COLUMNS": "100", "LINES": "30", "PYTHONIOENCODING": "utf-8"} | (
        environment or {}
    )
    ours, theirs = pty.openpty()
    process = subprocess.Popen([sys.executable, "-c", script], stdout=theirs, stderr=theirs, env=kept)
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 65536):
            shown += part
    except OSError:  # Linux says so when the other end is closed
        pass
    finally:
        os.close(ours)
        process.wait(timeout=240)
    return shown.decode()
