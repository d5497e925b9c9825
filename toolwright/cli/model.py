"""Get, make, convert and merge models; show what a folder holds."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from toolwright.cli import CommandParser
from toolwright.failures import UserError
from toolwright.models.known import KNOWN, place_of

DTYPES = ("bfloat16", "float16", "float32")


def main(argv: list[str]) -> int:
    arguments = _parser().parse_args(argv)
    if arguments.command == "show":
        _show(arguments.folder)
        return 0
    out: Path = arguments.out or place_of(arguments.name)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} already exists; choose another --out, or remove it")
    partial = out.with_name(out.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        print(
            {"get": _get, "init": _init, "convert": _convert, "merge": _merge}[arguments.command](
                arguments, partial
            )
        )
        if out.is_dir():
            out.rmdir()
        partial.rename(out)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    print(f"saved in {out}; use it as model.path={out}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(prog="toolwright model", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    names = ", ".join(KNOWN)
    get = commands.add_parser("get", help="download a model")
    get.add_argument(
        "name", metavar="NAME", help=f"{names}, or owner/name of the Hugging Face hub; name@revision"
    )
    get.add_argument("--out", type=Path, metavar="DIR", help="the folder to write (models/NAME)")
    init = commands.add_parser("init", help="make a model of random weights")
    init.add_argument(
        "like", metavar="LIKE", help=f"the model to imitate: {names}, a folder, or llama, gpt2, …"
    )
    init.add_argument(
        "changes",
        nargs="*",
        default=[],
        metavar="KEY=VALUE",
        help="settings of its config.json: num_hidden_layers=2",
    )
    init.add_argument("--out", type=Path, required=True, metavar="DIR")
    init.add_argument("--tokenizer", type=Path, metavar="DIR", help="its tokenizer; else LIKE's, else bytes")
    init.add_argument("--seed", type=int, default=0)
    convert = commands.add_parser(
        "convert", help="a GGUF file, a checkpoint or a folder of other weights, to a Hugging Face folder"
    )
    convert.add_argument(
        "source",
        type=Path,
        metavar="SOURCE",
        help="FILE.gguf, runs/NAME/checkpoints/step_N, or a folder with pytorch_model.bin or safetensors",
    )
    convert.add_argument("--out", type=Path, required=True, metavar="DIR")
    convert.add_argument(
        "--like", type=Path, metavar="DIR", help="checkpoint: a folder of the same model (runs/NAME/model)"
    )
    convert.add_argument("--dtype", choices=DTYPES, help="folder: the precision to write (as it is)")
    merge = commands.add_parser("merge", help="add a LoRA adapter to its base")
    merge.add_argument("adapter", type=Path, metavar="ADAPTER")
    merge.add_argument("--out", type=Path, required=True, metavar="DIR")
    merge.add_argument("--base", type=Path, metavar="DIR", help="the model (as the adapter names it)")
    show = commands.add_parser("show", help="show what a folder holds, and whether it takes the fast path")
    show.add_argument("folder", type=Path, metavar="DIR")
    return parser


def _get(arguments: argparse.Namespace, folder: Path) -> str:
    from toolwright.models.getting import get

    return f"{arguments.name} from {get(arguments.name, folder)}"


def _init(arguments: argparse.Namespace, folder: Path) -> str:
    from toolwright.models.making import make

    changes = _changes(arguments.changes)
    count = make(folder, arguments.like, changes, tokenizer=arguments.tokenizer, seed=arguments.seed)
    return f"{count:,} random parameters like {arguments.like}"


def _convert(arguments: argparse.Namespace, folder: Path) -> str:
    source: Path = arguments.source
    if (source / "config.json").is_file() or (source / "adapter_config.json").is_file():
        from toolwright.models.converting import rewrite

        rewrite(source, folder, dtype=arguments.dtype)
    elif arguments.dtype:
        raise UserError(f"--dtype needs a model's folder, but {source} is not one; convert it first")
    elif source.is_file():
        from toolwright.models import converting

        converting.convert(source, folder)
    elif source.is_dir():
        from toolwright.trainer.conversion import from_checkpoint

        from_checkpoint(source, folder, like=arguments.like)
    else:
        raise UserError(f"{source} does not exist; name a GGUF file, a checkpoint or a model's folder")
    return f"{source} converted"


def _merge(arguments: argparse.Namespace, folder: Path) -> str:
    from toolwright.models import adapter_folder, huggingface
    from toolwright.models.tokenizer import Tokenizer

    adapter: Path = arguments.adapter
    if not adapter_folder.is_adapter(adapter):
        raise UserError(f"{adapter} is not an adapter folder: it has no {adapter_folder.CONFIG}")
    base = arguments.base or adapter_folder.base_of(adapter)
    decoder = huggingface.load(base)
    adapter_folder.load(decoder, adapter, base=base)
    huggingface.save(decoder, folder)
    Tokenizer.load(adapter if (adapter / "tokenizer.json").is_file() else base).save(folder)
    return f"{adapter} added to {base}"


def _show(folder: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    from toolwright.models.showing import describe

    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder")
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in describe(folder):
        table.add_row(name, value)
    Console(highlight=False, soft_wrap=True).print(table)


def _changes(words: Sequence[str]) -> dict[str, Any]:
    """Parse values as YAML, like every other key=value."""
    import yaml

    changes = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not key or not equals:
            raise UserError(f"{word!r}: expected KEY=VALUE, as in num_hidden_layers=2")
        changes[key] = yaml.safe_load(value)
    return changes
