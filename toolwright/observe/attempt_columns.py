"""The small columns of one step's attempts: what tables, filters and distributions need, no tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from toolwright.record import questions, rows_at_once, sampled_tokens

Array = np.ndarray[Any, Any]
MOST_MESSAGE = 500  # characters of a failure's message
# The page's name of each column of the file.
TEXTS = {
    "task": "task_id",
    "source": "data_source",
    "group": "group",
    "stop": "stop",
    "failure_kind": "failure_kind",
    "failure": "failure_message",
    "question": "question",
}
NUMBERS = {
    "index": "index",
    "reward": "reward",
    "version": "weights_version",
    "length": "sampled_tokens",
    "turns": "turns",
}
NAMED_NUMBERS = {"counts": "counts", "parts": "reward_parts", "timings": "timings"}  # JSON: name to number
UNREADABLE = (OSError, ValueError, KeyError, IndexError, OverflowError, pa.ArrowException)


class AttemptColumns:
    """The attempts of one file, row by row: numbers as float64, texts as dictionaries of Arrow."""

    def __init__(self, path: Path) -> None:
        # A file that was replaced meanwhile stays readable; a mapped one that was cut would end the process.
        with pq.ParquetFile(path, memory_map=False) as file:
            self._read(file)

    def _read(self, file: pq.ParquetFile) -> None:
        known = set(file.schema_arrow.names)
        wanted = [*TEXTS.values(), *NUMBERS.values(), *NAMED_NUMBERS.values()]
        table = file.read(columns=[name for name in wanted if name in known], use_threads=False)
        self.rows = file.metadata.num_rows
        self.texts = {
            name: _shortened(_dictionary(table[column])) for name, column in TEXTS.items() if column in known
        }
        self.numbers = {name: _floats(table[column]) for name, column in NUMBERS.items() if column in known}
        for name, column in NAMED_NUMBERS.items():
            if column in known:
                self.numbers.update(_named_numbers(name, table[column]))
        if "question" not in self.texts:
            self.texts["question"] = _questions(file)
        if "length" not in self.numbers:
            self.numbers["length"], self.numbers["turns"] = _lengths(file)


def _dictionary(column: pa.ChunkedArray) -> pa.DictionaryArray:
    texts = pc.fill_null(column.combine_chunks(), "").dictionary_encode()
    return texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts


def _shortened(texts: pa.DictionaryArray) -> pa.DictionaryArray:
    short = pc.utf8_slice_codeunits(texts.dictionary, 0, MOST_MESSAGE)
    return pa.DictionaryArray.from_arrays(texts.indices, short)


def _floats(column: pa.ChunkedArray) -> Array:
    return column.cast(pa.float64()).to_numpy(zero_copy_only=False)


def _named_numbers(prefix: str, column: pa.ChunkedArray) -> dict[str, Array]:
    encoded = _dictionary(column)  # many attempts have the same counts: each text is read once
    texts = [text or "{}" for text in encoded.dictionary.to_pylist()]
    try:  # all at once: a call for each of them takes three times as long
        rows = orjson.loads(f"[{','.join(texts)}]")
    except ValueError:
        rows = []
    if len(rows) != len(texts):
        rows = [_from_json(text) for text in texts]
    rows = [row if isinstance(row, dict) else {} for row in rows]
    numbers = {
        name: np.array([_number(row.get(name)) for row in rows], float)
        for name in dict.fromkeys(name for row in rows for name in row)
    }
    return {f"{prefix}/{name}": found[encoded.indices.to_numpy()] for name, found in numbers.items()}


def _from_json(text: str) -> Any:
    """Python's own reader knows NaN too, which its writer writes."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _number(value: Any) -> float:
    return value if type(value) in (float, int) else np.nan


def _questions(file: pq.ParquetFile) -> pa.DictionaryArray:
    """The questions in a file of an earlier version, whose prompts are read piece by piece; a task that asks
    none is shown by its name."""
    found = [pa.array([], pa.string())]
    for batch in file.iter_batches(rows_at_once(file), columns=["prompt", "task_id"], use_threads=False):
        asked = questions(batch["prompt"])
        found.append(pc.if_else(pc.equal(asked, ""), batch["task_id"], asked))
    return pa.concat_arrays(found).dictionary_encode()


def _lengths(file: pq.ParquetFile) -> tuple[Array, Array]:
    """Sampled tokens and turns of each attempt of a file of an earlier version, read piece by piece."""
    columns = ["segments.list.element.source", "segments.list.element.tokens"]
    batches = file.iter_batches(rows_at_once(file), columns=columns, use_threads=False)
    counted = [(np.zeros(0), np.zeros(0)), *(sampled_tokens(batch["segments"]) for batch in batches)]
    return np.concatenate([tokens for tokens, _ in counted]), np.concatenate([turns for _, turns in counted])
