"""Pairs of answers that a model of a few thousand weights learns to tell apart in seconds.

`b3` is answered by `bb`, the letter twice, and not by another letter twice.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LETTERS, DIGITS = "abcd", "0123456789"


def rows(seed: int = 0) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    every = [letter + digit for letter in LETTERS for digit in DIGITS]
    rng.shuffle(every)
    return [
        {
            "prompt": prompt,
            "chosen": prompt[0] * 2,
            "rejected": rng.choice([other for other in LETTERS if other != prompt[0]]) * 2,
        }
        for prompt in every
    ]


def labelled(seed: int = 0) -> list[dict[str, Any]]:
    """The same answers one by one, as KTO has them."""
    return [
        {"prompt": row["prompt"], "completion": row[column], "label": column == "chosen"}
        for row in rows(seed)
        for column in ("chosen", "rejected")
    ]


def written(path: Path, found: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in found))
    return path
