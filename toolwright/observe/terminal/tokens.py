"""The tokens of an attempt, coloured by what engine and learner know of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.style import Style

from toolwright.observe.attempt import visible
from toolwright.record import TokenValues
from toolwright.trajectory import Trajectory

Array = np.ndarray[Any, Any]
Decode = Callable[[list[int]], list[str] | None]  # the text of each token; None without a tokenizer
MEASURES = ("probability", "advantage", "entropy", "gap", "mask")
NAMED = {"probability": "prob", "learner": "learner", "gap": "gap", "entropy": "entropy", "advantage": "adv"}
SURPRISE, ENTROPY = (224, 92, 64), (150, 96, 220)
PLUS, MINUS = (46, 160, 98), (214, 72, 72)
LEARNED, LEFT_OUT = (40, 120, 190), (170, 140, 40)
CONTEXT = Style(dim=True)


@dataclass(frozen=True)
class TokenTable:
    """The tokens of an attempt, an entry each; NaN where a token has no such value."""

    ids: list[int]
    texts: list[str]
    segments: list[int]
    values: dict[str, Array]
    learned: bool  # False if the policy did not learn from the attempt
    has_learner: bool  # False if the run did not keep the learner's values

    def line(self, place: int) -> str:
        """Everything that is known of one token."""
        text = shown_text(self.texts[place])
        words = [f"{place + 1}/{len(self.ids)}", f"id {self.ids[place]}", f"“{text}”"]
        for name, short in NAMED.items():
            value = self.values[name][place]
            if not np.isnan(value):
                words.append(f"{short} {value:.3g}")
        return " ".join(words)


def token_table(t: Trajectory, values: TokenValues | None, decode: Decode) -> TokenTable:
    """Put an attempt's segments end to end. Without a tokenizer a token shows its number."""
    ids, texts, segments = [], [], []
    parts: dict[str, list[Array]] = {name: [] for name in NAMED if name != "gap"}
    known = values.by_segment(t) if values is not None else [TokenValues()] * len(t.segments)
    for number, (segment, own) in enumerate(zip(t.segments, known, strict=True)):
        size = len(segment.tokens)
        ids += segment.tokens
        segments += [number] * size
        texts += decode(segment.tokens) or [f" {token}" for token in segment.tokens]
        parts["probability"].append(np.exp(_column(segment.log_probs, size)))
        parts["learner"].append(np.exp(_column(own.log_probs, size)))
        parts["entropy"].append(_column(own.entropies, size))
        parts["advantage"].append(_column(own.advantages, size))
    columns = {name: np.concatenate([np.zeros(0), *part]) for name, part in parts.items()}
    with np.errstate(divide="ignore", invalid="ignore"):
        columns["gap"] = np.log(columns["learner"]) - np.log(columns["probability"])
    learned = values is not None and values.learned
    return TokenTable(ids, texts, segments, columns, learned, values is not None)


def token_styles(table: TokenTable, measure: str, sampled: Array, *, coloured: bool) -> list[Style]:
    """A style for each token by one measure, strong where it is far from what is usual."""
    if measure == "mask":
        tone = LEARNED if table.learned or not table.has_learner else LEFT_OUT
        return [_tinted(tone, 0.9, coloured=coloured) if one else CONTEXT for one in sampled]
    values = table.values[measure]
    if measure == "probability":
        strength, tones = 1 - values, (SURPRISE, SURPRISE)
    else:
        most = float(np.nanmax(np.abs(values))) if np.isfinite(values).any() else 0.0
        strength = values / most if most else np.zeros(len(values))
        tones = (ENTROPY, ENTROPY) if measure == "entropy" else (PLUS, MINUS)
    return [
        CONTEXT
        if not one
        else Style()
        if not np.isfinite(amount)
        else _tinted(tones[int(amount < 0)], abs(float(amount)), coloured=coloured, below=bool(amount < 0))
        for one, amount in zip(sampled, strength, strict=True)
    ]


def _tinted(tone: tuple[int, int, int], strength: float, *, coloured: bool, below: bool = False) -> Style:
    """A background between that of the page and the tone; without colours bold, underlined or reversed."""
    if not coloured:
        return Style(bold=strength > 0.25, reverse=strength > 0.6, underline=below and strength > 0.05)
    if strength < 0.05:
        return Style()
    share = 0.25 + 0.75 * min(1.0, strength)
    red, green, blue = (round(30 + (part - 30) * share) for part in tone)
    return Style.parse(f"#ffffff on rgb({red},{green},{blue})")


def shown_text(text: str) -> str:
    """A token on one line: breaks and tabs as signs, nothing as a dot."""
    return visible(text).replace("\n", "⏎").replace("\t", "→   ") or "·"


def _column(values: Any, size: int) -> Array:
    return np.full(size, np.nan) if values is None or not len(values) else np.asarray(values, float)
