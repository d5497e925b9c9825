"""A check that a tokenizer has the special tokens that its chat template writes."""

from __future__ import annotations

import logging
import re
from functools import cache
from typing import Any

from toolwright.failures import UserError
from toolwright.models.chat import ASKED, PROBE
from toolwright.models.tokenizer import Tokenizer

NAMED = ("bos_token", "eos_token", "pad_token")
SPECIAL = re.compile(r"<\|[^<>|\s]+\|>")
MARK = re.compile(r"<[^<>\s]+>|\[[^\[\]\s]+\]|</s>")


def check(tokenizer: Tokenizer) -> None:
    """Raise a UserError that names what is missing. A missing template is reported where one is needed."""
    where = f"the tokenizer{f' in {tokenizer.source}' if tokenizer.source else ''}"
    for name in NAMED:
        token = tokenizer.special(name)
        if token and tokenizer.backend.token_to_id(token) is None:
            raise UserError(
                f"{where} names {token!r} as its {name}, but there is no such token in tokenizer.json"
            )
    if not tokenizer.end_marks:
        _warn(
            f"{where} has no token with the number that ends a turn, {min(tokenizer.end_tokens)}, so every "
            "turn would reach its length limit; name its eos_token in tokenizer_config.json"
        )
    if not tokenizer.config.get("chat_template"):
        return
    chat = tokenizer.chat
    for name in NAMED:
        if name not in chat.specials and PROBE in _written(tokenizer, name):
            raise UserError(
                f"{where} has no {name}, which its chat template writes: name one in tokenizer_config.json"
            )
    closing = MARK.findall(chat.closing)
    if closing and tokenizer.backend.token_to_id(closing[-1]) is None:
        raise UserError(
            f"the chat template ends a turn with {closing[-1]!r}, but {where} has no such token, so a turn "
            "could never end; add the token to the tokenizer, or use the template that the model was trained "
            "with"
        )
    for mark in plain_marks(tokenizer):
        _warn(
            f"the chat template writes {mark} as plain text, because {where} has no such token; this is "
            "correct only if the model was trained this way"
        )


def plain_marks(tokenizer: Tokenizer) -> list[str]:
    """Find what the template writes like a special token, and is none."""
    try:
        text = tokenizer.chat.render([ASKED, {"role": "assistant", "content": "!"}, ASKED])
    except UserError:
        return []
    return sorted(mark for mark in set(SPECIAL.findall(text)) if tokenizer.backend.token_to_id(mark) is None)


@cache
def _warn(message: str) -> None:
    """Warn once a process: several of its roles read the same tokenizer."""
    logging.getLogger(__name__).warning(message)


def _written(tokenizer: Tokenizer, name: str) -> str:
    """A conversation in which a special token of this name would be seen."""
    said = [ASKED, {"role": "assistant", "content": "!"}]
    named: dict[str, Any] = {name: PROBE}
    try:
        return tokenizer.chat.render(said, generate=False, **named)
    except UserError:
        return ""  # a template that takes no such conversation says so when it is used
