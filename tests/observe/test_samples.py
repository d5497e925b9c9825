"""The attempts that a run shows at its end."""

from __future__ import annotations

from pathlib import Path

from toolwright.observe import rollouts
from toolwright.observe.summary import sample_attempts
from toolwright.record import save
from toolwright.trajectory import Segment, Task, Trajectory


def test_the_first_and_the_last_step_are_shown_turn_by_turn(run: Path) -> None:
    lines = sample_attempts(run).splitlines()
    assert lines[0] == "attempts of step 1"
    assert "attempts of step 6" in lines
    assert lines[1:6] == [
        "  What is 12 times 7?  (reward 1; right is 84)",
        "    policy      calculator(12*7)",
        "    tool        result 84  (calculator, 12 ms)  (malformed)",
        "    environment the room is quiet",
        "    policy      The answer is 84.",
    ]


def test_an_attempt_cannot_write_to_the_terminal(run: Path) -> None:
    assert "\x1b" not in sample_attempts(run)


def test_a_long_turn_stays_on_its_line(tmp_path: Path) -> None:
    (tmp_path / "rollouts").mkdir()
    attempt = Trajectory(Task("t", [{"role": "user", "content": "?"}], "1"), "g", reward=0.0)
    attempt.append(Segment("policy", [1], [0.0], text="\n".join(["word"] * 1000)))
    save(tmp_path / "rollouts" / "step_000001.parquet", [attempt])
    lines = sample_attempts(tmp_path).splitlines()
    assert len(lines) == 3
    assert max(map(len, lines)) < 130


def test_a_run_without_rollouts_shows_nothing(tmp_path: Path) -> None:
    assert sample_attempts(tmp_path) == ""


def test_a_step_that_cannot_be_read_hides_no_other(run: Path) -> None:
    first, *_, last = rollouts.files(run).values()
    first.write_bytes(b"half of a file")
    shown = sample_attempts(run)
    assert f"attempts of step 1\n  {first} cannot be read as rollouts: " in shown
    assert f"attempts of step {int(last.stem[-6:])}\n" in shown
