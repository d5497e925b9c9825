"""The record of an attempt: one Arrow schema, derived from the fields of `Trajectory`.

The same columns lie in Ray's object store, in `rollouts/*.parquet` and, without tasks and segments, in the
driver's summary. A new field of `Trajectory`, `Segment`, `Task` or `Failure` needs no edit here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, pairwise
from pathlib import Path
from types import NoneType
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from toolwright.images import images_in
from toolwright.trajectory import Failure, Segment, Task, Trajectory

Array = np.ndarray[Any, Any]
ARROW_TYPES = {
    str: pa.string(),
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    list[int]: pa.list_(pa.int32()),
    list[float]: pa.list_(pa.float64()),
}
ROW_GROUP = 256  # attempts of a file that are read together: one attempt is read without the others' tokens
BYTES_AT_ONCE = 16 << 20  # of attempts that are read together: few if they are long
FEW = 32  # attempts decoded together where a few are asked for: those behind them are not decoded
QUESTION = 200  # characters
MOST_SHARED_BITS = 19  # of integers that are shared: as many as vocabularies have
DICTIONARY = 1 << 30  # bytes of prompts with images, each of which is written once
# Columns whose field has a name that says too little on its own.
COLUMN_NAMES = {"id": "task_id", "kind": "failure_kind", "message": "failure_message"}


@dataclass(frozen=True)
class Column:
    """A column of the record: a field of one of the dataclasses. A value that has no Arrow type of its own is
    kept as JSON."""

    field: str
    type: pa.DataType
    is_json: bool

    @property
    def name(self) -> str:
        return COLUMN_NAMES.get(self.field, self.field)

    def array(self, values: Sequence[Any]) -> pa.Array:
        if pa.types.is_list(self.type):
            return _list_array(self.type.value_type, values)
        try:
            return pa.array([_to_json(value) for value in values] if self.is_json else values, self.type)
        except UnicodeEncodeError:  # half a surrogate pair: JSON can escape it, UTF-8 cannot express it
            if self.is_json:
                return pa.array([json.dumps(value) for value in values], self.type)
            return pa.array([v and v.encode("utf-8", "replace").decode() for v in values], self.type)

    def values(self, array: pa.Array) -> list[Any]:
        """The inverse of `array`."""
        if pa.types.is_list(array.type):  # by slices: one Arrow scalar for each token is far slower
            items = _shared_integers(array.values.to_numpy())
            return [items[start:stop].tolist() for start, stop in pairwise(array.offsets.to_pylist())]
        if pa.types.is_dictionary(array.type):
            known = self.values(array.dictionary)
            return [known[index] for index in array.indices.to_pylist()]
        return [_from_json(value) for value in array.to_pylist()] if self.is_json else array.to_pylist()


def _columns_of(kind: type) -> list[Column]:
    found = []
    for field, hint in get_type_hints(kind).items():
        if hint in (Task, Failure | None, list[Segment]):
            continue  # has columns of its own
        options = [option for option in get_args(hint) if option is not NoneType]
        plain = options[0] if NoneType in get_args(hint) else hint
        arrow = pa.string() if get_origin(plain) is Literal else ARROW_TYPES.get(plain)
        found.append(Column(field, arrow or pa.string(), is_json=arrow is None))
    return found


COLUMNS: dict[type, list[Column]] = {kind: _columns_of(kind) for kind in (Task, Failure, Trajectory, Segment)}
SEGMENT = pa.struct([(column.name, column.type) for column in COLUMNS[Segment]])
SCHEMA = pa.schema(
    [
        *((column.name, column.type) for kind in (Task, Failure, Trajectory) for column in COLUMNS[kind]),
        ("segments", pa.list_(SEGMENT)),
    ]
)


class TokenValues(NamedTuple):
    """What the learner computed for each token that an attempt sampled, [sampled tokens] float32 each; None
    where the attempt was not learned from. A tuple, because the driver makes one for each attempt."""

    advantages: Array | None = None
    log_probs: Array | None = None  # the learner's own, before the step's update
    entropies: Array | None = None  # in the pass in which the token was first learned from

    @property
    def learned(self) -> bool:
        """True if the policy learned from the attempt."""
        return self.entropies is not None

    @classmethod
    def of_attempts(
        cls, attempts: Sequence[Trajectory], columns: Mapping[str, Array], learned: Sequence[Trajectory]
    ) -> list[TokenValues]:
        """The values of each attempt, from columns with those of all `learned` attempts end to end. What is
        NaN in a whole attempt was not computed."""
        ends = np.cumsum([0, *(t.sampled_tokens for t in learned)])
        places, parts = list(pairwise(ends.tolist())), {}
        for name, column in columns.items():
            before = np.concatenate([[0], np.cumsum(~np.isnan(column))])  # numbers before each place
            known = (np.diff(before[ends]) > 0).tolist()
            parts[name] = [column[a:b] if some else None for (a, b), some in zip(places, known, strict=True)]
        missing = [None] * len(learned)
        values = map(cls, *(parts.get(name, missing) for name in cls._fields))
        found = dict(zip(map(id, learned), values, strict=True))
        return [found.get(id(t), cls()) for t in attempts]

    def by_segment(self, trajectory: Trajectory) -> list[TokenValues]:
        """Of each segment of the attempt: only what the policy sampled has any."""
        start, found = 0, []
        for segment in trajectory.segments:
            stop = start + len(segment.tokens) if segment.source == "policy" else start
            own = self._asdict() if stop > start else {}
            found.append(TokenValues(**{n: v if v is None else v[start:stop] for n, v in own.items()}))
            start = stop
        return found


TOKEN_COLUMNS = {name: f"token_{name}" for name in TokenValues._fields}


def to_table(trajectories: Sequence[Trajectory], segments: pa.Array | None = None) -> pa.Table:
    """The records as a small table: a task is written once for all its attempts, and log-probabilities take
    four bytes unless one of them needs eight. If `segments`, their column, is given, the trajectories' own
    segments are not read."""
    tasks = {id(t.task): t.task for t in trajectories}
    places = {key: place for place, key in enumerate(tasks)}
    which = pa.array([places[id(t.task)] for t in trajectories], pa.int32())
    columns = {
        name: pa.DictionaryArray.from_arrays(which, array)
        for name, array in _arrays(Task, list(tasks.values())).items()
    }
    columns |= _arrays(Failure, [t.failure for t in trajectories]) | _arrays(Trajectory, trajectories)
    return pa.table({**columns, "segments": segment_lists(trajectories) if segments is None else segments})


def from_table(table: pa.Table, rows: Iterable[int] | None = None) -> list[Trajectory]:
    """The trajectories of these rows, or of all. A field without a column in the table keeps its default."""
    if rows is not None:
        table = table.take(pa.array(rows, pa.int64()))
    arrays = {name: _whole(table[name]) for name in table.column_names}
    known: dict[tuple[int, ...], Task] = {}  # by the identity of its values: attempts at one task share it
    tasks = [known.setdefault(tuple(map(id, task.values())), Task(**task)) for task in _values(Task, arrays)]
    failures = [Failure(**failure) if failure["kind"] else None for failure in _values(Failure, arrays)]
    given: dict[str, Sequence[Any]]
    given = {"task": tasks, "failure": failures, "segments": read_segments(arrays["segments"])}
    return [Trajectory(**fields) for fields in _values(Trajectory, arrays, given)]


def read_segments(lists: pa.Array) -> list[list[Segment]]:
    """Read the segments of each attempt from the column `segments`."""
    flat = lists.flatten()
    arrays = {field.name: flat.field(field.name) for field in flat.type}
    found = [Segment(**fields) for fields in _values(Segment, arrays)]
    first = lists.offsets[0].as_py() if len(lists) else 0
    return [found[start - first : stop - first] for start, stop in pairwise(lists.offsets.to_pylist())]


def save(
    path: Path,
    trajectories: Sequence[Trajectory],
    values: Sequence[TokenValues] = (),
    *,
    segments: pa.Array | None = None,
) -> None:
    """Write one Parquet file, whole or not at all. `values`: what the learner computed for each attempt.
    `segments` as for `to_table`."""
    table = to_table(trajectories, segments).cast(SCHEMA)
    for name, column in TOKEN_COLUMNS.items():
        if any(getattr(one, name) is not None for one in values):
            table = table.append_column(column, _array_lists([getattr(one, name) for one in values]))
    for name, column in _for_readers(table).items():
        table = table.append_column(name, column)
    partial = path.with_suffix(".partial")
    # What repeats is left to the compression: a step is too few rows for dictionaries and statistics. But an
    # image is longer than that looks back.
    pictured = any(images_in(task.prompt) for task in {id(t.task): t.task for t in trajectories}.values())
    try:
        pq.write_table(
            table,
            partial,
            row_group_size=ROW_GROUP,
            compression="zstd",
            use_dictionary=["prompt"] if pictured else False,
            dictionary_pagesize_limit=DICTIONARY if pictured else None,
            write_statistics=False,
        )
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    os.replace(partial, path)


def load(path: Path, rows: Sequence[int] | None = None) -> list[Trajectory]:
    """All attempts of a file, or these rows in this order."""
    with pq.ParquetFile(path) as file:
        return from_table(
            _read(file, [name for name in file.schema_arrow.names if name in SCHEMA.names], rows)
        )


def load_token_values(path: Path, rows: Sequence[int] | None = None) -> list[TokenValues]:
    """Of each attempt in the order of `load`; a file may have none of them."""
    with pq.ParquetFile(path) as file:
        names = {name: column for name, column in TOKEN_COLUMNS.items() if column in file.schema_arrow.names}
        count = file.metadata.num_rows if rows is None else len(rows)
        table = _read(file, [*names.values()], rows)
    parts = {name: _read_array_lists(_whole(table[column])) for name, column in names.items()}
    return [TokenValues(**{name: part[row] for name, part in parts.items()}) for row in range(count)]


def rows_at_once(file: pq.ParquetFile, group: int = 0) -> int:
    """Choose how many attempts to read together, so that long ones do not fill the memory."""
    if group >= file.num_row_groups:
        return ROW_GROUP
    about = file.metadata.row_group(group)
    return max(1, min(ROW_GROUP, BYTES_AT_ONCE * about.num_rows // max(1, about.total_byte_size)))


def batches(
    file: pq.ParquetFile, columns: Sequence[str], rows: Array, most: int = ROW_GROUP
) -> Iterator[tuple[pa.RecordBatch, Array, int]]:
    """The parts of a file that hold some of the rows: a few attempts at a time, with the rows that it holds,
    and the first row of the part. Other row groups are not decoded."""
    start = 0
    for group in range(file.num_row_groups):
        end = start + file.metadata.row_group(group).num_rows
        left = rows[(rows >= start) & (rows < end)]
        if len(left):
            size = min(most, rows_at_once(file, group))
            for batch in file.iter_batches(size, row_groups=[group], columns=columns, use_threads=False):
                held = left[left < start + batch.num_rows]
                if len(held):
                    yield batch, held, start
                start += batch.num_rows
                left = left[left >= start]
                if not len(left):
                    break
        start = end


def _read(file: pq.ParquetFile, columns: list[str], rows: Sequence[int] | None) -> pa.Table:
    """Only the parts that hold one of the rows are decoded."""
    if rows is None or not columns:
        return file.read(columns=columns)
    asked, count = np.asarray(rows, np.int64), file.metadata.num_rows
    if missing := [row for row in rows if not 0 <= row < count]:
        raise ValueError(f"there is no row {missing[0]} among {count}")
    wanted = np.unique(asked)
    found = batches(file, columns, wanted, most=FEW)
    parts = [batch.take(pa.array(held - start)) for batch, held, start in found]
    schema = pa.schema([file.schema_arrow.field(name) for name in columns])
    return pa.Table.from_batches(parts, schema).take(pa.array(np.searchsorted(wanted, asked)))


def _array_lists(arrays: Sequence[Array | None]) -> pa.Array:
    there = [array for array in arrays if array is not None]
    offsets = np.cumsum([0, *(0 if array is None else len(array) for array in arrays)])
    items = pa.array(np.concatenate(there).astype(np.float32, copy=False))
    missing = pa.array([array is None for array in arrays])
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), items, mask=missing)


def _read_array_lists(lists: pa.Array) -> list[Array | None]:
    items, known = lists.values.to_numpy(), lists.is_valid().to_pylist()
    cuts = pairwise(lists.offsets.to_pylist())
    return [items[start:stop] if there else None for there, (start, stop) in zip(known, cuts, strict=True)]


def _arrays(kind: type, objects: Sequence[Any]) -> dict[str, pa.Array]:
    return {
        column.name: column.array([getattr(one, column.field, None) for one in objects])
        for column in COLUMNS[kind]
    }


def _values(
    kind: type, arrays: Mapping[str, pa.Array], given: Mapping[str, Sequence[Any]] | None = None
) -> Iterator[dict[str, Any]]:
    """The fields of each object, of those that are `given` or that there is a column for."""
    own = {c.field: c.values(arrays[c.name]) for c in COLUMNS[kind] if c.name in arrays}
    values = {**own, **(given or {})}
    # One after the other: thousands of dictionaries at once would start the garbage collector.
    return (dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True))


def segment_lists(trajectories: Sequence[Trajectory]) -> pa.Array:
    arrays = _arrays(Segment, [segment for t in trajectories for segment in t.segments])
    flat = pa.StructArray.from_arrays(list(arrays.values()), names=list(arrays))
    return pa.ListArray.from_arrays(_offsets([t.segments for t in trajectories]), flat)


def _list_array(kind: pa.DataType, lists: Sequence[Sequence[Any]]) -> pa.Array:
    offsets = _offsets(lists)
    items = np.fromiter(chain.from_iterable(lists), kind.to_pandas_dtype(), count=offsets[-1].as_py())
    if pa.types.is_float64(kind):
        items = _narrow(items)
    return pa.ListArray.from_arrays(offsets, pa.array(items))


def _shared_integers(items: Array) -> Array:
    """Items that are places or tokens, as Python's integers, equal ones as one object. An object of its own
    for each token takes a quarter of the time of reading a table, and four times the tokens' memory."""
    if items.dtype.kind != "i" or not items.size or items.min() < 0:
        return items
    bits = int(items.max()).bit_length()
    return items if bits > MOST_SHARED_BITS else _integers(bits).take(items)


