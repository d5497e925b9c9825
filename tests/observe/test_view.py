"""toolwright view: steps, groups, attempts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from toolwright.cli.view import main
from toolwright.failures import UserError
from toolwright.record import save

from .conftest import make_attempt

View = Callable[..., str]


@pytest.fixture
def view(run: Path, capsys: pytest.CaptureFixture[str]) -> View:
    def shown(*arguments: str) -> str:
        assert main([str(run), *arguments]) == 0
        return capsys.readouterr().out

    return shown


def test_a_run_is_listed_step_by_step(view: View) -> None:
    lines = view().splitlines()
    assert " ".join(lines[0].split()) == "step groups attempts failed reward least most tool calls ended by"
    assert " ".join(lines[1].split()) == "1 2 4 1 0.5 0 1 4 eos 4"
    assert lines[6].split()[0] == "6"


def test_the_command_below_a_listing_can_be_pasted(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    named = run.rename(run.with_name("my run"))
    for words in ([], ["--step", "2"]):
        assert main([str(named), *words]) == 0
        assert f"toolwright view '{named}' --step " in capsys.readouterr().out


def test_a_step_is_listed_group_by_group(view: View) -> None:
    lines = [" ".join(line.split()) for line in view("--step", "2").splitlines()]
    assert lines[0] == "step 2"
    assert "s2-apple 0.5 0 1 What is 12 times 7?" in lines
    assert "s2-berry 0.5 0.5 failed What is 12 times 7?" in lines


def test_long_tasks_and_names_leave_room_for_rewards(run: Path, view: View) -> None:
    attempts = [make_attempt(group="held_out/some.parquet:77", index=i, reward=0.25) for i in range(40)]
    for attempt in attempts:
        attempt.task.prompt[-1]["content"] = "How many? " * 40
    save(run / "rollouts" / "step_000009.parquet", attempts)
    lines = view("--step", "9").splitlines()
    assert lines[2].split()[:3] == ["held_out/some.parquet:77", "0.25", "0.25"]
    assert "How many? How many?" in lines[2]
    assert " ".join(lines).count("0.25") == 41


def test_a_group_shows_its_prompt_once_and_every_attempt(view: View) -> None:
    text = view("--step", "2", "--group", "s2-berry")
    assert text.count("What is 12 times 7?") == 1
    lines = text.splitlines()
    assert "truth       84" in lines
    assert "attempt 0  reward 0.5  3 tokens  2 turns  stop: eos  1 tool call" in lines
    assert "policy      calculator(12*7)" in lines
    assert "tool        result 84" in lines
    assert 'call        calculator({"x": "12*7"}) · 12 ms' in lines
    assert "call        a call that could not be read · malformed" in lines
    assert "environment the room is quiet  (reward 0.25)" in lines
    assert "attempt 1  no reward  3 tokens  2 turns  stop: eos  1 tool call" in lines
    assert "failure     task: the sandbox took more than 30 s" in lines


def test_the_start_of_a_groups_name_is_enough(view: View) -> None:
    assert "s6-apple" in view("--group", "s6-a")


def test_best_and_worst_are_of_the_last_step_unless_one_is_named(view: View) -> None:
    assert "step 6  s6-apple" in view("--best")
    assert "attempt 1  reward 1" in view("--best")
    assert "It is 11." in view("--worst", "--step", "3")
    assert "Half right." in view("--worst", "--group", "s6-berry")  # the failed one has no reward to rank


def test_escape_sequences_are_made_visible(view: View) -> None:
    text = view("--worst")
    assert "␛[2J" in text
    assert "\x1b" not in text


def test_long_texts_lose_their_middle_unless_full(run: Path, view: View) -> None:
    long = make_attempt(group="g", index=0, reward=1.0, answer="x" * 5000)
    save(run / "rollouts" / "step_000009.parquet", [long])
    assert "… 3,500 characters …" in view("--best")
    assert "x" * 5000 in view("--best", "--full")


def test_many_steps_are_cut_unless_full(run: Path, view: View) -> None:
    attempts = [make_attempt(group="g", index=0, reward=1.0)]
    for step in range(7, 40):
        save(run / "rollouts" / f"step_{step:06d}.parquet", attempts)
    text = view()
    assert "15 steps in between are left out" in text
    assert len(text.splitlines()) < 32
    assert len(view("--full").splitlines()) >= 40


def test_colours_tell_the_sources_apart(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    main([str(run), "--best"])
    text = capsys.readouterr().out
    assert "\x1b[36mcalculator(12*7)" in text
    assert "\x1b[33mresult 84" in text
    assert "\x1b[32mthe room is quiet" in text


def test_a_run_is_found_by_its_name_under_runs(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(run.parent.parent)
    assert main([run.name]) == 0
    with pytest.raises(UserError, match="did you mean 'grpo <b>arithmetic'"):
        main(["grpo b arithmetic"])


def test_missing_runs_steps_and_groups_are_errors(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path / "runs" / run.name)
    with pytest.raises(UserError, match="no run at nowhere"):
        main(["nowhere"])
    with pytest.raises(UserError, match="no rollouts"):
        main([str(tmp_path)])
    with pytest.raises(UserError, match="no rollouts of step 77; its steps: 1, 2, 3, 4, 5, 6"):
        main([str(run), "--step", "77"])
    with pytest.raises(UserError, match="no group 'plum' in step 6"):
        main([str(run), "--group", "plum"])
    with pytest.raises(UserError, match="2 groups of step 6 start with 's6'"):
        main([str(run), "--group", "s6"])


def test_a_step_in_which_all_failed_has_no_best(run: Path) -> None:
    save(
        run / "rollouts" / "step_000008.parquet",
        [make_attempt(group="g", index=0, reward=None, failure="the disk is full")],
    )
    with pytest.raises(UserError, match="has a reward: the disk is full"):
        main([str(run), "--best"])


def test_unreadable_rollouts_are_the_users_error(run: Path) -> None:
    (run / "rollouts" / "step_000009.parquet").write_bytes(b"nonsense")
    for arguments in ([], ["--best"]):
        with pytest.raises(UserError, match=r"step_000009\.parquet cannot be read"):
            main([str(run), *arguments])
