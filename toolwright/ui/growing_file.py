"""A file of lines that somebody else appends to: only what is new is read."""

from __future__ import annotations

import os
import stat
from pathlib import Path

END_OF_LIST = b"]"  # timeline.json ends so, and this line is written over by the next step
MOST_AT_ONCE = 64 << 20


class GrowingFile:
    """Reads whole lines as they appear. A file that was replaced or cut is read again from its start."""

    def __init__(self) -> None:
        self.offset = 0
        self._inode = -1

    def new_lines(self, path: Path | None) -> tuple[bool, list[tuple[int, bytes]]]:
        """Return True if earlier lines are to be forgotten, and the new lines with their places."""
        if path is None:
            return self._forget(), []
        try:
            with path.open("rb") as file:
                now = os.fstat(file.fileno())
                same = stat.S_ISREG(now.st_mode) and now.st_ino == self._inode
                if again := not same or now.st_size < self.offset:
                    self._forget()
                    self._inode = now.st_ino
                file.seek(self.offset)
                text = file.read(MOST_AT_ONCE)
        except OSError:
            return self._forget(), []
        return again, self._whole_lines(text)

    def _whole_lines(self, text: bytes) -> list[tuple[int, bytes]]:
        found = []
        for line in text.split(b"\n")[:-1]:  # what follows the last newline is still being written
            if line.strip() == END_OF_LIST:
                break
            found.append((self.offset, line))
            self.offset += len(line) + 1
        return found

    def _forget(self) -> bool:
        self.offset, self._inode = 0, -1
        return True
