"""Prepare data sets as task files, mix them, and show what a file holds."""

from __future__ import annotations

import argparse
import json
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from toolwright.cli import CommandParser
from toolwright.config.overrides import quote
from toolwright.failures import UserError
from toolwright.images import text_of
from toolwright.observe.attempt import visible
from toolwright.registry import check_settings, signature_of
from toolwright.tasks import rows
from toolwright.tasks.datasets import DATASETS, Dataset, download, task_rows
from toolwright.tasks.mapped import hub_files, local_files, mapped_rows, read_all, read_mapping
from toolwright.tasks.mixing import mix, read_sources
from toolwright.tasks.overview import overview

HUB = "hub"  # any data set, by a mapping of its columns
WIDEST = 160  # characters of a cell


def main(argv: list[str]) -> int:
    parser = CommandParser(prog="toolwright data", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    show = commands.add_parser(
        "show", help="the first rows of a Parquet, JSON lines or CSV file, its columns and counts"
    )
    show.add_argument("file", type=Path)
    show.add_argument("--rows", type=int, default=5, help="how many rows (5)")
    _prepare_arguments(commands.add_parser("prepare", help="turn a data set into task files"))
    mixed = commands.add_parser("mix", help="mix task files in given shares")
    mixed.add_argument("sources", nargs="+", metavar="FILE:WEIGHT", help="A.parquet:0.7 B.parquet:0.3")
    mixed.add_argument("--out", type=Path, required=True, metavar="FILE", help="the Parquet file to write")
    mixed.add_argument("--size", type=_positive, help="rows in all; without it, as many as there are")
    mixed.add_argument("--seed", type=int, default=0, help="the seed of the choice and the order (0)")
    arguments = parser.parse_args(argv)
    if arguments.command == "show":
        _show(arguments.file, arguments.rows)
    elif arguments.command == "mix":
        _mix(arguments)
    else:
        _prepare(arguments)
    return 0


def _prepare_arguments(prepare: argparse.ArgumentParser) -> None:
    names = [*DATASETS.names(), HUB]
    prepare.add_argument("name", choices=names, metavar="NAME", help=", ".join(names))
    prepare.add_argument(
        "dataset", nargs="?", help=f"`{HUB}`: a data set of the Hugging Face hub, or a folder or file"
    )
    prepare.add_argument(
        "--from",
        dest="source_files",
        action="append",
        default=[],
        type=Path,
        metavar="FILE",
        help="a raw file, once for each split; by default it is downloaded from the hub, or the rows are "
        "generated",
    )
    prepare.add_argument(
        "--out", type=Path, default=Path("data"), metavar="DIR", help="the folder to write to (data)"
    )
    prepare.add_argument(
        "--map",
        action="append",
        default=[],
        metavar="TARGET=COLUMN",
        help=f"`{HUB}`: prompt=question, answer=answer, system=…, extra.NAME=…; or a text with {{columns}}",
    )
    prepare.add_argument("--only", default="", help=f"`{HUB}`: read only files with this text in their path")
    prepare.add_argument("--source", help="the data source of all rows, which names their scorer")
    prepare.add_argument("--train", type=_positive, help="generated rows to train on (1000)")
    prepare.add_argument("--test", type=_positive, help="generated rows to test with (100)")
    prepare.add_argument("--seed", type=int, default=0, help="the seed of generated rows (0)")
    prepare.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="settings of generated rows"
    )


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number above 0, found {text!r}")
    return int(text)


def _show(path: Path, count: int) -> None:
    found = rows.read(path)
    columns = list(dict.fromkeys(column for row in found for column in row))
    console = Console()
    table = Table(show_lines=True)
    table.add_column("row", justify="right")
    for column in columns:
        table.add_column(column, overflow="fold")
    for number, row in enumerate(found[: max(count, 0)], 1):
        table.add_row(str(number), *(Text(_cell(row.get(column))) for column in columns))
    console.print(table)
    console.print(Text(f"{len(found):,} rows; columns: {', '.join(columns)}"))
    if "data_source" in columns:
        for source, number in Counter(str(row.get("data_source")) for row in found).most_common():
            console.print(Text(f"{number:>9,}  {source}"))


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        text = value
    elif isinstance(value, list) and all(isinstance(item, dict) and "role" in item for item in value):
        text = "\n".join(f"{message['role']}: {text_of(message.get('content'))}" for message in value)
    else:
        text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= WIDEST else text[: WIDEST - 1] + "…"


