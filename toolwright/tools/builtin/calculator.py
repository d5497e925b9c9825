"""Computes arithmetic expressions without a server: exact if possible, and never slow."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from typing import Any

from toolwright.tools import TOOLS
from toolwright.tools.offer import ToolError

Number = int | float

_LONGEST = 1000  # characters
_BITS = 4096  # of the largest whole number: a little over 1,200 digits
_FACTORIAL = 500
_DIGITS = 300  # to round to; 10 ** digits is computed

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}
_NAMES: dict[str, Number] = {"pi": math.pi, "e": math.e, "tau": math.tau}


@TOOLS.register("calculator")
async def calculator(expression: str) -> str:
    """Compute an arithmetic expression.

    Args:
        expression: for example "3 * (4 + 5) ** 2"; + - * / // % **, and abs, round, min, max, sum, sqrt, exp,
            log, log2, log10, sin, cos, tan, asin, acos, atan, floor, ceil, gcd, lcm, comb, factorial, pi, e
    """
    if len(expression) > _LONGEST:
        raise ToolError(f"the expression is longer than {_LONGEST} characters")
    written = expression.strip().replace("×", "*").replace("÷", "/").replace("−", "-").replace("^", "**")
    try:
        return _text(_value(ast.parse(written, mode="eval").body))
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise ToolError(f"cannot compute {expression[:200]!r}: {reason}") from None
    except ZeroDivisionError:
        raise ToolError("division by zero") from None
    except OverflowError:
        raise ToolError("the result is too large") from None


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=bool() | complex()):
            raise ValueError(f"{node.value!r} is not a real number")
        case ast.Constant(value=int() | float()):
            return _bounded(node.value)
        case ast.Name(id=name) if name in _NAMES:
            return _NAMES[name]
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
            return _UNARY[type(op)](_value(operand))
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _power(_value(left), _value(right))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _bounded(_BINARY[type(op)](_real(_value(left)), _real(_value(right))))
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_value(item) for item in items]
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
            return _bounded(_FUNCTIONS[name](*map(_value, arguments)))
    raise ValueError(f"`{ast.unparse(node)[:60]}` is not arithmetic that the calculator knows")


def _power(base: Any, exponent: Any) -> Number:
    base, exponent = _real(base), _real(exponent)
    if isinstance(base, int) and isinstance(exponent, int):
        # The size is known before the work: bits(b ** n) ≤ n · bits(b).
        if abs(base) > 1 and abs(exponent) * (abs(base).bit_length()) > _BITS:
            raise OverflowError
        return _bounded(base**exponent)
    result = base**exponent
    if isinstance(result, complex):
        raise ValueError("a root of a negative number")
    return _bounded(result)


def _round(value: Any, digits: Any = None) -> Number:
    if digits is not None and (not isinstance(digits, int) or abs(digits) > _DIGITS):
        raise ValueError(f"round takes up to {_DIGITS} digits")
    return round(_real(value), digits)


def _factorial(n: Any) -> int:
    if not isinstance(n, int) or n > _FACTORIAL:
        raise ValueError(f"factorial takes a whole number up to {_FACTORIAL}")
    return math.factorial(n)


def _comb(n: Any, k: Any) -> int:
    if not isinstance(n, int) or n > _BITS:
        raise ValueError(f"comb takes whole numbers up to {_BITS}")
    return math.comb(n, k)


def _bounded(value: Any) -> Any:
    if isinstance(value, int) and value.bit_length() > _BITS:
        raise OverflowError
    if isinstance(value, float) and not math.isfinite(value):
        raise OverflowError
    return value


def _real(value: Any) -> Any:
    if not isinstance(value, int | float):
        raise ValueError("a list where a number belongs")
    return value


def _text(value: Any) -> str:
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return str(value)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(math, name) for name in ("sqrt", "exp", "log", "log2", "log10", "floor", "ceil")},
    **{name: getattr(math, name) for name in ("sin", "cos", "tan", "asin", "acos", "atan", "gcd", "lcm")},
    "abs": abs,
    "round": _round,
    "min": min,
    "max": max,
    "sum": sum,
    "factorial": _factorial,
    "comb": _comb,
}
