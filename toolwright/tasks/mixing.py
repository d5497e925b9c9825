"""Several task files mixed into one, each with its share."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from pathlib import Path

from toolwright.failures import UserError
from toolwright.tasks import rows
from toolwright.tasks.rows import Row


def read_sources(words: Sequence[str]) -> list[tuple[Path, float]]:
    """`A.parquet:0.7`: a file and its weight, 1 where none is given."""
    found = []
    for word in words:
        name, colon, weight = word.rpartition(":")
        if not colon or Path(word).expanduser().is_file():
            found.append((Path(word), 1.0))
            continue
        try:
            share = float(weight)
        except ValueError:
            share = 0.0
        if not 0 < share < float("inf"):
            raise UserError(f"{word}: the weight of a file is a positive number, such as {name}:0.7")
        found.append((Path(name), share))
    return found


def mix(sources: Sequence[tuple[Path, float]], *, size: int | None, seed: int) -> list[Row]:
    """Rows of all files in proportion to their weights, shuffled, none twice. `size`: how many in all; None:
    as many as the files have in these shares."""
    found = [(path, weight, _checked(path)) for path, weight in sources]
    total = sum(weight for _, weight in sources)
    most = min(len(own) * total / weight for _, weight, own in found)
    if size is not None and size > most + 1e-9:
        path, weight, own = min(found, key=lambda one: len(one[2]) / one[1])
        raise UserError(
            f"{size:,} rows need {size * weight / total:,.0f} of {path}, which has {len(own):,}; "
            f"at most {int(most):,} can be mixed with these weights"
        )
    wanted = int(most + 1e-9) if size is None else size
    mixed: list[Row] = []
    share = 0.0
    for place, (_, weight, own) in enumerate(found):
        share += weight / total
        count = min(len(own), round(wanted * share) - len(mixed))
        mixed += random.Random(f"{seed} {place}").sample(own, count)
    random.Random(seed).shuffle(mixed)
    _fit_together([(path, own) for path, _, own in found])
    return mixed


def _checked(path: Path) -> list[Row]:
    own = rows.read(path)
    for number, row in enumerate(own, 1):
        for column in ("prompt", "data_source"):
            if not row.get(column):
                raise UserError(
                    f"{path}, row {number} has no `{column}`; only task files can be mixed, which "
                    "`toolwright data prepare` writes"
                )
    return own


def _fit_together(found: Sequence[tuple[Path, list[Row]]]) -> None:
    """Raise a UserError if no Parquet file can hold the rows of all: it has one type for each column."""
    import pyarrow as pa

    schemas = [(path, rows.to_table(own, str(path)).schema) for path, own in found]
    for place, (path, schema) in enumerate(schemas):
        for before, known in schemas[:place]:
            try:
                pa.unify_schemas([known, schema], promote_options="permissive")
            except pa.ArrowTypeError as error:
                fields = ".".join(re.findall(r"Field (\S+) has incompatible types", str(error)))
                one, other = map(_word, str(error).rpartition("types: ")[2].split(" vs "))
                raise UserError(
                    f"{path} does not fit {before}: `{fields}` is {other} in the first, {one} in the second"
                ) from None


def _word(kind: str) -> str:
    """A type of Arrow's in a word."""
    known = {"struct": "an object", "list": "a list", "string": "text"}
    return known.get(kind.partition("<")[0], f"a number ({kind})")
