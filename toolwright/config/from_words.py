"""A configuration for Python: what a command would run with, asked for by the same words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toolwright.failures import UserError


def from_words(command: str, words: Sequence[str]) -> Any:
    """The configuration of `toolwright COMMAND WORD …`; a UserError lists all that is wrong."""
    from toolwright.config.compose import resolve
    from toolwright.config.launch import LaunchParser, source_of

    for word in words:
        if not isinstance(word, str):
            raise UserError(f"{word!r:.80} is a {type(word).__name__}: settings are text like 'task=sums'")
    args = LaunchParser(command).parse(list(words))
    if args.multirun:
        raise UserError("--multirun works on the command line only; in Python, write a loop over the values")
    return resolve(source_of(command, args), args.overrides).config


def config(*words: str) -> Any:
    """The configuration that `toolwright train` would use; of another command where that comes first:
    `config("sft", "model=small")`."""
    from toolwright.config.compose import commands

    named = bool(words) and words[0] in commands()
    return from_words(words[0], words[1:]) if named else from_words("train", words)
