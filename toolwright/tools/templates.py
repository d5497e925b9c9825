"""Requests and answers of other people's servers: templates with `{name}`, and values at dotted paths."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

FIELD = re.compile(r"\{([\w.-]+)\}")
RETRIED = (408, 425, 429, 500, 502, 503, 504)  # what a server may recover from


def filled(template: Any, values: Mapping[str, Any], *, keep_unknown: bool = False) -> Any:
    """Replace each `{name}` of the template. A field that stands alone keeps its type: `{topk}` is a number.
    A field without a value becomes empty, or stays as it is with `keep_unknown`."""
    if isinstance(template, Mapping):
        return {key: filled(item, values, keep_unknown=keep_unknown) for key, item in template.items()}
    if isinstance(template, list):
        return [filled(item, values, keep_unknown=keep_unknown) for item in template]
    if not isinstance(template, str):
        return template

    def text(place: re.Match[str]) -> str:
        value = at(values, place[1])
        return str(value) if value is not None else place[0] if keep_unknown else ""

    alone = FIELD.fullmatch(template)
    value = at(values, alone[1]) if alone else None
    return FIELD.sub(text, template) if isinstance(value, str | None) else value


def at(tree: Any, path: str) -> Any:
    """The value at a dotted path, or None."""
    for name in path.split(".") if path else []:
        if isinstance(tree, Mapping):
            tree = tree.get(name)
        elif isinstance(tree, list) and name.isdigit() and int(name) < len(tree):
            tree = tree[int(name)]
        else:
            return None
    return tree
