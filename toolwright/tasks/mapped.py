"""Any data set by a mapping of its columns: a folder or file of this machine, or one of the hub's."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from toolwright.failures import UserError, nearest
from toolwright.tasks import rows
from toolwright.tasks.datasets import Example, task_row
from toolwright.tasks.rows import Row

ENDINGS = (".parquet", ".jsonl", ".json", ".jsonl.gz", ".json.gz", ".csv", ".tsv")
HUB_NAME = re.compile(r"(?!.*\.(?:parquet|jsonl?|gz|csv|tsv)$)[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
SPLITS = {
    "train": "train",
    "test": "test",
    "validation": "test",
    "valid": "test",
    "dev": "test",
    "eval": "test",
}
TARGETS = ("prompt", "answer", "system", "data_source")  # and extra.NAME


def read_mapping(words: Iterable[str]) -> dict[str, str]:
    """`prompt=question`: what of a task comes from which column, or from a text with {columns} in it."""
    found: dict[str, str] = {}
    for word in words:
        target, equals, column = word.partition("=")
        if not equals or not column:
            raise UserError(f"--map {word}: write TARGET=COLUMN, such as prompt=question")
        if target not in TARGETS and not target.startswith("extra."):
            raise UserError(f"--map {word}: {nearest(target, [*TARGETS, 'extra.NAME'])}")
        found[target] = column
    if "prompt" not in found:
        raise UserError("--map prompt=COLUMN is needed: the column with the question")
    return found


def mapped_rows(found: Iterable[Row], mapping: Mapping[str, str], *, split: str, source: str) -> list[Row]:
    """The rows of a task file."""
    return [
        _mapped(row, mapping, split=split, index=index, source=source, where=f"row {index + 1} of {split}")
        for index, row in enumerate(found)
    ]


def _mapped(row: Row, mapping: Mapping[str, str], *, split: str, index: int, source: str, where: str) -> Row:
    values = {target: _value(row, column, where) for target, column in mapping.items()}
    prompt = values["prompt"]
    if prompt is None:
        raise UserError(f"{where} has nothing in its column {mapping['prompt']!r}")
    if not isinstance(prompt, list):
        prompt = [{"role": "user", "content": str(prompt)}]
    if "system" in values:
        prompt = [{"role": "system", "content": str(values["system"])}, *prompt]
    extra = {key.removeprefix("extra."): value for key, value in values.items() if key.startswith("extra.")}
    example = Example(prompt, values.get("answer"), extra)
    return task_row(
        example, data_source=source or str(values.get("data_source") or ""), split=split, index=index
    )


def _value(row: Row, column: str, where: str) -> Any:
    if "{" in column:
        return re.sub(r"\{([^{}]+)\}", lambda name: str(_filled(row, name[1], where)), column)
    return _column(row, column, where)


def _filled(row: Row, name: str, where: str) -> Any:
    value = _column(row, name, where)
    if value is None:
        raise UserError(f"{where} has nothing in its column {name!r}")
    return value


def _column(row: Row, name: str, where: str) -> Any:
    value: Any = row
    for part in [name] if name in row else name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise UserError(f"{where} has no column {name!r}; {nearest(name, row)}")
        value = value[part]
    return value


def data_files(place: str, split: str) -> list[Path]:
    """The files behind a name: the one file, those of a folder, or those of `owner/name` of the hub. Where
    files tell train and test apart, those of the split; a folder without the split gives what it has."""
    path = Path(place)
    if path.expanduser().is_dir():
        found = local_files(path.expanduser())
    elif HUB_NAME.fullmatch(place) and not path.exists():
        found = hub_files(place)
    else:
        return [path]
    return found.get(split) or next(iter(found.values()))


def local_files(place: Path) -> dict[str, list[Path]]:
    """Files by split of a folder, or the one file."""
    if place.is_file():
        return {split_of(place.name): [place]}
    found = sorted(path for path in place.rglob("*") if path.name.lower().endswith(ENDINGS))
    if not found:
        raise UserError(f"{place} holds no Parquet, JSON lines or CSV file")
    by_split: dict[str, list[Path]] = {}
    for path in found:
        by_split.setdefault(split_of(path.relative_to(place).as_posix()), []).append(path)
    return by_split


def hub_files(name: str, *, only: str = "") -> dict[str, list[Path]]:
    """Download a data set's files from the hub, by split. `only`: those with this text in their path."""
    if name.lower().endswith(ENDINGS):
        raise UserError(f"no such file: {name} (looked in {Path.cwd()})")
    try:
        from huggingface_hub import HfApi, hf_hub_download

        listed = HfApi().list_repo_files(name, repo_type="dataset")
        wanted = [file for file in listed if file.lower().endswith(ENDINGS) and only in file]
        found: dict[str, list[Path]] = {}
        for file in wanted:
            found.setdefault(split_of(file), []).append(
                Path(hf_hub_download(name, file, repo_type="dataset"))
            )
    except Exception as error:  # the hub's client lets errors of three libraries through
        reason = str(error).strip().split("\n")[0]
        raise UserError(
            f"there is no folder or file {name}, and the Hugging Face hub gave no data set of that name "
            f"({type(error).__name__}: {reason}); without a network, fetch its files elsewhere and name "
            "their folder instead"
        ) from None
    if not wanted:
        raise UserError(
            f"{name} has no Parquet, JSON lines or CSV file{f' with {only!r} in its path' if only else ''}"
        )
    return found


def split_of(path: str) -> str:
    """train or test, by the words of a path; train if no word says."""
    words = re.findall(r"[a-z]+", path.lower())
    return next((SPLITS[word] for word in reversed(words) if word in SPLITS), "train")


def read_all(files: Iterable[Path]) -> list[Row]:
    return [row for file in files for row in rows.read(file)]
