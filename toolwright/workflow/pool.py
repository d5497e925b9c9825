"""What searches have paid for and learned: one SQLite file, or the actor in front of it across a cluster.

A pool is its address. Threads, processes and pickles open the same one; a row is on disk when `pay` or
`learn` returns, so that `kill -9` at any point loses nothing that was paid for.
"""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import threading
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

from toolwright.failures import UserError
from toolwright.providers.sqlite_file import BUSY_S, open_sqlite

NAMESPACE = "toolwright"
RAY = "ray:"


@dataclass(frozen=True)
class Payment:
    """One run of a workflow on one task. `setting` names data set and executor: what a score depends on."""

    setting: str
    workflow: str  # the meaning's hash: two texts of one graph are paid for once
    task: str
    repeat: int
    score: float
    cost: float
    calls: int
    failure: str = ""


@dataclass(frozen=True)
class Experience:
    """One edit that a search tried: where, what, and what came of it."""

    search: str
    number: int  # in the order in which the search committed them
    setting: str
    anchor: str  # of the state that was edited
    kind: str  # of problems: math, code or question
    edit: str
    parent: str
    child: str
    before: float
    after: float
    tasks: int  # how many runs stand behind `after`
    failure: str = ""

    @property
    def gain(self) -> float:
        return self.after - self.before


@dataclass(frozen=True)
class Contrast:
    """Two edits of the same state, of which one was better."""

    better: Experience
    worse: Experience


def _columns(noun: type) -> str:
    kinds = {"str": "TEXT", "int": "INTEGER", "float": "REAL"}
    return ", ".join(f"{field.name} {kinds[str(field.type)]} NOT NULL" for field in fields(noun))


PAYMENTS = f"payments ({_columns(Payment)}, PRIMARY KEY (setting, workflow, task, repeat)) WITHOUT ROWID"
MORE = (
    f"TABLE IF NOT EXISTS experiences ({_columns(Experience)}, PRIMARY KEY (search, number))",
    "INDEX IF NOT EXISTS by_anchor ON experiences (anchor)",
    "TABLE IF NOT EXISTS workflows (meaning TEXT PRIMARY KEY, program TEXT NOT NULL)",
    "TABLE IF NOT EXISTS proposals (search TEXT, key TEXT, answer TEXT NOT NULL, cost REAL NOT NULL, "
    "PRIMARY KEY (search, key))",
)


