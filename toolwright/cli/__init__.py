"""The `toolwright` command: each module here is one subcommand."""

from __future__ import annotations

import argparse
import ast
import errno
import importlib.util
import io
import os
import pkgutil
import sys
from pathlib import Path
from typing import Any, NoReturn

from toolwright import __version__
from toolwright.failures import UserError, nearest
from toolwright.observe.attempt import visible
from toolwright.observe.outlet import silence
from toolwright.registry import added_to, load_object

# Errors of the system that the user can mend: rights, a read-only disk, a full one, a quota, a long name.
NOT_OURS = (errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ENAMETOOLONG)
USAGE = """\
usage: toolwright COMMAND [argument …]

Train language-model agents to use tools by reinforcement learning.

Commands:
{commands}

First steps, which take a minute on a laptop:
  toolwright sft task=sort steps=60 run.name=warm
  toolwright train task=sort model.path=runs/warm/model run.name=sorted
  toolwright view sorted

`toolwright COMMAND --help` shows the options of a command; `toolwright --version` prints the version.
"""


class CommandParser(argparse.ArgumentParser):
    """Shows its description as it is written, and reports a mistake as every other one of the user's."""

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **options)

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; `{self.prog} --help` lists the options")


def main(argv: list[str] | None = None) -> int:
    """Run one command. A mistake of the user is one message on stderr and exit status 2."""
    words = sys.argv[1:] if argv is None else argv
    try:
        _open_standard_streams()
        status = _dispatch(words)
        sys.stdout.flush()  # so that a closed pipe is noticed here
        return status
    except UserError as error:
        _print_error(f"toolwright: {visible(str(error))}")
        return 2
    except KeyboardInterrupt:
        _print_error("toolwright: interrupted")
        return 130
    except BrokenPipeError:
        silence(sys.stdout)  # the reader (`| head`) has gone; Python would print an error while closing
        return 0
    except OSError as error:
        if error.errno not in NOT_OURS:
            raise
        where = f"{error.filename}: {error.strerror}" if error.filename is not None else str(error)
        _print_error(f"toolwright: {visible(where)}")
        try:
            sys.stdout.flush()
        except OSError:  # it is what is full
            silence(sys.stdout)
        return 2


def _open_standard_streams() -> None:
    """Open stdout and stderr if they are closed (`>&-`), so that no other file takes their numbers. Let both
    print `?` for a sign that the terminal's encoding lacks."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, number)
            setattr(sys, name, os.fdopen(number, "w", closefd=False))
        if isinstance(stream := getattr(sys, name), io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _print_error(text: str) -> None:
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:  # the terminal has hung up
        silence(sys.stderr)


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(USAGE.format(commands=_listing()), end="")
        return 0
    name, *rest = words
    if name in ("-V", "--version"):
        print(f"toolwright {__version__}")
        return 0
    if name not in commands():
        raise UserError(f"unknown command {name!r}; {nearest(name, commands())}")
    return int(load_object(commands()[name])(rest))


def commands() -> dict[str, str]:
    """Each command with a reference to its function, from this package or a plugin."""
    names = [module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")]
    own = {name.replace("_", "-"): f"{__name__}.{name}:main" for name in names}
    return dict(sorted({**own, **added_to(__name__)}.items()))


def _listing() -> str:
    width = max(map(len, commands()))
    return "\n".join(f"  {name:<{width}}  {_help_line(name)}" for name in commands())


def _help_line(name: str) -> str:
    """The first line of the command's docstring. It is read without an import, which would be slow."""
    spec = importlib.util.find_spec(commands()[name].partition(":")[0])
    if spec is None or spec.origin is None:
        return ""
    text = ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))) or ""
    return text.split("\n")[0]
