"""Integer arithmetic as text, read through the syntax tree and never evaluated as code."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable

OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}
# Long enough for any answer, short enough that neither the parser nor a product can be made to labour.
LONGEST = 200
_CHARACTERS = re.compile(r"[0-9+\-*() ]+")


def parse(text: str) -> tuple[int, list[int]] | None:
    """The value and the numbers of an expression in + - * and parentheses; None if it is not one."""
    text = text.strip()
    if len(text) > LONGEST or not _CHARACTERS.fullmatch(text):
        return None
    try:
        tree = ast.parse(text, mode="eval").body
    except SyntaxError:
        return None
    numbers: list[int] = []
    value = _value(tree, numbers)
    return None if value is None else (value, numbers)


def _value(node: ast.expr, numbers: list[int]) -> int | None:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        numbers.append(node.value)
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        left, right = _value(node.left, numbers), _value(node.right, numbers)
        if left is not None and right is not None:
            return OPERATORS[type(node.op)](left, right)
    return None
