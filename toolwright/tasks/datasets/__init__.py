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
    """One row, understood."""

    prompt: str
    ground_truth: Any
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Dataset:
    """A data set of the Hugging Face hub, and how to read it there and in its original files."""

    data_source: str  # the hub's name of it; scorers are registered under it
    files: Mapping[str, str]  # split to file on the hub
    example: Callable[[Row], Example]


DATASETS: Registry[Callable[[], Dataset]] = Registry("data set", "toolwright.tasks.datasets")


def task_rows(name: str, rows: Iterable[Row], *, split: str) -> list[Row]:
    """The rows of a task file."""
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
        prepared.append(
            {
                "data_source": dataset.data_source,
                "prompt": [{"role": "user", "content": example.prompt}],
                "reward_model": {"style": "rule", "ground_truth": example.ground_truth},
                "extra_info": {"split": split, "index": index, **example.extra},
            }
        )
    return prepared


def download(name: str) -> dict[str, Path]:
    """The files of a data set from the hub, by split; kept in the hub's own cache."""
    dataset = DATASETS.get(name).target()
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        raise UserError(
            f"downloading {name} needs huggingface_hub: pip install huggingface_hub, or give --from FILE"
        ) from None
    paths = {}
    for split, file in dataset.files.items():
        try:
            paths[split] = Path(hf_hub_download(dataset.data_source, file, repo_type="dataset"))
        except Exception as error:  # the hub's client lets errors of three libraries through
            reason = str(error).strip().split("\n")[0]
            raise UserError(
                f"cannot download {file} of {dataset.data_source} from the Hugging Face hub "
                f"({type(error).__name__}: {reason}); without a network, fetch the file elsewhere and "
                f"run `toolwright data prepare {name} --from FILE`"
            ) from None
    return paths