def _prepare(arguments: argparse.Namespace) -> None:
    name = arguments.name
    if name == HUB and arguments.source_files:
        raise UserError(f"`{HUB}` takes no --from; name the file or its folder: prepare {HUB} FILE --map …")
    if name != HUB and (arguments.dataset or arguments.map or arguments.only):
        raise UserError(
            f"`{name}` has known columns and takes no --map; for another data set, run `prepare {HUB} NAME "
            "--map …`"
        )
    read = name == HUB or arguments.source_files or DATASETS.get(name).target().generate is None
    if read and (arguments.train or arguments.test or arguments.set):
        raise UserError(
            f"--train, --test and --set are for generated rows, and those of {arguments.dataset or name} are "
            "read; prepare them all, and set task.train_size=N and task.held_out_size=N when you train"
        )
    prepared: dict[str, tuple[str, list[rows.Row]]] = {}  # split and rows, by file
    if name == HUB:
        prepared = _mapped(arguments)
    else:
        dataset, raw = DATASETS.get(name).target(), _raw(arguments)
        for target, (split, found) in raw.items():
            prepared[target] = (split, task_rows(name, found, split=split, source=arguments.source))
        if dataset.documents is not None:
            documents = [d for _, found in raw.values() for row in found for d in dataset.documents(row)]
            _write_corpus(arguments.out / f"{name}_corpus.jsonl", documents)
    for target, (_, found) in prepared.items():
        destination = arguments.out / f"{target}.parquet"
        rows.write(destination, found)
        print(f"{len(found):,} task{'s' * (len(found) != 1)} in {destination}")
    print(visible(overview(dict(prepared.values()))))
    files = {split: arguments.out / f"{target}.parquet" for target, (split, _) in prepared.items()}
    if "train" in files:
        held_out = [f"task.held_out={quote(str(path))}" for split, path in files.items() if split != "train"]
        words = [f"task.train={quote(str(files['train']))}", *held_out[:1]]
        print(shlex.join(["toolwright", "train", "task=file", *words]))


def _raw(arguments: argparse.Namespace) -> dict[str, tuple[str, list[rows.Row]]]:
    """Split and rows as the data set has them, by the file that they are written to."""
    name, dataset = arguments.name, DATASETS.get(arguments.name).target()
    if arguments.source_files:
        return _of_files(name, dataset, arguments.source_files)
    if dataset.generate is None:
        return {f"{name}_{split}": (split, rows.read(path)) for split, path in download(name).items()}
    settings = check_settings(
        f"data set {name!r}",
        signature_of(dataset.generate).parameters.values(),
        _settings(arguments.set),
        prefix="--set ",
        reserved=("seed", "train", "test"),
    )
    made = dataset.generate(
        seed=arguments.seed, train=arguments.train or 1000, test=arguments.test or 100, **settings
    )
    return {f"{name}_{split}": (split, found) for split, found in made.items()}


def _of_files(name: str, dataset: Dataset, sources: Sequence[Path]) -> dict[str, tuple[str, list[rows.Row]]]:
    found: dict[str, tuple[str, list[rows.Row]]] = {}
    for source in sources:
        for target, read in _of_file(name, dataset, source).items():
            if target in found:
                raise UserError(f"--from {source}: another of the files is {target} too")
            found[target] = read
    return found


def _of_file(name: str, dataset: Dataset, source: Path) -> dict[str, tuple[str, list[rows.Row]]]:
    """The rows of a file whose name says their split; or all rows, divided as the data set itself does."""
    stem, found = source.name.split(".")[0].lower(), rows.read(source)
    split = next((split for split in (*dataset.files, "train", "test") if split in stem), stem)
    if split == stem and name.startswith(stem) and dataset.split_of is not None:
        try:
            return {
                f"{name}_{one}": (one, [row for row in found if dataset.split_of(row) == one])
                for one in sorted({dataset.split_of(row) for row in found})
            }
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"{source}: a row does not fit data set {name}: {type(error).__name__} {error}"
            ) from None
    if split == stem == name and len(dataset.files) == 1:
        [split] = dataset.files
        stem = f"{name}_{split}"
    return {stem if stem.startswith(name) else f"{name}_{stem}": (split, found)}


def _settings(words: list[str]) -> dict[str, str]:
    for word in words:
        if "=" not in word:
            raise UserError(f"--set {word}: write KEY=VALUE")
    return dict(word.split("=", 1) for word in words)


def _mapped(arguments: argparse.Namespace) -> dict[str, tuple[str, list[rows.Row]]]:
    if arguments.dataset is None:
        raise UserError(f"`prepare {HUB}` needs a data set: prepare {HUB} NAME --map prompt=question")
    mapping, place = read_mapping(arguments.map), Path(arguments.dataset).expanduser()
    files = local_files(place) if place.exists() else hub_files(arguments.dataset, only=arguments.only)
    stem = arguments.dataset.rstrip("/").rpartition("/")[2].split(".")[0].lower()
    prepared = {}
    for split, paths in files.items():
        found = mapped_rows(read_all(paths), mapping, split=split, source=arguments.source or "")
        prepared[stem if split in stem else f"{stem}_{split}"] = (split, found)
    if not any(row["data_source"] for _, found in prepared.values() for row in found):
        print("the rows have no data source: give --source SCORER here, or reward.function=… when you train")
    return prepared


def _write_corpus(path: Path, documents: list[rows.Row]) -> None:
    """Add documents to the corpus. Training and held-out questions come from two files and share one."""
    if not documents:
        return
    known = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    new = [json.dumps(document, ensure_ascii=False) for document in documents]
    unique = list(dict.fromkeys([*known, *new]))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(line + "\n" for line in unique), encoding="utf-8")
    print(f"{len(unique):,} documents in {path}, for tools.search.corpus")


def _mix(arguments: argparse.Namespace) -> None:
    sources = read_sources(arguments.sources)
    mixed = mix(sources, size=arguments.size, seed=arguments.seed)
    rows.write(arguments.out, mixed)
    print(f"{len(mixed):,} task{'s' * (len(mixed) != 1)} in {arguments.out}")
    for source, number in Counter(str(row["data_source"]) for row in mixed).most_common():
        print(f"{number:>9,}  {visible(source)}")
    print(visible(overview({arguments.out.stem: mixed})))
