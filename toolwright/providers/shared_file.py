"""A file of SQLite's that many threads and processes keep things in."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from toolwright.failures import UserError

BUSY_S = 60.0  # how long another process may keep the file to itself


def opened(path: Path, table: str, *, as_what: str) -> sqlite3.Connection:
    """With this table in it, made where it is not there. Without an open transaction: a statement is on disk
    when it returns, and survives this process."""
    file: sqlite3.Connection | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        file.execute("PRAGMA journal_mode = WAL")
        file.execute(f"CREATE TABLE IF NOT EXISTS {table}")
    except (sqlite3.Error, OSError) as error:
        if file is not None:
            file.close()
        raise UserError(f"{path} cannot be used as {as_what}: {error}") from None
    return file
