"""The interactive viewer, driven by keys over a real run folder."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest
from textual.pilot import Pilot

from toolwright.models.tokenizer import Tokenizer
from toolwright.observe.terminal.app import ExportScreen, ViewerApp
from toolwright.observe.terminal.attempt import AttemptScreen
from toolwright.observe.terminal.attempts import AttemptsScreen
from toolwright.observe.terminal.group import GroupScreen
from toolwright.observe.terminal.screen import KeysScreen, ViewerScreen
from toolwright.observe.terminal.steps import StepsScreen
from toolwright.record import TokenValues, save
from toolwright.trajectory import Segment, Task, Trajectory

from .conftest import OBEYED, make_attempt, make_step

Play = Callable[[ViewerApp, Pilot[None]], Awaitable[None]]
KEYS = {" ": "space", "<": "less_than_sign", "=": "equals_sign", "~": "tilde", ".": "full_stop", "-": "minus"}
PATIENCE_S = 60


def view(run: Path, play: Play, *, size: tuple[int, int] = (100, 30)) -> None:
    async def main() -> None:
        app = ViewerApp(run)
        async with app.run_test(size=size) as pilot:
            await until(pilot, lambda: len(app.run_folder.table.parts) == len(app.run_folder.files) > 0)
            await play(app, pilot)

    asyncio.run(main())


async def until(pilot: Pilot[None], holds: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end, "it did not happen in time"
        await pilot.pause(0.02)
    await pilot.pause()


async def type_in(pilot: Pilot[None], text: str) -> None:
    await pilot.press(*(KEYS.get(letter, letter) for letter in text), "enter")
    await pilot.pause()


def text_of(app: ViewerApp) -> str:
    """What is on the screen, line by line."""
    strips = app.screen._compositor.render_strips(app.size)
    return "\n".join("".join(piece.text for piece in strip) for strip in strips)


def lines_of(app: ViewerApp) -> list[str]:
    return [" ".join(line.split()) for line in text_of(app).splitlines()]


def here(app: ViewerApp, kind: type[ViewerScreen]) -> ViewerScreen:
    assert isinstance(app.screen, kind), app.screen
    return app.screen


def test_the_steps_are_shown_with_the_curve_of_the_reward(run: Path) -> None:
    async def play(app: ViewerApp, pilot: Pilot[None]) -> None:
        lines = lines_of(app)
        assert lines[0].startswith("grpo <b>arithmetic 6 steps 24 attempts last step")
        assert lines[1].startswith("reward 0.5 → 0.5, best 0.5 ▁▁▁▁▁▁")
        assert lines[2] == "step groups attempts failed reward least most tools ended by"
        assert lines[3] == "1 2 4 1 0.5 0 1 4 eos 4"
        assert lines[8] == "▸ 6 2 4 1 0.5 0 1 4 eos 4"

    view(run, play)


def test_new_steps_of_a_running_run_appear(run: Path) -> None:
    async def play(app: ViewerApp, pilot: Pilot[None]) -> None:
        save(run / "rollouts" / "step_000007.parquet", make_step(7))
        await until(pilot, lambda: "▸ 7 2 4 1 0.5 0 1 4 eos 4" in lines_of(app))
        await pilot.press("a")
        screen = here(app, AttemptsScreen)
        assert isinstance(screen, AttemptsScreen)
        await pilot.press("j", "j")
        chosen = screen.chosen()
        save(run / "rollouts" / "step_000008.parquet", make_step(8))
        await until(pilot, lambda: len(screen.places) == 32)
        assert screen.chosen() == chosen, "the cursor stays on its attempt"

    view(run, play)


def test_a_step_opens_its_attempts_and_an_attempt_its_turns(run: Path) -> None:
    async def play(app: ViewerApp, pilot: Pilot[None]) -> None:
        await pilot.press("k", "enter", "down")
        assert lines_of(app)[0] == "step 5 4 attempts"
        assert "▸ s5-apple 1 1 eos 3 2 1 What is 12 times 7?" in lines_of(app)
        assert "s5-berry 1 failed eos 3 2 1 What is 12 times 7?" in lines_of(app)
        await pilot.press("enter")
        lines = lines_of(app)
        assert lines[0] == "step 5 s5-apple attempt 1 reward 1 What is 12 times 7?"
        assert "attempt 1 · reward 1 · 3 tokens · 2 turns · stop: eos · 1 tool call" in lines
        assert "policy calculator(12*7)" in lines
        assert 'call calculator({"x": "12*7"}) · 12 ms' in lines
        assert "call a call that could not be read · malformed" in lines
        assert "environment the room is quiet (reward 0.25)" in lines
        assert "truth 84" in lines
        await pilot.press("n", "n")
        assert "failure task: the sandbox took more than 30 s" in lines_of(app)
        await pilot.press("p")
        assert "policy Half right." in lines_of(app)
        await pilot.press("q", "escape")
        here(app, StepsScreen)

    view(run, play)


def test_attempts_are_sorted_by_a_column(run: Path) -> None:
    async def play(app: ViewerApp, pilot: Pilot[None]) -> None:
        await pilot.press("enter", "l", "l", "s")
        screen = here(app, AttemptsScreen)
        assert isinstance(screen, AttemptsScreen)

        def rewards() -> list[float]:
            return [float(value) for value in app.run_folder.table.numbers["reward"][screen.places]]

        assert rewards()[:3] == [0.0, 0.5, 1.0]
        assert "▲reward" in text_of(app)
        await pilot.press("s")
        assert rewards()[:3] == [1.0, 0.5, 0.0]
        assert np.isnan(rewards()[3]), "what has no reward is last in either order"

    view(run, play)


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("reward<0.4", 6),
        ("reward<0.6 failed=no", 12),
        ("stop=length", 0),
        ("tools<1", 0),
        ("group~apple step=3", 2),
        ("half", 6),
        ("reward=0.5 half", 6),
        ('"right." reward<0.4', 0),
        ("answer times", 12),
    ],
)
def test_attempts_are_filtered_and_searched(run: Path, written: str, found: int) -> None:
    async def play(app: ViewerApp, pilot: Pilot[None]) -> None:
        await pilot.press("slash")
        screen = here(app, AttemptsScreen)
        assert isinstance(screen, AttemptsScreen)
        screen.input.value = written
        await pilot.press("enter")
        await until(pilot, lambda: len(screen.places) == found and lines_of(app)[0].endswith(written))

    view(run, play)


def test_a_filter_that_cannot_be_read_says_why_and_can_be_mended(run: Path) -> None:
    async def play(app: ViewerApp, pilot: Pilot[None]) -> None:
        await pilot.press("a", "slash")
        await type_in(pilot, "rewrd<0.5")
        assert "did you mean 'reward'?" in lines_of(app)[0]
        await pilot.press(*["backspace"] * 9)
        await type_in(pilot, "reward<0.4")
        assert lines_of(app)[0] == "all steps 6 attempts filter: reward<0.4"

    view(run, play)


def test_a_group_is_shown_side_by_side(run: Path) -> None:
    async def play(app: ViewerApp, pilot: Pilot[None]) -> None:
        await pilot.press("enter", "c")
        here(app, GroupScreen)
        lines = lines_of(app)
        assert "policy │ policy" in lines
        assert any(line.startswith("It is 11.") and line.endswith("The answer is 84.") for line in lines)
        await pilot.press("l", "enter")
        assert lines_of(app)[0].startswith("step 6 s6-apple attempt 1 reward 1")

    view(run, play)


def test_one_task_is_followed_through_the_steps(run: Path) -> None:
    for step in (7, 8, 9):
        save(
            run / "rollouts" / f"step_{step:06d}.parquet", [make_attempt(group="same", index=0, reward=step)]
        )

    async def play(app: ViewerApp, pilot: Pilot[None]) -> None:
        await pilot.press("enter", "t")
        assert lines_of(app)[0] == "task same, step by step 3 attempts"
        assert [line.split()[-13] for line in lines_of(app)[2:5]] == ["7", "8", "9"]

    view(run, play)


@pytest.mark.parametrize("name", ["found.md", "found.jsonl"])
def test_the_viewer_exports_what_it_shows(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "found.jsonl").write_text("something else\n")

    async def play(app: ViewerApp, pilot: Pilot[None]) -> None:
        await pilot.press("a", "slash")
        await type_in(pilot, "reward=0.5")
        await pilot.press("e")
        assert isinstance(app.screen, ExportScreen)
        app.screen.input.value = name
        await pilot.press("enter")
        if name == "found.jsonl":
            assert "found.jsonl is there already" in text_of(app)
            await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, AttemptsScreen))

    view(run, play)
    text = (tmp_path / name).read_text()
    assert text.count("Half right.") == 6
    if name == "found.jsonl":
        assert [json.loads(line)["step"] for line in text.splitlines()] == [1, 2, 3, 4, 5, 6]


def test_a_file_that_cannot_be_written_says_why_and_another_can_be_named(run: Path, tmp_path: Path) -> None:
    async def play(app: ViewerApp, pilot: Pilot[None]) -> None:
        await pilot.press("enter", "enter", "e")
        screen = app.screen
        assert isinstance(screen, ExportScreen)
        screen.input.value = "attempt.txt"
        await pilot.press("enter")
        await until(pilot, lambda: "FILE.md (Markdown)" in screen.note.text)
        screen.input.value = str(tmp_path / "attempt.md")
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, AttemptScreen))

    view(run, play)
    assert "What is 12 times 7?" in (tmp_path / "attempt.md").read_text()


def test_every_screen_shows_its_keys(run: Path) -> None:
    async def play(app: ViewerApp, pilot: Pilot[None]) -> None:
        for key, word in (
            ("", "all steps"),
            ("enter", "filter"),
            ("enter", "tokens"),
            ("c", "attempt before"),
        ):
            await pilot.press(*([key] if key else []), "question_mark")
            assert isinstance(app.screen, KeysScreen)
            assert word in text_of(app)
            assert "back, and out" in text_of(app)
            await pilot.press("escape")

    view(run, play, size=(80, 24))


def with_tokens(run: Path) -> list[str]:
    """A run whose tokens can be read, and were learned from. Returns the pieces of the answer."""
    tokenizer = Tokenizer.bytes()
    tokenizer.save(run / "model")
    task = Task("t", [{"role": "user", "content": "Which?"}], ground_truth="é")
    attempt = Trajectory(task, "g", 0, reward=1.0, stop="eos")
    attempt.append(Segment("prompt", tokenizer.encode("Which?"), text="Which?"))
    answer = tokenizer.encode("so é!")
    attempt.append(Segment("policy", answer, [-0.1] * len(answer), text="so é!"))
    attempt.append(Segment("tool", tokenizer.encode("ok"), text="ok"))
    attempt.append(Segment("policy", tokenizer.encode("\n"), [-2.0], text="\n"))
    size = attempt.sampled_tokens
    values = TokenValues(
        advantages=np.linspace(-1, 1, size, dtype=np.float32),
        log_probs=np.full(size, -0.2, np.float32),
        entropies=np.linspace(0, 2, size, dtype=np.float32),
    )
    save(run / "rollouts" / "step_000009.parquet", [attempt], [values])
    return ["s", "o", " ", "", "é", "!"]


def test_tokens_are_coloured_by_what_is_known_of_them(run: Path) -> None:
    pieces = with_tokens(run)

    async def play(app: ViewerApp, pilot: Pilot[None]) -> None:
        await pilot.press("enter", "enter", "v")
        screen = here(app, AttemptScreen)
        assert isinstance(screen, AttemptScreen)
        pane = screen.tokens
        assert "prompt" in lines_of(app)
        assert "so ·é!" in lines_of(app)
        assert "⏎" in lines_of(app)
        assert lines_of(app)[1].startswith("[probability] 7/15 id 88 “s”")
        assert "prob 0.905 learner 0.819 gap -0.1 entropy 0 adv -1" in lines_of(app)[1]
        colours = {}
        for measure in ("probability", "advantage", "entropy", "gap", "mask"):
            assert pane.measure == measure
            line = next(line for line in pane.lines if line[0].text == "s")
            assert len(line) == len(pieces)
            colours[measure] = [piece.style.bgcolor if piece.style else None for piece in line]
            await pilot.press("m")
        assert colours["advantage"][0] != colours["advantage"][-1], "below and above zero"
        assert colours["entropy"][0] is None
        assert colours["entropy"][-1] is not None
        assert len({str(colour) for colour in colours["mask"]}) == 1
        assert pane.measure == "probability"
        await pilot.press("l", "l")
        assert " 9/15 " in lines_of(app)[1]
        await pilot.press("j", "j")
        assert " 15/15 " in lines_of(app)[1]
        await pilot.press("v")
        assert "policy so é!" in lines_of(app)

    view(run, play)


def test_without_a_tokenizer_and_the_learner_tokens_are_numbers(run: Path) -> None:
    async def play(app: ViewerApp, pilot: Pilot[None]) -> None:
        await pilot.press("enter", "enter", "2")
        assert lines_of(app)[1].startswith("[advantage] (not kept by this run) 3/7 id 3")
        assert "3 4" in lines_of(app)

    view(run, play)


@pytest.mark.parametrize("size", [(80, 24), (30, 8)])
def test_small_terminals_and_no_colours_are_enough(
    run: Path, monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]
) -> None:
    with_tokens(run)
    monkeypatch.setenv("NO_COLOR", "1")

    async def play(app: ViewerApp, pilot: Pilot[None]) -> None:
        for key in ("a", "enter", "v", "3", "c", "q", "q", "q", "question_mark", "q", "slash", "escape", "e"):
            await pilot.press(key)
            await pilot.pause()
            assert all(len(line) <= size[0] for line in text_of(app).splitlines())
            for y in range(size[1]):
                for piece in app.screen._compositor.render_strips(app.size)[y]:
                    colours = (piece.style.color, piece.style.bgcolor) if piece.style else ()
                    assert all(colour is None or colour.is_default for colour in colours)

    view(run, play, size=size)


def test_nothing_hostile_reaches_the_screen(hostile_run: Path) -> None:
    async def play(app: ViewerApp, pilot: Pilot[None]) -> None:
        for key in ("", "enter", "enter", "v", "m", "c", "enter", "f", "t", "enter", "e"):
            if key:
                await pilot.press(key)
            await pilot.pause()
            text = text_of(app)
            assert OBEYED.findall(text.replace("\n", "")) == []
            for y in range(app.size.height):
                for piece in app.screen._compositor.render_strips(app.size)[y]:
                    style = piece.style
                    assert style is None or style.link is None
                    assert style is None or "@click" not in (style.meta or {})
        assert app.is_running

    view(hostile_run, play)


def test_a_line_of_ten_million_characters_opens_at_once(run: Path) -> None:
    long = make_attempt(group="g", index=0, reward=1.0, answer="漢x" * 5_000_000)
    save(run / "rollouts" / "step_000009.parquet", [long])

    async def play(app: ViewerApp, pilot: Pilot[None]) -> None:
        start = time.process_time()
        await pilot.press("enter", "enter")
        assert "9,980,001 characters" in text_of(app) or len(here(app, AttemptScreen).turns.lines) > 300
        await pilot.press("G", "f", "G")
        await pilot.press("c", "G", "q")
        assert time.process_time() - start < 20

    view(run, play)


def test_a_file_that_cannot_be_read_is_named_and_the_others_are_shown(run: Path) -> None:
    (run / "rollouts" / "step_000009.parquet").write_bytes(b"nonsense")

    async def play(app: ViewerApp, pilot: Pilot[None]) -> None:
        assert "step_000009.parquet cannot be read" in text_of(app)
        assert "6 2 4 1 0.5 0 1 4 eos 4" in lines_of(app)
        await pilot.press("enter", "enter", "c", "t", "e")
        assert lines_of(app)[0] == "step 9 0 attempts"

    view(run, play)


def test_an_attempt_whose_file_is_gone_says_so(run: Path) -> None:
    async def play(app: ViewerApp, pilot: Pilot[None]) -> None:
        (run / "rollouts" / "step_000006.parquet").unlink()
        app.open_attempt(6, 0)
        app.open_group(5, 0)
        await pilot.press("enter")
        said = [notice.message for notice in app._notifications]
        assert len(said) == 1
        assert "cannot be read as rollouts" in said[0] or "no longer exist" in said[0]
        assert lines_of(app)[0].startswith("step 5 s5-apple attempt 0")

    view(run, play)


def in_a_terminal(code: str, *words: str, keys: bytes = b"", until: bytes = b"", term: str = "xterm") -> str:
    """What Python code writes to a terminal of its own; `keys` are pressed once `until` was written."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", code, *words]
    environment = {**os.environ, "TERM": term}
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    seen, end = b"", time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        if not select.select([ours], [], [], 0.2)[0]:
            continue
        try:
            seen += os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if keys and until in seen:
            os.write(ours, keys)
            keys = b""
    assert process.wait(PATIENCE_S) == 0, seen[-2000:]
    os.close(ours)
    return seen.decode(errors="replace")


COMMAND = "import sys; from toolwright.cli import main; sys.exit(main(sys.argv[1:]))"
FULL_SCREEN = "\x1b[?1049h"


def test_the_viewer_opens_in_a_terminal(run: Path) -> None:
    text = in_a_terminal(COMMAND, "view", str(run), keys=b"q", until=b"quit")
    assert FULL_SCREEN in text


@pytest.mark.parametrize(
    ("code", "words", "term"),
    [
        (COMMAND, ["--plain"], "xterm"),
        (COMMAND, ["--step", "2"], "xterm"),
        (COMMAND, [], "dumb"),
        ("import sys; sys.modules['textual'] = None; " + COMMAND, [], "xterm"),
    ],
)
def test_plain_lines_are_printed_without_the_viewer(
    run: Path, code: str, words: list[str], term: str
) -> None:
    text = in_a_terminal(code, "view", str(run), *words, term=term)
    assert FULL_SCREEN not in text
    assert ("pip install 'toolwright[view]'" in text) == ("textual" in code)
    assert "reward" in text
