"""Export of attempts: dialogues in Markdown, JSON lines."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from tests.ui.example_runs import branching_attempt
from toolwright.cli import main
from toolwright.observe import rollouts
from toolwright.observe.export import ExportedAttempt, markdown_head, to_json_line, to_markdown
from toolwright.observe.terminal import dialogue

from .conftest import HOSTILE, OBEYED, hostile_attempt, make_attempt


def test_a_dialogue_has_a_title_a_time_and_numbered_questions_and_answers() -> None:
    attempt = make_attempt(group="apple", index=1, reward=0.5, failure="too slow")
    text = to_markdown(ExportedAttempt(3, attempt, time=86_400.0), 7)
    lines = [line for line in text.splitlines() if line and not line.startswith("```")]
    assert lines[0] == "---"
    assert lines[1] == "## 7. `apple`, attempt 1: reward 0.5"
    assert lines[2].startswith("- `step 3 · 1970-01-0")
    assert lines[2].endswith("· 3 tokens · 2 turns · stop: eos · 1 tool call`")
    assert lines[3:] == [
        "### System",
        "You solve sums.",
        "### Question 1",
        "What is 12 times 7?",
        "### Answer 1",
        "calculator(12*7)",
        '**Tool call** `calculator({"x": "12*7"}) · 12 ms`',
        "**Tool call** `a call that could not be read · malformed`",
        "### Tool result",
        "result 84",
        "### Question 2 (environment) (reward 0.25)",
        "the room is quiet",
        "### Answer 2",
        "The answer is 84.",
        "### Failure: task",
        "too slow",
        "### Ground truth",
        "84",
    ]


def test_branches_are_marked_where_they_begin() -> None:
    lines = to_markdown(ExportedAttempt(1, branching_attempt()), 1).splitlines()
    headings = [line for line in lines if line.startswith("### ")]
    assert headings == [
        "### Question 1",
        "### Answer 1",
        "### Question 2 (environment)",
        "### Answer 2",
        "### Question 3 (environment) (branch from turn 1)",
        "### Answer 3",
        "### `prompt` (branch with a prompt of its own)",
        "### Answer 4",
    ]
    shown = [paragraph.text for paragraph in dialogue.turns(branching_attempt())]
    assert shown[3] == "Right?  (branch from turn 1)"
    assert shown[5] == "Sum it up.  (branch with a prompt of its own)"


def test_no_text_leaves_its_block_in_markdown() -> None:
    page = markdown_head(HOSTILE) + to_markdown(ExportedAttempt(1, hostile_attempt(1)), 1)
    assert OBEYED.findall(page) == []
    tokens = MarkdownIt("commonmark").parse(page)
    kinds = {token.type for token in tokens} | {
        child.type for token in tokens for child in token.children or ()
    }
    assert kinds == {
        *("heading_open", "inline", "heading_close", "paragraph_open", "paragraph_close", "fence", "hr"),
        *("text", "code_inline", "strong_open", "strong_close"),
        *("bullet_list_open", "list_item_open", "list_item_close", "bullet_list_close"),
    }
    headings = [tokens[place + 1].content for place, one in enumerate(tokens) if one.type == "heading_open"]
    assert len(headings) == 10
    assert not any(heading == "h" for heading in headings)


def test_json_lines_hold_every_field_and_only_ascii() -> None:
    attempt = hostile_attempt()
    line = to_json_line(ExportedAttempt(3, attempt, time=1.5))
    assert line.isascii()
    assert line.count("\n") == 1
    found = json.loads(line)
    assert (found.pop("step"), found.pop("time")) == (3, 1.5)
    assert found == asdict(attempt)


def test_numbers_that_are_not_finite_are_null() -> None:
    attempt = make_attempt(group="g", index=0, reward=math.nan)
    attempt.segments[1].log_probs[0] = -math.inf
    found = json.loads(to_json_line(ExportedAttempt(1, attempt)), parse_constant=pytest.fail)
    assert found["reward"] is None
    assert found["segments"][1]["log_probs"] == [None, -0.1]


def test_a_selection_is_exported_from_the_command_line(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "low.md"
    assert main(["view", str(run), "--step", "2", "--where", "reward<0.6", "--export", str(file)]) == 0
    assert f"2 attempts written to {file}" in capsys.readouterr().err
    assert file.read_text().startswith("# `grpo <b>arithmetic: step 2 reward<0.6`\n\nExported ")
    assert file.read_text().count("### Answer 2") == 2

    lines = tmp_path / "group.jsonl"
    assert main(["view", str(run), "--step", "2", "--group", "s2-b", "--export", str(lines)]) == 0
    found = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [(one["group"], one["index"]) for one in found] == [("s2-berry", 0), ("s2-berry", 1)]

    capsys.readouterr()
    assert main(["view", str(run), "--worst", "--export", "-"]) == 0
    (printed,) = capsys.readouterr().out.splitlines()
    (stored,) = rollouts.read(run / "rollouts" / "step_000006.parquet", [0])
    assert {**asdict(stored), "step": 6}.items() <= json.loads(printed).items()


def test_a_selection_is_listed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view", str(run), "--where", "group~apple"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "group attempt reward tokens turns tools stop question",
        "s6-apple 0 0 3 2 1 eos What is 12 times 7?",
        "s6-apple 1 1 3 2 1 eos What is 12 times 7?",
        "2 attempts",
    ]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--export", "low.txt"], "FILE.md (Markdown) or FILE.jsonl"),
        (["--export", "nowhere/low.md"], "cannot be written"),
        (["--where", "rewrd<1"], "did you mean 'reward'"),
        (["--step", "77", "--where", "reward<1"], "keeps no rollouts of step 77"),
        (["--group", "plum", "--export", "low.md"], "no group 'plum' in step 6"),
        (["--group", "s6-berry", "--best", "--where", "a"], "not allowed with"),
    ],
)
def test_mistakes_are_one_sentence(
    run: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    why: str,
) -> None:
    monkeypatch.chdir(run)
    try:
        status = main(["view", str(run), *arguments])
    except SystemExit as error:  # argparse's own
        status = int(error.code or 0)
    assert status == 2
    assert why in capsys.readouterr().err
