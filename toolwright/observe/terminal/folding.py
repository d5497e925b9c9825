"""Lines of text as wide as the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.cells import cell_len, get_character_cell_size, set_cell_size

from toolwright.observe.attempt import visible

TAB = "    "


def fit(text: str, width: int, *, right: bool = False) -> str:
    """Fit text into exactly `width` cells, without control characters, and with an ellipsis if it is cut."""
    text = " ".join(visible(text).split())
    size = cell_len(text)
    if size > width:
        return set_cell_size(set_cell_size(text, width - 1).rstrip() + "…", width) if width > 0 else ""
    return " " * (width - size) + text if right else text + " " * (width - size)


def fold(text: str, width: int) -> Iterator[str]:
    """The lines of a text, none wider than `width` cells, broken after a space where one is near."""
    width = max(2, width)
    for line in text.replace("\t", TAB).split("\n"):
        start = 0
        while True:
            stop = _reach(line, start, width)
            if stop >= len(line):
                yield line[start:]
                break
            space = line.rfind(" ", start + (stop - start) // 2, stop + 1)
            yield line[start : space if space >= 0 else stop]
            start = space + 1 if space >= 0 else stop


def _reach(line: str, start: int, width: int) -> int:
    """Find where a line that begins at `start` has to end."""
    if line[start : start + width].isascii():
        return start + width
    room = width
    for place in range(start, min(len(line), start + width)):
        room -= get_character_cell_size(line[place])
        if room < 0:
            return max(place, start + 1)
    return start + width