class Store:
    """The file's owner in this process: a connection a thread, none carried over a fork."""

    def __init__(self, path: Path) -> None:
        self.path, self._local = path, threading.local()
        _ = self._db

    @property
    def _db(self) -> sqlite3.Connection:
        process, db = getattr(self._local, "connection", (0, None))
        if db is None or process != os.getpid():
            db = open_sqlite(self.path, PAYMENTS, purpose="an experience pool")
            db.execute("PRAGMA synchronous = FULL")
            for table in MORE:
                db.execute(f"CREATE {table}")
            self._local.connection = os.getpid(), db
        return db

    def write(self, table: str, rows: Sequence[Sequence[Any]], *, over: bool) -> int:
        """All rows or none; how many were new. `over`: a row that is there is replaced, else it stays."""
        if not rows:
            return 0
        verb, marks = "REPLACE" if over else "IGNORE", ", ".join("?" * len(rows[0]))
        db = self._db
        before = db.total_changes
        db.execute("BEGIN IMMEDIATE")
        with db:  # commits, or rolls back
            db.executemany(f"INSERT OR {verb} INTO {table} VALUES ({marks})", rows)
        return db.total_changes - before

    def read(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return self._db.execute(query, tuple(values)).fetchall()


class ExperiencePool:
    """A pool at its address: a path, or `ray:NAME`, the actor that `serve` has put in front of a file."""

    def __init__(self, address: str | Path) -> None:
        text = str(address)
        if text.startswith(RAY):
            self.address, self._store = text, None
            return
        host, _, path = text.rpartition("@")
        if host and host != socket.gethostname():
            raise UserError(
                f"the experience pool {path} is a file on {host}, but this machine is "
                f"{socket.gethostname()}; pass ExperiencePool.serve(NAME) to workers on other machines"
            )
        self._store = Store(Path(path).expanduser().absolute())
        self.address = f"{socket.gethostname()}@{self._store.path}"

    def __reduce__(self) -> tuple[Any, ...]:
        return ExperiencePool, (self.address,)

    def serve(self, name: str) -> ExperiencePool:
        """The same pool for a whole Ray cluster: an actor on this node owns the file."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        if self._store is None:
            return self
        here = ray.get_runtime_context().get_node_id()
        near = NodeAffinitySchedulingStrategy(here, soft=False)
        made: Any = ray.remote(Store)
        owner = made.options(
            num_cpus=0,
            max_concurrency=16,
            name=name,
            namespace=NAMESPACE,
            get_if_exists=True,
            max_restarts=-1,
            max_task_retries=-1,  # writes can be told twice: their keys make them the same row
            scheduling_strategy=near,
        )
        served = ExperiencePool(f"{RAY}{name}")
        served._owner = owner.remote(self._store.path)
        return served

    def pay(self, payments: Iterable[Payment]) -> int:
        """Keep what was paid for; of the same run twice the first stays. Returns how many were new."""
        return self._write("payments", [astuple(payment) for payment in payments], over=False)

    def paid(self, setting: str, workflow: str) -> dict[tuple[str, int], Payment]:
        """All runs of a workflow in a setting, by task and repeat."""
        query = "SELECT * FROM payments WHERE setting = ? AND workflow = ?"
        rows = [Payment(*row) for row in self._read(query, [setting, workflow])]
        return {(payment.task, payment.repeat): payment for payment in rows}

    def spent(self) -> tuple[int, float]:
        """Runs and money."""
        ((runs, cost),) = self._read("SELECT COUNT(*), TOTAL(cost) FROM payments")
        return int(runs), float(cost)

    def learn(self, experiences: Iterable[Experience]) -> int:
        """Keep edits and what came of them. A search that is replayed writes the same rows again."""
        return self._write("experiences", [astuple(one) for one in experiences], over=True)

    def by_search(self, search: str) -> list[Experience]:
        return self._experiences("WHERE search = ? ORDER BY number", [search])

    def settings(self) -> list[str]:
        return [
            str(name) for (name,) in self._read("SELECT DISTINCT setting FROM experiences ORDER BY setting")
        ]

    def of_setting(self, setting: str) -> list[Experience]:
        return self._experiences("WHERE setting = ? ORDER BY search, number", [setting])

    def contrasts(self, count: int, *, setting: str | None = None) -> list[Contrast]:
        """Pairs of edits of one state, those with the largest difference first."""
        where = "WHERE setting = ?" if setting is not None else ""
        query = (
            f"SELECT search, anchor FROM experiences {where} GROUP BY search, anchor HAVING COUNT(*) > 1 "
            "ORDER BY MAX(after - before) - MIN(after - before) DESC, search, anchor LIMIT ?"
        )
        pairs = []
        for search, anchor in self._read(query, [*([setting] if setting is not None else []), count]):
            tried = self._experiences("WHERE search = ? AND anchor = ? ORDER BY number", [search, anchor])
            better, worse = max(tried, key=lambda e: e.gain), min(tried, key=lambda e: e.gain)
            if better.gain > worse.gain:
                pairs.append(Contrast(better, worse))
        return pairs

    def keep_workflow(self, meaning: str, program: dict[str, Any]) -> None:
        self._write("workflows", [(meaning, json.dumps(program, sort_keys=True))], over=False)

    def workflow(self, meaning: str) -> dict[str, Any] | None:
        rows = self._read("SELECT program FROM workflows WHERE meaning = ?", [meaning])
        return json.loads(rows[0][0]) if rows else None

    def propose(self, search: str, key: str, answer: str, *, cost: float) -> None:
        """Keep what a paid model has proposed, so that a search that goes on need not ask it again."""
        self._write("proposals", [(search, key, answer, cost)], over=False)

    def proposed(self, search: str, key: str) -> str | None:
        rows = self._read("SELECT answer FROM proposals WHERE search = ? AND key = ?", [search, key])
        return str(rows[0][0]) if rows else None

    def _experiences(self, rest: str, values: Sequence[Any]) -> list[Experience]:
        return [Experience(*row) for row in self._read(f"SELECT * FROM experiences {rest}", values)]

    def _read(self, query: str, values: Sequence[Any] = ()) -> Any:
        return self._ask("read", query, list(values))

    def _write(self, table: str, rows: Sequence[Sequence[Any]], *, over: bool) -> Any:
        return self._ask("write", table, list(rows), over=over)

    _owner: Any = None

    def _ask(self, method: str, *args: Any, **named: Any) -> Any:
        """Call the store here, or the actor in front of it."""
        if self._store is not None:
            return getattr(self._store, method)(*args, **named)
        import ray

        if self._owner is None:
            name = self.address.removeprefix(RAY)
            try:
                self._owner = ray.get_actor(name, namespace=NAMESPACE)
            except ValueError:
                raise UserError(
                    f"no experience pool is served as {name!r} in this Ray cluster: "
                    f"its owner calls ExperiencePool(PATH).serve({name!r}) first"
                ) from None
        return ray.get(getattr(self._owner, method).remote(*args, **named), timeout=BUSY_S)
