"""The rollouts of a run folder: which steps were kept, and what each holds."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from toolwright.failures import UserError
from toolwright.trajectory import Trajectory

if TYPE_CHECKING:
    from toolwright.record import TokenValues

Version = tuple[int, int]  # of a file: when it was changed, and its size
NAME = re.compile(r"step_(\d{1,18})\.parquet")


def files(run: Path) -> dict[int, Path]:
    """Step to file, in order of step."""
    return {step: path for step, (path, _) in versions(run).items()}


def versions(run: Path, *, links: bool = True) -> dict[int, tuple[Path, Version]]:
    """Step to file and its version, in order of step; without `links`, of regular files alone."""
    found = {}
    for entry in os.scandir(run / "rollouts") if (run / "rollouts").is_dir() else ():
        with suppress(OSError):  # it may have vanished meanwhile
            if (match := NAME.fullmatch(entry.name)) and entry.is_file(follow_symlinks=links):
                about = entry.stat(follow_symlinks=links)
                found[int(match[1])] = (Path(entry.path), (about.st_mtime_ns, about.st_size))
    return dict(sorted(found.items()))


def version_of(path: Path, *, links: bool = True) -> Version | None:
    """Return what changes when the file is written again: its time and its size. None if it is gone."""
    try:
        about = path.stat(follow_symlinks=links)
    except OSError:
        return None
    return about.st_mtime_ns, about.st_size


def read(path: Path, rows: Sequence[int] | None = None) -> list[Trajectory]:
    """All attempts of a step, or these rows in this order: then only parts of the file are decoded."""
    from toolwright.record import load

    with _readable(path):
        found = load(path, rows)
    if not found:
        raise UserError(f"{path} holds no attempts")
    return found


def token_values(path: Path, rows: Sequence[int] | None = None) -> list[TokenValues]:
    """Read what the learner computed for each attempt's tokens, in the order of `read`, or for these rows
    only. Files of evaluations and of version 0.1 have no such values."""
    from toolwright.record import load_token_values

    with _readable(path):
        return load_token_values(path, rows)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError) as error:  # pyarrow's own errors are kinds of these
        raise UserError(f"{path} cannot be read as rollouts: {error}") from error


def keeps_token_values(path: Path) -> bool:
    """Return True if the learner's values of some attempt are in the file."""
    import pyarrow.parquet as pq

    from toolwright.record import TOKEN_COLUMNS

    return not set(TOKEN_COLUMNS.values()).isdisjoint(pq.read_schema(path).names)


def spread(path: Path, most: int | None) -> list[Trajectory]:
    """A few attempts of a step from the lowest reward, or a failed one, to the highest; None: all."""
    import pyarrow.parquet as pq

    from toolwright.record import SCHEMA, from_table

    there = pq.read_schema(path).names
    table = pq.read_table(path, columns=[name for name in SCHEMA.names if name in there])
    if most is None or most >= table.num_rows:
        return from_table(table)
    rewards = [-math.inf if reward is None else reward for reward in table["reward"].to_pylist()]
    ranked = sorted(range(len(rewards)), key=rewards.__getitem__)
    last = len(ranked) - 1
    return from_table(table, sorted(ranked[place * last // max(1, most - 1)] for place in range(most)))