@cache
def _integers(bits: int) -> Array:
    return np.arange(1 << bits).astype(object)


def _offsets(lists: Sequence[Sequence[Any]]) -> pa.Array:
    return pa.array(np.cumsum([0, *map(len, lists)]), pa.int32())


def _narrow(values: Array) -> Array:
    """Engines compute in float32; what one measured more finely is kept as it is."""
    with np.errstate(over="ignore"):
        narrow = values.astype(np.float32)
    # NaN equals itself only if asked for, which takes ten times as long.
    same = np.array_equal(narrow, values) or np.array_equal(narrow, values, equal_nan=True)
    return narrow if same else values


def _for_readers(table: pa.Table) -> dict[str, pa.Array]:
    """Columns that follow from others. Whoever lists or searches attempts need not read their tokens."""
    lists = _whole(table["segments"])
    lengths, turns = sampled_tokens(lists)
    return {
        "response": _responses(lists),
        "question": questions(_whole(table["prompt"])),
        "turns": pa.array(turns.astype(np.int64)),
        "sampled_tokens": pa.array(lengths.astype(np.int64)),
    }


def sampled_tokens(lists: pa.Array) -> tuple[Array, Array]:
    """Tokens and turns that the policy sampled, for each attempt of the column `segments`."""
    flat = lists.flatten()
    sampled = np.asarray(pc.equal(flat.field("source"), "policy"))
    tokens = np.asarray(flat.field("tokens").value_lengths())
    attempt = np.repeat(np.arange(len(lists)), np.asarray(lists.value_lengths()))
    turns = np.bincount(attempt, weights=sampled, minlength=len(lists))
    return np.bincount(attempt, weights=sampled * tokens, minlength=len(lists)), turns


