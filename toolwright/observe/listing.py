"""Attempts as plain lines, coloured by who wrote each part."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from toolwright.observe import attempt
from toolwright.observe.attempt import visible
from toolwright.observe.attempt_index import STEP_COLUMNS, AttemptTable, read_index
from toolwright.observe.console import plain_table
from toolwright.observe.numbers import compact
from toolwright.observe.terminal import dialogue
from toolwright.observe.terminal.dialogue import Paragraph
from toolwright.trajectory import Group, Trajectory

TONES = {"good": "green", "bad": "red", "": ""}
MOST_ROWS = 24  # of a listing, without --full
MOST_TEXT = 1500  # characters of one segment, without --full
LABEL = 12  # columns


def list_steps(console: Console, run: Path, files: dict[int, Path], *, full: bool) -> None:
    steps = list(files)
    hidden = 0 if full else max(0, len(steps) - MOST_ROWS)
    shown = steps if not hidden else [steps[0], *steps[hidden + 1 :]]
    table = plain_table("step>", *(f"{name}>" for name in STEP_COLUMNS[:-1]))
    table.add_column(STEP_COLUMNS[-1], overflow="ellipsis", no_wrap=True)
    index = read_index({step: files[step] for step in shown})
    for step in shown:
        table.add_row(str(step), *(Text(text, style=style) for text, style in index.digest(step).cells))
        if hidden and step == steps[0]:
            table.add_row("…")
    console.print(table)
    if hidden:
        console.print(Text(f"{hidden} steps in between are left out; --full shows them", style="dim"))
    console.print(Text(f"\ntoolwright view {_word(run)} --step {steps[-1]}, --best, --worst", style="dim"))


def list_groups(console: Console, run: Path, step: int, groups: Sequence[Group], *, full: bool) -> None:
    shown = groups if full else groups[:MOST_ROWS]
    # The task has what the others leave; many attempts go over several lines.
    table = plain_table(expand=True)
    table.add_column("group", no_wrap=True)
    table.add_column("reward", justify="right", no_wrap=True)
    table.add_column("of each attempt", max_width=console.width // 3)
    table.add_column("task", overflow="ellipsis", no_wrap=True, ratio=1)
    for group in shown:
        rewards = group.rewards
        each = Text()
        for t in group.trajectories:
            each.append(_reward(t) + " ", style=_tone(t, rewards))
        mean = compact(sum(rewards) / len(rewards)) if rewards else "-"
        name, asked = visible(group.trajectories[0].group), attempt.question(group.task, most=200)
        table.add_row(Text(name), mean, each, Text(asked))
    console.print(Text(f"step {step}", style="bold"))
    console.print(table)
    if len(shown) < len(groups):
        console.print(Text(f"{len(groups) - len(shown)} more groups; --full shows them", style="dim"))
    name = visible(groups[0].trajectories[0].group)
    hint = f"\ntoolwright view {_word(run)} --step {step} --group {name}, --best, --worst"
    console.print(Text(hint, style="dim"))


def list_attempts(console: Console, table: AttemptTable, places: np.ndarray[Any, Any], *, full: bool) -> None:
    listing = plain_table(expand=True)
    listing.add_column("group", no_wrap=True)
    for name in ("attempt", "reward", "tokens", "turns", "tools"):
        listing.add_column(name, justify="right", no_wrap=True)
    listing.add_column("stop", no_wrap=True)
    listing.add_column("question", overflow="ellipsis", no_wrap=True, ratio=1)
    shown = places if full else places[:MOST_ROWS]
    for place in shown:
        names = ("index", "reward", "length", "turns", "tool_calls")
        numbers = [table.numbers[name][place] for name in names]
        figures = ["-" if np.isnan(number) else compact(float(number)) for number in numbers]
        group, stop, question = (table.texts[name].at(place) for name in ("group", "stop", "question"))
        listing.add_row(_line(group), *figures, _line(stop), _line(question))
    console.print(listing)
    hidden = len(places) - len(shown)
    more = f", {hidden:,} of them not shown; --full shows them" if hidden else ""
    console.print(Text(f"{len(places):,} attempts{more}", style="dim"))


def show_attempts(
    console: Console, step: int, shown: Sequence[Trajectory], *, rewards: Sequence[float], full: bool
) -> None:
    """Show the prompt once, which attempts at one task share, and then each attempt."""
    most = sys.maxsize if full else MOST_TEXT
    first = shown[0]
    console.print(Text.assemble((f"step {step}", "bold"), f"  {visible(first.group)}"))
    for paragraph in (*dialogue.prompt(first, most=most), *dialogue.truth(first, most=most)):
        _print(console, paragraph)
    for t in shown:
        title = Text(f"\nattempt {t.index}  ", style="bold")
        title.append(f"reward {_reward(t)}" if t.reward is not None else "no reward", style=_tone(t, rewards))
        about = [*attempt.facts(t), *([attempt.reward_parts(t)] if t.reward_parts else [])]
        title.append("  " + "  ".join(about), style="not bold dim")
        console.print(title)
        for paragraph in dialogue.turns(t, most=most):
            _print(console, paragraph)


def _word(run: Path) -> str:
    """The run as a word of a shell command."""
    return shlex.quote(visible(str(run)))


def _print(console: Console, paragraph: Paragraph) -> None:
    """Print who wrote it in a column of its own, so that it is seen without colours too."""
    whole, style = Text(paragraph.text.rstrip("\n"), style=paragraph.style), f"bold {paragraph.style}"
    if console.is_terminal:
        lines = whole.wrap(console, console.width - LABEL, overflow="fold")
    else:  # what is piped is searched and compared: its lines stay as they were written
        lines = whole.split(allow_blank=True)
    for number, line in enumerate(lines):
        label = f"{paragraph.who[: LABEL - 1]:<{LABEL}}" if number == 0 else " " * LABEL
        console.print(Text.assemble((label, style), line), soft_wrap=True)


def _reward(t: Trajectory) -> str:
    if t.failure is not None:
        return "failed"
    return "-" if t.reward is None else compact(t.reward)


def _tone(t: Trajectory, rewards: Sequence[float]) -> str:
    return TONES[attempt.tone(None if t.failure else t.reward, rewards)]


def _line(text: str) -> Text:
    return Text(" ".join(visible(text).split()))
