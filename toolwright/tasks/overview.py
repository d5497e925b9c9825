"""An overview of prepared task files as text: counts, lengths, duplicates, a few rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from toolwright.images import text_of
from toolwright.tasks.rows import Row

BINS, BAR, SHOWN, LINE = 8, 40, 3, 100


def overview(splits: Mapping[str, Sequence[Row]]) -> str:
    """Describe the rows of each split."""
    every = [row for own in splits.values() for row in own]
    return "\n".join([*_histogram(every), *_duplicates(splits), *_rows(every)])


def prompt_text(row: Row) -> str:
    prompt = row["prompt"]
    if isinstance(prompt, str):
        return prompt
    return "\n".join(text_of(message.get("content")) for message in prompt)


def _histogram(every: Sequence[Row]) -> Iterator[str]:
    lengths = sorted(len(prompt_text(row)) for row in every)
    if not lengths:
        return
    low, high = lengths[0], lengths[-1]
    width = max(1, -(-(high - low + 1) // BINS))
    counts = [0] * BINS
    for length in lengths:
        counts[(length - low) // width] += 1
    yield f"prompts, in characters: shortest {low:,}, median {lengths[len(lengths) // 2]:,}, longest {high:,}"
    for place, count in enumerate(counts):
        start = low + place * width
        if start <= high:
            bar = "#" * round(BAR * count / max(counts))
            yield f"  {start:>7,} – {min(high, start + width - 1):>7,}  {count:>8,}  {bar}".rstrip()


def _duplicates(splits: Mapping[str, Sequence[Row]]) -> Iterator[str]:
    texts = {split: [_normal(row) for row in own] for split, own in splits.items()}
    for split, own in texts.items():
        if twice := len(own) - len(set(own)):
            yield f"{split} repeats {twice:,} of its {len(own):,} questions"
    names = list(texts)
    for place, one in enumerate(names):
        for other in names[place + 1 :]:
            shared = set(texts[one]) & set(texts[other])
            yield f"{len(shared):,} questions are in both {one} and {other}"


def _normal(row: Row) -> str:
    return " ".join(prompt_text(row).lower().split())


def _rows(every: Sequence[Row]) -> Iterator[str]:
    for number in (
        sorted({place * (len(every) - 1) // (SHOWN - 1) for place in range(SHOWN)}) if every else ()
    ):
        row = every[number]
        truth = (row.get("reward_model") or {}).get("ground_truth")
        yield f"  {_short(prompt_text(row))}"
        yield f"    → {_short(truth if isinstance(truth, str) else json.dumps(truth, ensure_ascii=False))}"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LINE else line[: LINE - 1] + "…"
