"""Public data sets that `data prepare` turns into task files: where each lies and what a row of it means."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolwright.failures import UserError
from toolwright.registry import Registry
from toolwright.tasks.rows import Row


@dataclass(frozen=True)
class Example:
    """A row of a data set, as its reader understood it."""

    prompt: str | list[dict[str, Any]]
    ground_truth: Any
    extra: Mapping[str, Any] = field(default_factory=dict)
    data_source: str | None = None  # where it is not the data set's


@dataclass(frozen=True)
class Dataset:
    """A data set of the Hugging Face hub, and how to read it there and in its original files; or one that is
    made here."""

    data_source: str  # scorers are registered under it
    files: Mapping[str, str]  # split to file on the hub
    example: Reader
    hub: str = ""  # the hub's name of it, where it is not the data source
    generate: Callable[..., dict[str, list[Row]]] | None = None  # rows by split, of `seed`, `train`, `test`
    split_of: Callable[[Row], str] | None = None  # of a row, where a file of all rows does not say
    documents: Callable[[Row], list[Row]] | None = None  # a row's passages, for the corpus of a search tool


DATASETS: Registry[Callable[[], Dataset]] = Registry("data set", "toolwright.tasks.datasets")
Reader = Callable[[Row], Example]


def dataset(name: str, source: str, files: Mapping[str, str], **more: Any) -> Callable[[Reader], Reader]:
    """Register a data set by the function that reads a row of it; `more` are further fields of `Dataset`."""

    def register(example: Reader) -> Reader:
        DATASETS.register(name)(lambda: Dataset(source, files, example, **more))
        return example

    return register


def hub_splits(place: str, *splits: str) -> dict[str, str]:
    """The file of each split where a data set of the hub has one; `place` has `{}` for the split."""
    return {split: f"{place.format(split)}-00000-of-00001.parquet" for split in splits}


def task_rows(name: str, rows: Iterable[Row], *, split: str, source: str | None = None) -> list[Row]:
    """The rows of a task file. `source`: their data source, instead of the data set's."""
    dataset = DATASETS.get(name).target()
    prepared: list[Row] = []
    for index, row in enumerate(rows):
        try:
            example = dataset.example(row)
        except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
            reason = f"there is no {error}" if isinstance(error, KeyError) else str(error)
            raise UserError(
                f"row {index + 1} is not one of {name}: {reason}; it has the columns {', '.join(row)}"
            ) from None
        data_source = source or example.data_source or dataset.data_source
        prepared.append(task_row(example, data_source=data_source, split=split, index=index))
    return prepared


def task_row(example: Example, *, data_source: str, split: str, index: int) -> Row:
    prompt = example.prompt
    return {
        "data_source": data_source,
        "prompt": [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt,
        "reward_model": {"style": "rule", "ground_truth": example.ground_truth},
        "extra_info": {"split": split, "index": index, **example.extra},
    }


def download(name: str) -> dict[str, Path]:
    """The files of a data set from the hub, by split; kept in the hub's own cache."""
    dataset = DATASETS.get(name).target()
    if not dataset.files:
        raise UserError(f"{name} has no files on the hub: give your own with --from FILE")
    hub = dataset.hub or dataset.data_source
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        raise UserError(
            f"downloading {name} needs huggingface_hub: pip install huggingface_hub, or give --from FILE"
        ) from None
    paths = {}
    for split, file in dataset.files.items():
        try:
            paths[split] = Path(hf_hub_download(hub, file, repo_type="dataset"))
        except Exception as error:  # the hub's client lets errors of three libraries through
            reason = str(error).strip().split("\n")[0]
            raise UserError(
                f"cannot download {file} of {hub} from the Hugging Face hub "
                f"({type(error).__name__}: {reason}); without a network, fetch the file elsewhere and "
                f"run `toolwright data prepare {name} --from FILE`"
            ) from None
    return paths
