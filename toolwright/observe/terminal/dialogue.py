"""An attempt turn by turn, as styled lines. Nothing in its texts is obeyed by a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rich.segment import Segment as Piece
from rich.style import Style

from toolwright.observe import attempt
from toolwright.observe.attempt import visible
from toolwright.observe.numbers import compact, duration
from toolwright.observe.terminal.folding import fit, fold
from toolwright.trajectory import Trajectory

COLOURS = {"prompt": "dim", "policy": "cyan", "tool": "yellow", "environment": "green"}
LABEL = 12  # cells
NARROW = 60  # cells: below, the label has a line of its own
SHORT, LONG = 20_000, 1_000_000  # characters of one text


@dataclass(frozen=True)
class Paragraph:
    """A piece of a dialogue: who wrote it, and the text."""

    who: str
    text: str
    style: str = ""


def prompt(t: Trajectory, *, most: int = SHORT) -> Iterator[Paragraph]:
    """Yield the messages that the attempt began with. `most`: characters of one text."""
    for role, text in attempt.messages(t):
        yield Paragraph(" ".join(visible(role).split()), _shown(text, most), "dim")


def turns(t: Trajectory, *, most: int = SHORT) -> Iterator[Paragraph]:
    """The turns of policy, tools and environment, then the failure."""
    for one in attempt.segments(t):
        segment = one.segment
        for call in attempt.calls(segment):
            yield Paragraph("call", attempt.cut(call.line, most), "red" if call.trouble else "dim")
        text = attempt.segment_text(segment)
        if segment.text:
            text = _shown(segment.text, most) + attempt.pictures(segment)
        note = f"  ({one.note})" if one.note else ""
        yield Paragraph(segment.source, text + note, COLOURS.get(segment.source, ""))
    if t.failure is not None:
        yield Paragraph("failure", _shown(f"{t.failure.kind}: {t.failure.message}", most), "red")


def truth(t: Trajectory, *, most: int = SHORT) -> Iterator[Paragraph]:
    """The ground truth, if the task has one."""
    if t.task.ground_truth is not None:
        yield Paragraph("truth", attempt.cut(attempt.ground_truth(t.task), most), "magenta")


def lines(found: Iterable[Paragraph], width: int) -> Iterator[list[Piece]]:
    """Lines no wider than `width`, each paragraph with its label before or above it."""
    for paragraph in found:
        label, style = Style.parse(f"bold {paragraph.style}"), Style.parse(paragraph.style)
        indent = LABEL if width >= NARROW else 2
        if indent < LABEL:
            yield [Piece(fit(paragraph.who, width), label)]
        for number, line in enumerate(fold(paragraph.text.rstrip("\n"), width - indent)):
            named = paragraph.who if number == 0 and indent == LABEL else ""
            yield [Piece(fit(named, indent - 1) + " ", label), Piece(line, style)]


def title(t: Trajectory) -> str:
    """Reward, length and counts in one line."""
    words = [f"attempt {t.index}", f"reward {compact(t.reward)}" if t.reward is not None else "no reward"]
    words += attempt.facts(t)
    if t.reward_parts:
        words.append(attempt.reward_parts(t))
    words += [f"{visible(name.removesuffix('_s'))} {duration(took)}" for name, took in t.timings.items()]
    return " · ".join(words)


def _shown(text: str, most: int) -> str:
    """Make a text safe to show. It is cut first, as it may have ten million characters."""
    return visible(attempt.cut(text, most))
