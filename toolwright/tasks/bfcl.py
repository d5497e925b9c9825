"""The questions of the Berkeley Function Calling Leaderboard, as the package bfcl-eval has them."""

from __future__ import annotations

import functools
import importlib.util
import json
from pathlib import Path
from typing import Any

from toolwright.failures import UserError, nearest

# The calls of a single turn are compared with those that are possible; those of several turns are run.
SINGLE_TURN = (
    *("simple", "multiple", "parallel", "parallel_multiple", "irrelevance"),
    *("live_simple", "live_multiple", "live_parallel", "live_parallel_multiple"),
    *("live_irrelevance", "live_relevance"),
)
MULTI_TURN = ("multi_turn_base", "multi_turn_miss_param", "multi_turn_long_context")
CATEGORIES = (*SINGLE_TURN, *MULTI_TURN)
INSTALL = "pip install --no-deps bfcl-eval"

Question = dict[str, Any]


def checked(names: list[str] | str) -> list[str]:
    """Names of categories: a list, or a text with commas."""
    found = names.split(",") if isinstance(names, str) else names
    for name in found:
        if name not in CATEGORIES:
            hint = nearest(name, CATEGORIES)
            raise UserError(f"task.params.categories: bfcl has no category {name!r} here; {hint}")
    return list(dict.fromkeys(found))


@functools.cache
def questions(category: str) -> dict[str, Question]:
    """By id, each with its `function`s, and with the `ground_truth` that some categories have."""
    name = f"BFCL_v4_{'simple_python' if category == 'simple' else category}.json"
    found = {row["id"]: row for row in _rows(name)}
    if (_data() / "possible_answer" / name).exists():
        for row in _rows(f"possible_answer/{name}"):
            found[row["id"]]["ground_truth"] = row["ground_truth"]
    for row in found.values():
        if "function" not in row:
            row["function"] = [one for kind in row["involved_classes"] for one in _documented(kind)]
    return found


def schemas(question: Question) -> list[dict[str, Any]]:
    """The functions in OpenAI's form. The leaderboard adds the same words to each description."""
    return [
        {
            "type": "function",
            "function": {
                "name": one["name"],
                "description": f"{one['description']} Note that the provided function is in Python 3 syntax.",
                "parameters": _json_schema(one["parameters"]),
            },
        }
        for one in question["function"]
    ]


def _json_schema(value: Any) -> Any:
    """Replace Python's type names by those of JSON schema."""
    from bfcl_eval.constants.type_mappings import GORILLA_TO_OPENAPI

    if not isinstance(value, dict):
        return value
    found = {key: _json_schema(own) for key, own in value.items() if key != "properties"}
    if isinstance(value.get("type"), str):
        found["type"] = GORILLA_TO_OPENAPI.get(value["type"], value["type"])
    if isinstance(value.get("properties"), dict):
        found["properties"] = {name: _json_schema(own) for name, own in value["properties"].items()}
    return found


@functools.cache
def _documented(kind: str) -> list[dict[str, Any]]:
    """The methods of a simulated API with their descriptions for the policy."""
    from bfcl_eval.constants.executable_backend_config import MULTI_TURN_FUNC_DOC_FILE_MAPPING

    return _rows(f"multi_turn_func_doc/{MULTI_TURN_FUNC_DOC_FILE_MAPPING[kind]}")


def _rows(name: str) -> list[dict[str, Any]]:
    # Not by the package's own reader, which locks the files by others beside them.
    text = (_data() / name).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def _data() -> Path:
    found = importlib.util.find_spec("bfcl_eval")
    if found is None or found.origin is None:
        raise UserError(f"task 'bfcl' needs the package of the leaderboard: {INSTALL}")
    return Path(found.origin).parent / "data"
