"""One attempt in full, turn by turn and token by token; and the attempts of a group side by side."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from toolwright.failures import UserError
from toolwright.images import PART, images_in, is_safe
from toolwright.observe import rollouts
from toolwright.observe.attempt_index import AttemptTable
from toolwright.observe.token_texts import TokenTexts
from toolwright.record import TokenValues
from toolwright.trajectory import ROOT, Segment, Task, Trajectory
from toolwright.ui.problem import PageProblem
from toolwright.ui.query import Query, whole_number
from toolwright.ui.run_library import OpenRun
from toolwright.ui.view import RUN_VIEWS, ViewAnswer
from toolwright.ui.views.attempts import attempt_rows, numbers

MOST_TEXT, MOST_TOKENS = 1_000_000, 20_000  # of a segment, unless the whole is asked for
MOST_OF_GROUP = 64
SHOWN_AS = {"log_probs": "learner_log_prob", "advantages": "advantage", "entropies": "entropy"}


@RUN_VIEWS.register("attempts/item")
def attempt(run: OpenRun, query: Query) -> ViewAnswer:
    """`attempts/STEP/ROW`."""
    if len(query.path) != 2:
        raise PageProblem(404, "an attempt's address is attempts/STEP/ROW")
    step, row = whole_number("step", query.path[0]), whole_number("row", query.path[1])
    table = run.attempts
    path, place = table.path(step), table.place(step, row)
    if path is None or place is None:
        raise PageProblem(404, f"there is no attempt {row} of step {step} here")
    rows = attempt_rows(table, table.same_group(place)[:MOST_OF_GROUP])
    neighbours = {"previous": _neighbour(table, place - 1), "next": _neighbour(table, place + 1)}
    ((found, known),) = read_attempts(path, [row], tokens=True)
    shown = _described(found, known, run.tokens, tokens=True, whole=bool(query.flag("whole")))
    about = {"step": step, "row": row, "task": _task(found.task), **shown}
    return ViewAnswer({**about, "neighbours": neighbours, "group_rows": rows})


@RUN_VIEWS.register("groups/item")
def group(run: OpenRun, query: Query) -> ViewAnswer:
    """`groups/STEP/GROUP`; with `tokens`, the tokens too."""
    if len(query.path) != 2:
        raise PageProblem(404, "a group's address is groups/STEP/GROUP")
    step, name = whole_number("step", query.path[0]), query.path[1]
    table, tokens = run.attempts, bool(query.flag("tokens"))
    path, code = table.path(step), table.texts["group"].words.find(name)
    places = np.flatnonzero((table.step == step) & (table.texts["group"].codes == code))[:MOST_OF_GROUP]
    rows = table.row[places].tolist()
    if path is None or not rows:
        raise PageProblem(404, f"there is no group {name[:200]!r} in step {step}")
    found = read_attempts(path, rows, tokens=tokens)
    rewards = [t.reward for t, _ in found if t.reward is not None and math.isfinite(t.reward)]
    return ViewAnswer(
        {
            "step": step,
            "group": name,
            "task": _task(found[0][0].task),
            "reward_mean": statistics.fmean(rewards) if rewards else None,
            "reward_std": statistics.pstdev(rewards) if rewards else None,
            "attempts": [
                {**_described(t, known, run.tokens, tokens=tokens, whole=False), "step": step, "row": row}
                for row, (t, known) in zip(rows, found, strict=True)
            ],
        }
    )


def read_attempts(
    path: Path, rows: Sequence[int], *, tokens: bool
) -> list[tuple[Trajectory, TokenValues | None]]:
    """Attempts, each with what the learner computed for its tokens where that is asked for and kept."""
    try:
        attempts = rollouts.read(path, rows)
        if not tokens or not rollouts.keeps_token_values(path):
            return [(attempt, None) for attempt in attempts]
        return list(zip(attempts, rollouts.token_values(path, rows), strict=True))
    except (UserError, OSError) as error:
        if not path.exists():
            raise PageProblem(404, "this step's attempts no longer exist") from None
        raise PageProblem(409, f"this step's attempts cannot be read: {error}") from None


def _described(
    t: Trajectory, known: TokenValues | None, texts: TokenTexts, *, tokens: bool, whole: bool
) -> dict[str, Any]:
    """Everything about an attempt. `known`: what the learner computed; None if its file does not tell."""
    values: Sequence[TokenValues | None] = [None] * len(t.segments) if known is None else known.by_segment(t)
    segments: list[dict[str, Any]] = []
    rewards, turn = iter(t.step_rewards), 0
    for number, (one, own) in enumerate(zip(t.segments, values, strict=True)):
        sampled = one.source == "policy"
        turn += sampled
        shown = {
            **_text(one.text, whole),
            "source": one.source,
            # What a scorer gave the step counts before the segment's own.
            "reward": next(rewards, one.reward) if sampled else one.reward,
            "anchor": one.anchor,
            "calls": one.calls,
            "images": [url for url in one.images if is_safe(url)],  # the prompt's have names alone here
            "parent": one.parent if one.parent is not None and ROOT <= one.parent < number else number - 1,
            "turn": turn if sampled else None,
        }
        if tokens:
            mask = None if known is None or not sampled else known.learned
            shown["tokens"] = _tokens(one, own, mask, texts, None if whole else MOST_TOKENS)
        segments.append(shown)
    return {
        "group": t.group,
        "index": t.index,
        "seed": str(t.seed),  # more digits than a number of JavaScript has
        "reward": t.reward,
        "reward_parts": t.reward_parts,
        "stop": t.stop,
        "counts": t.counts,
        "timings": t.timings,
        "version": t.weights_version,
        "failure": asdict(t.failure) if t.failure else None,
        "length": t.sampled_tokens,
        "turns": turn,
        "values": sorted({name for one in segments for name in one.get("tokens", {}).get("values", ())}),
        "tokenizer": any(one.get("tokens", {}).get("texts") is not None for one in segments),
        "segments": segments,
    }


def _text(text: str, whole: bool) -> dict[str, Any]:
    cut, half = 0 if whole else max(0, len(text) - MOST_TEXT), MOST_TEXT // 2
    return {"text": f"{text[:half]}\n…\n{text[-half:]}" if cut else text, "cut": cut}


def _tokens(
    segment: Segment, own: TokenValues | None, mask: bool | None, texts: TokenTexts, most: int | None
) -> dict[str, Any]:
    """The tokens of a segment, and each number that engine and learner have for them. `mask`: 1 where the
    policy learned from the token; None if that is not known."""
    ids, columns = segment.tokens[:most], {"log_prob": segment.log_probs}
    columns |= {SHOWN_AS[name]: column for name, column in (own._asdict() if own else {}).items()}
    values = {
        name: numbers(np.asarray(column[:most], float))
        for name, column in columns.items()
        if column is not None and len(column)
    }
    if mask is not None and ids:
        values["mask"] = [int(mask)] * len(ids)
    return {"count": len(segment.tokens), "ids": ids, "texts": texts.of(ids), "values": values}


def _task(task: Task) -> dict[str, Any]:
    return {
        "id": task.id,
        "source": task.data_source,
        "prompt": _shown(task.prompt),
        "ground_truth": task.ground_truth,
        "extra_info": task.extra_info,
    }


def _shown(prompt: Any) -> Any:
    """The messages. What is no image that a browser may show becomes text."""
    if not isinstance(prompt, list) or not images_in([m for m in prompt if isinstance(m, dict)]):
        return prompt
    return [
        {**message, "content": [_part(part) for part in message["content"]]}
        if isinstance(message, dict) and isinstance(message.get("content"), list)
        else message
        for message in prompt
    ]


def _part(part: Any) -> Any:
    if not isinstance(part, dict) or part.get("type") != PART:
        return part
    return part if is_safe(part.get(PART)) else {"type": "text", "text": "[image]"}


def _neighbour(table: AttemptTable, place: int) -> dict[str, int] | None:
    if not 0 <= place < len(table):
        return None
    return {"step": int(table.step[place]), "row": int(table.row[place])}
