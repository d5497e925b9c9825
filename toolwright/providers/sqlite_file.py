"""An SQLite file that many threads and processes share."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

from toolwright.failures import UserError

BUSY_S = 60.0  # the longest wait for another process that holds the file


def open_sqlite(path: Path | None, table: str, *, purpose: str) -> sqlite3.Connection:
    """Open the file and create the table if it is missing. None: a database in memory.

    Every statement commits by itself: it is on disk when it returns, and survives this process.
    """
    file: sqlite3.Connection | None = None
    try:
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        name = ":memory:" if path is None else path
        file = sqlite3.connect(name, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        _write_ahead(file)
        file.execute(f"CREATE TABLE IF NOT EXISTS {table}")
    except (sqlite3.Error, OSError) as error:
        if file is not None:
            file.close()
        raise UserError(f"{path} cannot be used as {purpose}: {error}") from None
    return file


def _write_ahead(file: sqlite3.Connection) -> None:
    """Switch to a write-ahead log. SQLite does not wait if another process does so at the same moment."""
    until = time.monotonic() + BUSY_S
    while True:
        try:
            file.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
            time.sleep(0.01)
