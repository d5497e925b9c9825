"""Read and write the rows of Parquet, JSON lines and CSV files, as plain JSON values."""

from __future__ import annotations

import codecs
import csv
import datetime
import decimal
import gzip
import io
import json
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolwright.failures import UserError
from toolwright.images import data_url, kind_of

if TYPE_CHECKING:
    import pyarrow as pa

Row = dict[str, Any]
PARQUET = b"PAR1"
SEPARATORS = {".csv": ",", ".tsv": "\t"}
UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
MOST_DEPTH = 100  # of lists and objects within each other; what walks through a row does so by recursion
MOST_ROW = 1 << 26  # characters
MOST_UNPACKED = 1 << 33  # bytes of a gzip file, which may promise a thousand times its size


def read(path: Path) -> list[Row]:
    """Read all rows. The content decides the format, not the name; gzip and a JSON array are read too. Only
    CSV is known by its name: .csv, or .tsv with tabs."""
    path = path.expanduser()
    head = _head(path)
    if head == PARQUET:
        rows = _parquet(path)
    elif path.suffix.lower() in SEPARATORS:
        rows = _csv(path)
    else:
        try:
            content = _unpacked(path) if head[:2] == b"\x1f\x8b" else path.read_bytes()
        except (EOFError, gzip.BadGzipFile, zlib.error):
            raise UserError(f"{path} is neither Parquet nor JSON lines") from None
        if b"\0" in content[:1000] and not content.startswith(UTF_16):
            raise UserError(f"{path} is neither Parquet nor JSON lines")
        rows = _json(_text(content, path), path)
    if not rows:
        raise UserError(f"{path} has no rows")
    return rows


def count(path: Path) -> int:
    """Count the rows; those of a Parquet file without reading them."""
    path = path.expanduser()
    if _head(path) != PARQUET:
        return len(read(path))
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return int(pq.ParquetFile(path).metadata.num_rows)
    except pa.ArrowException as error:
        raise UserError(f"{path} begins like Parquet but cannot be read: {error}") from None


def write(path: Path, rows: Sequence[Row]) -> None:
    """Write one Parquet file, atomically."""
    import pyarrow.parquet as pq

    table = to_table(rows, str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    pq.write_table(table, partial, compression="zstd")
    os.replace(partial, path)


def to_table(rows: Sequence[Row], where: str) -> pa.Table:
    """The rows as a table, which has one type for each column."""
    import pyarrow as pa

    try:
        return pa.Table.from_pylist(list(rows))
    except (pa.ArrowException, OverflowError):
        for column in dict.fromkeys(name for row in rows for name in row):
            try:
                pa.array([row.get(column) for row in rows])
            except (pa.ArrowException, OverflowError) as error:
                raise UserError(
                    f"{where}: the values of column `{column}` are of different types or too large, and "
                    f"Parquet has one type for a column: {error}"
                ) from None
        raise


def plain(value: Any) -> Any:
    """Convert a value to JSON types. Parquet has more types, and some readers return numpy arrays."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):  # numpy's arrays and scalars
        return plain(value.tolist())
    if isinstance(value, decimal.Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, bytes):
        return data_url(value) if kind_of(value) else value.decode(errors="replace")
    return str(value)


def _head(path: Path) -> bytes:
    if path.is_dir():
        raise UserError(f"{path} is a folder: name a Parquet or JSON lines file in it")
    if not path.is_file():
        raise UserError(f"no such file: {path} (looked in {Path.cwd()})")
    with path.open("rb") as file:
        return file.read(len(PARQUET))


def _parquet(path: Path) -> list[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return [plain(row) for row in pq.ParquetFile(path).read().to_pylist()]
    except pa.ArrowException as error:
        raise UserError(f"{path} begins like Parquet but cannot be read: {error}") from None


def _csv(path: Path) -> list[Row]:
    text = io.StringIO(_text(path.read_bytes(), path), newline="")
    reader = csv.reader(text, delimiter=SEPARATORS[path.suffix.lower()], strict=True)
    rows = []
    try:
        header = next(reader, [])
        if twice := next((name for name in header if name and header.count(name) > 1), ""):
            raise UserError(f"{path} has two columns {twice!r}")
        for cells in reader:
            if not cells:  # an empty line
                continue
            while len(cells) > len(header) and not cells[-1]:  # spreadsheets pad their lines
                cells.pop()
            if len(cells) != len(header):
                raise UserError(
                    f"{path}, line {reader.line_num} has {len(cells)} cell{'s' * (len(cells) != 1)}, "
                    f"the header has {len(header)}; put text that has a separator or a quote into quotes"
                )
            rows.append({name: cell for name, cell in zip(header, cells, strict=True) if name})
    except csv.Error as error:
        raise UserError(f"{path} cannot be read as CSV: line {reader.line_num}: {error}") from None
    return rows


def _text(content: bytes, path: Path) -> str:
    """The text of a file in UTF-8, or in UTF-16 where it begins with the mark of that."""
    try:
        return content.decode("utf-16" if content.startswith(UTF_16) else "utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise UserError(
            f"{path}, line {line} is not UTF-8; if it is Western European text: "
            f"iconv -f LATIN1 -t UTF-8 OLD > NEW"
        ) from None


def _unpacked(path: Path) -> bytes:
    with gzip.open(path) as file:
        content = file.read(MOST_UNPACKED + 1)
    if len(content) > MOST_UNPACKED:
        raise UserError(
            f"{path} has more than {MOST_UNPACKED:,} bytes when unpacked; use Parquet for as many"
        )
    return content


def _json(text: str, path: Path) -> list[Row]:
    if text.lstrip().startswith("["):
        try:
            rows = json.loads(text)
        except RecursionError:
            raise UserError(f"{path}: {TOO_DEEP}") from None
        except ValueError as error:  # also a number of more digits than Python reads
            raise UserError(f"{path} begins like a JSON array but is not one: {error}") from None
        for number, row in enumerate(rows, 1):
            _must_be_row(row, f"{path}, row {number}")
        return rows
    rows = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        if len(line) > MOST_ROW:
            raise UserError(f"{where} has {len(line):,} characters; a row may have {MOST_ROW:,}")
        try:
            row = json.loads(line)
        except RecursionError:
            raise UserError(f"{where}: {TOO_DEEP}") from None
        except ValueError as error:
            why = error.msg if isinstance(error, json.JSONDecodeError) else error
            raise UserError(
                f"{path} is neither Parquet nor JSON lines: line {number} is not JSON ({why})"
            ) from None
        _must_be_row(row, where)
        rows.append(row)
    return rows


TOO_DEEP = f"lists and objects are nested more than {MOST_DEPTH} deep"


def _must_be_row(row: Any, where: str) -> None:
    if not isinstance(row, dict):
        raise UserError(f"{where}: expected an object with columns, found {type(row).__name__}")
    level: list[Any] = [row]
    for _ in range(MOST_DEPTH):
        inner = [one.values() if isinstance(one, dict) else one for one in level]
        level = [item for items in inner for item in items if isinstance(item, dict | list)]
        if not level:
            return
    raise UserError(f"{where}: {TOO_DEEP}")
