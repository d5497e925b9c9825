"""One attempt in full, turn by turn and token by token; and the attempts of a group side by side."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from toolwright.images import PART, images_in, is_safe
from toolwright.observe.attempt_index import AttemptTable
from toolwright.observe.token_texts import TokenTexts
from toolwright.trajectory import ROOT
from toolwright.ui.attempt_file import OF_TOKENS, read_attempts
from toolwright.ui.problem import PageProblem
from toolwright.ui.query import Query, whole_number
from toolwright.ui.run_library import OpenRun
from toolwright.ui.view import RUN_VIEWS, ViewAnswer
from toolwright.ui.views.attempts import attempt_rows, numbers

Array = np.ndarray[Any, Any]
MOST_TEXT, MOST_TOKENS = 1_000_000, 20_000  # of a segment, unless the whole is asked for
MOST_OF_GROUP = 64
NOT_VALUES = frozenset({"tokens", "source", "text", "reward", "anchor", "calls", "images", "parent"})
LEARNED = "token_entropies"  # an attempt that was not learned from has none
SHOWN_AS = {
    "log_probs": "log_prob",
    "token_log_probs": "learner_log_prob",
    "token_advantages": "advantage",
    "token_entropies": "entropy",
}


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
    (record,) = read_attempts(path, [row])
    told = _told(record, run.tokens, tokens=True, whole=bool(query.flag("whole")))
    return ViewAnswer(
        {
            "step": step,
            "row": row,
            "task": _task(record),
            **told,
            "neighbours": neighbours,
            "group_rows": rows,
        }
    )


@RUN_VIEWS.register("groups/item")
def group(run: OpenRun, query: Query) -> ViewAnswer:
    """`groups/STEP/GROUP`; with `tokens`, the tokens too."""
    if len(query.path) != 2:
        raise PageProblem(404, "a group's address is groups/STEP/GROUP")
    step, name = whole_number("step", query.path[0]), query.path[1]
    table, tokens = run.attempts, bool(query.flag("tokens"))
    path, code = table.path(step), table.texts["group"].words.find(name)
    places = np.flatnonzero((table.step == step) & (table.texts["group"].codes == code))[:MOST_OF_GROUP]
    rows, lengths = table.row[places].tolist(), numbers(table.numbers["length"][places])
    if path is None or not rows:
        raise PageProblem(404, f"there is no group {name[:200]!r} in step {step}")
    records = read_attempts(path, rows, tokens=tokens)
    rewards = [
        reward for record in records if (reward := record["reward"]) is not None and math.isfinite(reward)
    ]
    return ViewAnswer(
        {
            "step": step,
            "group": name,
            "task": _task(records[0]),
            "reward_mean": statistics.fmean(rewards) if rewards else None,
            "reward_std": statistics.pstdev(rewards) if rewards else None,
            "attempts": [
                {
                    **_told(record, run.tokens, tokens=tokens, whole=False),
                    "step": step,
                    "row": row,
                    "length": length,
                }
                for row, record, length in zip(rows, records, lengths, strict=True)
            ],
        }
    )


def _told(record: Mapping[str, Any], texts: TokenTexts, *, tokens: bool, whole: bool) -> dict[str, Any]:
    found = _spread_values(record) if tokens else record.get("segments") or ()
    segments = [_segment(one, texts, tokens, whole) for one in found]
    _place_in_tree(segments, found)
    steps = [one for one in segments if one["source"] == "policy"]
    _give_step_rewards(steps, record.get("step_rewards"))
    kind = record.get("failure_kind")
    return {
        "group": record["group"],
        "index": record.get("index"),
        "seed": str(record.get("seed")),  # more digits than a number of JavaScript has
        "reward": record.get("reward"),
        "reward_parts": record["reward_parts"],
        "stop": record.get("stop"),
        "counts": record["counts"],
        "timings": record["timings"],
        "version": record.get("weights_version"),
        "failure": {"kind": kind, "message": record.get("failure_message")} if kind else None,
        "length": sum(one["tokens"]["count"] for one in steps) if tokens else None,
        "turns": len(steps),
        "values": sorted({name for one in segments for name in one.get("tokens", {}).get("values", ())}),
        "tokenizer": any(one.get("tokens", {}).get("texts") is not None for one in segments),
        "segments": segments,
    }


def _segment(segment: Mapping[str, Any], texts: TokenTexts, tokens: bool, whole: bool) -> dict[str, Any]:
    text = segment.get("text") or ""
    left_out = 0 if whole else max(0, len(text) - MOST_TEXT)
    if left_out:
        half = MOST_TEXT // 2
        text = f"{text[:half]}\n…\n{text[-half:]}"
    told = {
        "source": segment["source"],
        "text": text,
        "cut": left_out,
        "reward": segment.get("reward"),
        "anchor": segment.get("anchor"),
        "calls": segment["calls"],
        "images": [url for url in segment["images"] if is_safe(url)],  # the prompt's have names alone here
    }
    return {**told, "tokens": _tokens(segment, texts, None if whole else MOST_TOKENS)} if tokens else told


def _tokens(segment: Mapping[str, Any], texts: TokenTexts, most: int | None) -> dict[str, Any]:
    """Per-token values of a segment: every field that has one number for each token, including new ones."""
    ids = segment["tokens"] if segment["tokens"] is not None else np.zeros(0, int)
    values = {
        SHOWN_AS.get(name, name): numbers(found[:most])
        for name, found in segment.items()
        if name not in NOT_VALUES and isinstance(found, np.ndarray) and len(found) == len(ids) > 0
    }
    shown = ids[:most].tolist()
    return {"count": len(ids), "ids": shown, "texts": texts.of(shown), "values": values}


def _spread_values(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The segments, each with its part of what the learner computed for the sampled tokens. The mask is 1
    where the policy learned from the token; files without such values do not tell."""
    segments = [dict(segment) for segment in record.get("segments") or ()]
    columns = {name: found for name, found in record.items() if name.startswith(OF_TOKENS)}
    place = 0
    for segment in segments:
        if segment["source"] != "policy" or not columns:
            continue
        stop = place + (0 if segment["tokens"] is None else len(segment["tokens"]))
        for name, found in columns.items():
            if found is not None:
                segment[SHOWN_AS.get(name, name.removeprefix(OF_TOKENS))] = found[place:stop]
        segment["mask"] = np.full(stop - place, int(columns.get(LEARNED) is not None))
        place = stop
    return segments


def _place_in_tree(segments: Sequence[dict[str, Any]], found: Sequence[Mapping[str, Any]]) -> None:
    """Number the turns, and say of each segment which one it goes on from; -1: from none."""
    turn = 0
    for number, (one, recorded) in enumerate(zip(segments, found, strict=True)):
        parent = recorded.get("parent")
        one["parent"] = parent if parent is not None and ROOT <= parent < number else number - 1
        turn += one["source"] == "policy"
        one["turn"] = turn if one["source"] == "policy" else None


def _give_step_rewards(steps: Sequence[dict[str, Any]], rewards: Array | None) -> None:
    """Set the rewards that a scorer gave each step, which count before the segments' own."""
    for one, reward in zip(steps, [] if rewards is None else numbers(rewards), strict=False):
        one["reward"] = reward


def _task(record: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": record.get("task_id"),
        "source": record.get("data_source"),
        "prompt": _shown(record["prompt"]),
        "ground_truth": record["ground_truth"],
        "extra_info": record["extra_info"],
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
