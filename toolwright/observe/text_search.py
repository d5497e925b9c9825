"""Search the prompts and answers of attempts: streamed from the files, within a limit of time and memory."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from toolwright.observe.attempt_columns import UNREADABLE
from toolwright.observe.attempt_index import AttemptTable
from toolwright.record import batches

Array = np.ndarray[Any, Any]
AROUND = 60  # characters shown on either side of what was found
COLUMNS = ("response", "prompt")


@dataclass
class FoundTexts:
    """The places that hold the text, a piece of it for each, and how many places were looked at."""

    places: list[int] = field(default_factory=list)
    snippets: dict[int, str] = field(default_factory=dict)
    searched: int = 0
    complete: bool = True


def search(table: AttemptTable, places: Array, text: str, *, skip: int, limit_s: float) -> FoundTexts:
    """Look through these places, in their order, from the one after `skip` others on."""
    found = FoundTexts(searched=skip)
    due = time.monotonic() + limit_s
    todo = places[skip:]
    for step in dict.fromkeys(table.step[todo].tolist()):
        mine = todo[table.step[todo] == step]
        path, first = table.path(step), int(mine[0] - table.row[mine[0]])
        if path is None:
            continue
        wanted = mine - first  # rows of the file
        try:
            with pq.ParquetFile(path, memory_map=False) as file:
                names = [name for name in COLUMNS if name in file.schema_arrow.names]
                for batch, rows, start in batches(file, names, wanted):
                    _look(batch, rows - start, first + start, text, found)
                    found.searched += len(rows)
                    if time.monotonic() > due and found.searched < len(places):
                        found.complete = False
                        return found
        except UNREADABLE:  # deleted meanwhile, or broken: nothing is found there
            continue
    found.searched = len(places)
    return found


def _look(batch: pa.RecordBatch, rows: Array, first: int, text: str, found: FoundTexts) -> None:
    """Note the rows of the batch that hold the text, without regard to case."""
    chosen = batch if len(rows) == batch.num_rows else batch.take(pa.array(rows))
    hits: Array = np.zeros(len(rows), bool)
    for name in batch.schema.names:
        here = pc.match_substring(chosen[name], text, ignore_case=True).fill_null(False)
        mine = np.asarray(here)
        for place in np.flatnonzero(mine & ~hits):
            found.snippets[first + int(rows[place])] = _snippet(chosen[name][int(place)].as_py(), text)
        hits |= mine
    found.places += [first + int(row) for row in rows[hits]]


def _snippet(whole: str, text: str) -> str:
    at = max(0, whole.lower().find(text.lower()))
    start, stop = max(0, at - AROUND), at + len(text) + AROUND
    return f"{'…' if start else ''}{whole[start:stop]}{'…' if stop < len(whole) else ''}"
