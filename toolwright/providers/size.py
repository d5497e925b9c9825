"""How many tokens a question can have at most, known before anyone has counted them."""

from __future__ import annotations

import json
from typing import Any

from toolwright.providers import Tools

MARKS = 16  # tokens that a chat template may put around a message


def tokens_at_most(messages: list[dict[str, Any]], tools: Tools | None) -> int:
    """No token is shorter than a byte, so bytes are a bound whatever the tokenizer."""
    text = json.dumps([messages, list(tools or ())], ensure_ascii=False, default=str)
    return len(text.encode("utf-8", "replace")) + MARKS * (len(messages) + 1)
