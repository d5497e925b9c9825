"""Where a budget keeps its books: in this process, or in a file that many processes share."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from toolwright.providers.shared_file import opened


@dataclass(frozen=True)
class Amount:
    """What calls take."""

    dollars: float = 0.0
    tokens: int = 0
    calls: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.dollars + other.dollars, self.tokens + other.tokens, self.calls + other.calls)


# Told what is spent and what is held: whether there is room for more.
Fits = Callable[[Amount, Amount], bool]


class Account(Protocol):
    """Each of these happens as a whole, whoever else is at it."""

    def spent(self) -> Amount: ...

    def hold(self, most: Amount, fits: Fits) -> int | None:
        """Sets so much aside, if it fits, under a number."""
        ...

    def settle(self, number: int, used: Amount) -> None:
        """What was set aside under this number is free again, and this is spent."""
        ...


class InMemory:
    """For the tasks and threads of one process."""

    def __init__(self, spent: Amount) -> None:
        self._spent, self._held = spent, dict[int, Amount]()
        self._numbers, self._lock = itertools.count(), threading.Lock()

    def spent(self) -> Amount:
        return self._spent

    def hold(self, most: Amount, fits: Fits) -> int | None:
        with self._lock:
            if not fits(self._spent, sum(self._held.values(), Amount())):
                return None
            number = next(self._numbers)
            self._held[number] = most
            return number

    def settle(self, number: int, used: Amount) -> None:
        with self._lock:
            del self._held[number]
            self._spent += used


class InFile:
    """For processes of one machine. What a process that was killed had set aside counts as spent: nobody
    knows how far its calls had come."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        columns = "number INTEGER PRIMARY KEY, process TEXT, dollars REAL, tokens INTEGER, calls INTEGER"
        self._file = opened(path, f"amounts ({columns})", as_what="the books of a budget")

    def spent(self) -> Amount:
        return self._sum("process IS NULL")  # a process is named as long as it holds the amount

    def hold(self, most: Amount, fits: Fits) -> int | None:
        with self._whole():
            holders = self._file.execute("SELECT DISTINCT process FROM amounts WHERE process IS NOT NULL")
            for (process,) in holders.fetchall():
                if _life(int(process.split()[0])) != process:
                    self._file.execute("UPDATE amounts SET process = NULL WHERE process = ?", (process,))
            if not fits(self.spent(), self._sum("process IS NOT NULL")):
                return None
            return self._file.execute(
                "INSERT INTO amounts VALUES (NULL, ?, ?, ?, ?)",
                (_life(os.getpid()), most.dollars, most.tokens, most.calls),
            ).lastrowid

    def settle(self, number: int, used: Amount) -> None:
        with self._whole():
            self._file.execute(
                "UPDATE amounts SET process = NULL, dollars = ?, tokens = ?, calls = ? WHERE number = ?",
                (used.dollars, used.tokens, used.calls, number),
            )

    @contextmanager
    def _whole(self) -> Iterator[None]:
        with self._lock:
            self._file.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._file.execute("ROLLBACK")
                raise
            self._file.execute("COMMIT")

    def _sum(self, which: str) -> Amount:
        query = f"SELECT total(dollars), sum(tokens), sum(calls) FROM amounts WHERE {which}"
        dollars, tokens, calls = self._file.execute(query).fetchone()
        return Amount(dollars, tokens or 0, calls or 0)


def _life(process: int) -> str:
    """The process with this number: the number, and when it began where the system tells. The next one of
    that number, of which a container's first processes always find one, is another."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        pass
    try:
        began = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        began = ""
    return f"{process} {began}"