def questions(prompts: pa.Array) -> pa.Array:
    """The start of the last message of the user, on one line. Attempts at one task share theirs."""
    found: dict[str, str] = {}
    for prompt in prompts.unique().to_pylist():
        said = [message.get("content") for message in _from_json(prompt) if message.get("role") == "user"]
        last = said[-1] if said else ""
        text = last if isinstance(last, str) else " ".join(str(part.get("text", "")) for part in last or ())
        line = " ".join(text[: 4 * QUESTION].split())[:QUESTION]
        found[prompt] = line.encode("utf-8", "replace").decode()
    return pa.array([found[prompt] for prompt in prompts.to_pylist()], pa.string())


def _responses(lists: pa.Array) -> pa.Array:
    """Everything after the prompt, as text."""
    flat = lists.flatten()
    texts = [
        "" if source == "prompt" else text
        for source, text in zip(flat.field("source").to_pylist(), flat.field("text").to_pylist(), strict=True)
    ]
    return pa.array(
        ["".join(texts[start:stop]) for start, stop in pairwise(lists.offsets.to_pylist())], pa.string()
    )


_ENCODER, _DECODER = json.JSONEncoder(ensure_ascii=False), json.JSONDecoder()


def _to_json(value: Any) -> str:
    # Most values are empty: the shortcut is a tenth of the time that a table takes.
    return "[]" if value == [] else "{}" if value == {} else _ENCODER.encode(value)


def _from_json(text: str) -> Any:
    return [] if text == "[]" else {} if text == "{}" else _DECODER.decode(text)


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
