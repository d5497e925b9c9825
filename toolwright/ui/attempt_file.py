"""Attempts read whole from a step's file: only the row groups that hold them are decoded."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from toolwright.observe.attempt_columns import UNREADABLE, rows_at_once
from toolwright.ui.problem import PageProblem

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")  # half a pair stands for no character
AT_ONCE = 32  # attempts decoded together: what follows the one that is asked for is not decoded
OF_TOKENS = "token_"  # columns with a value for each sampled token, all turns end to end
JSON_COLUMNS = ("prompt", "ground_truth", "extra_info", "reward_parts", "counts", "timings")


def read_attempts(path: Path, rows: Sequence[int], *, tokens: bool = True) -> list[dict[str, Any]]:
    """Read the attempts of these rows, in this order, as plain values. JSON columns are parsed; lists stay
    arrays."""
    try:
        with pq.ParquetFile(path, memory_map=False) as file:
            columns = None if tokens else _without_tokens(file)
            found = dict(_records(file, set(rows), columns))
    except FileNotFoundError:
        raise PageProblem(404, "this step's attempts are not there any more") from None
    except UNREADABLE as error:
        raise PageProblem(409, f"this step's attempts cannot be read: {error}") from None
    missing = [row for row in rows if row not in found]
    if missing:
        raise PageProblem(404, f"this step has no attempt {missing[0]}")
    return [found[row] for row in rows]


def _without_tokens(file: pq.ParquetFile) -> list[str]:
    """All columns except `response` and those with a value for each token."""
    paths = (file.schema.column(i).path for i in range(len(file.schema)))
    return [path for path in paths if path != "response" and not _is_of_tokens(path)]


def _is_of_tokens(path: str) -> bool:
    in_segments = path.startswith("segments.") and path.count(".") > 3  # segments.list.element.tokens.list…
    return in_segments or path.startswith(OF_TOKENS)


def _records(
    file: pq.ParquetFile, rows: set[int], columns: list[str] | None
) -> Iterator[tuple[int, dict[str, Any]]]:
    names = columns or [name for name in file.schema_arrow.names if name != "response"]
    first = 0
    for group in range(file.num_row_groups):
        count = file.metadata.row_group(group).num_rows
        wanted = {row - first for row in rows if first <= row < first + count}
        if wanted:
            for row, record in _records_of_group(file, group, wanted, names):
                yield first + row, record
        first += count


def _records_of_group(
    file: pq.ParquetFile, group: int, wanted: set[int], names: list[str]
) -> Iterator[tuple[int, dict[str, Any]]]:
    place = 0
    size = min(rows_at_once(file, group), AT_ONCE)
    for batch in file.iter_batches(size, row_groups=[group], columns=names, use_threads=False):
        for row in sorted(row for row in wanted if place <= row < place + batch.num_rows):
            yield row, _record(batch.slice(row - place, 1))
        place += batch.num_rows
        if place > max(wanted):
            return


def _record(batch: pa.RecordBatch) -> dict[str, Any]:
    record = {name: _value(batch.column(name), 0) for name in batch.schema.names if name != "segments"}
    for name in JSON_COLUMNS:
        record[name] = _from_json(record.get(name))
    for name in ("reward_parts", "counts", "timings"):
        record[name] = record[name] if isinstance(record[name], dict) else {}
    record["segments"] = _segments(batch.column("segments"))
    return record


def _segments(lists: pa.Array) -> list[dict[str, Any]]:
    flat = lists.flatten()
    columns = {field.name: flat.field(field.name) for field in flat.type}
    found = [{name: _value(column, place) for name, column in columns.items()} for place in range(len(flat))]
    for segment in found:
        for name in ("calls", "images"):
            listed = _from_json(segment.get(name))
            segment[name] = listed if isinstance(listed, list) else []
    return found


def _value(array: pa.Array, place: int) -> Any:
    """A list stays an array: an attempt may have millions of tokens, of which few are shown."""
    if pa.types.is_list(array.type) and array[place].is_valid:
        return array[place].values.to_numpy(zero_copy_only=False)
    return array[place].as_py()


def _from_json(text: str | None) -> Any:
    """The value, or the text itself if it cannot be read."""
    if text is None:
        return None
    for candidate in (text, _SURROGATE.sub(r"\\ufffd", text)):
        try:
            return orjson.loads(candidate)
        except ValueError:
            continue
    try:
        return json.loads(text)  # knows NaN, which Python writes
    except (ValueError, RecursionError):
        return text
