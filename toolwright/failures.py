"""The kinds of failure. An error gets its kind where it happens; the kind decides who reacts and how."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

ENDED = "the run ended with an error"  # in log.txt, before the error


class UserError(Exception):
    """Something the user gave cannot work; commands print the message alone and exit with code 2."""


class InfrastructureFailure(Exception):
    """A machine, a server or a worker let us down; the same attempt may succeed elsewhere."""


class TaskFailure(Exception):
    """This attempt at this task cannot be judged; it is dropped, counted and reported, never scored 0."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for an unknown name: `did you mean …?`, or the list of what is known."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    return "known: " + ", ".join(names)


@contextmanager
def extra(name: str, *, needed_by: str) -> Iterator[None]:
    """Import packages of one of our extras inside the block; if one is missing, say how to install it."""
    try:
        yield
    except ImportError as error:
        raise UserError(
            f"{needed_by} needs further packages: pip install 'toolwright[{name}]' ({error})"
        ) from None


@contextmanager
def reraised(kind: type[Exception], what: str) -> Iterator[None]:
    """Raise an error of other people's code inside the block as one of ours, which begins with `what`."""
    try:
        yield
    except (UserError, InfrastructureFailure, TaskFailure):
        raise
    except Exception as error:
        raise kind(f"{what} {type(error).__name__}: {error}") from error
