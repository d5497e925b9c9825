"""Examples that a problem about code shows: found in its text, and tried on a solution.

They are part of the question, so a policy may run them as often as it likes. What judges it are other tests.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Sequence
from typing import Any

# What HumanEval writes between a call and its value, where it does not write a doctest.
_GIVES = r"\s*(?:#\s*)?(?:==>|==|=>|=|➞|-+>|returns?|should return|should be equal to)\s*"

# Arguments and a value in words: "For a = [1], k = 2, the output should be 3.", "Input: [1]  Output: 3".
_IN_WORDS = re.compile(
    r"\b(?:For|Input:)\s+([^\n]+?),?\s+(?:the (?:output|result) should be|Output:)\s*(.+?)\.?\s*(?:#.*)?$",
    re.MULTILINE,
)

_FUTURE = re.compile(r"^from __future__ import .*\n", re.MULTILINE)
_WORDS = {"true": "True", "false": "False"}

# Runs behind a solution. Its names begin with _, so that no solution's do by chance.
_TRIAL = '''

import ast as _ast
import traceback as _traceback


def _told(error):
    lines = _traceback.format_exception(error)
    mine = [line for line in lines if 'in _tried' not in line]
    return "".join(mine[-2:]).strip()[-600:]


def _tried(test, names):
    """What is wrong, or nothing."""
    try:
        check = _ast.parse(test).body[0].test
        if isinstance(check, _ast.Compare) and len(check.ops) == 1 and isinstance(check.ops[0], _ast.Eq):
            sides = [check.left, check.comparators[0]]
            found, wanted = (eval(compile(_ast.Expression(s), "test", "eval"), names) for s in sides)
            return "" if found == wanted else f"the left side is {found!r:.300}"
        return "" if eval(compile(_ast.Expression(check), "test", "eval"), names) else "it is not so"
    except BaseException as error:
        return _told(error)


_names = globals()
if _ENTRY not in _names:
    print(f"there is no function {_ENTRY}: the examples call it")
else:
    _names["candidate"] = _names[_ENTRY]
    _wrong = [(test, why) for test in _TESTS if (why := _tried(test, _names))]
    _count = f"all {len(_TESTS)}" if not _wrong else f"{len(_TESTS) - len(_wrong)} of {len(_TESTS)}"
    print(f"{_count} examples pass")
    for test, why in _wrong[:3]:
        print(f"{test}\\n  {why}")
'''


def trial(code: str, tests: Sequence[str], entry_point: str, *, declaration: str = "") -> str:
    """A program that prints how many of the tests, each one assertion, the solution passes, and why not all.
    They may call it `candidate`."""
    source = completed(code, declaration, entry_point)
    return f"{source}\n\n_ENTRY, _TESTS = {entry_point!r}, {list(tests)!r}\n{_TRIAL}"


def completed(code: str, declaration: str, entry_point: str) -> str:
    """Complete a HumanEval answer: put the declaration before a whole function, or above a bare body."""
    if not declaration:
        return code
    if re.search(rf"^\s*(async\s+)?def\s+{re.escape(entry_point)}\b", code, re.MULTILINE):
        future = "".join(_FUTURE.findall(code))  # must come first in a file
        return f"{future}{declaration.rstrip()}\n    pass\n\n{_FUTURE.sub('', code)}"
    return f"{declaration.rstrip()}\n{code}"


def examples(declaration: str, entry_point: str) -> list[str]:
    """The examples of a docstring as assertions."""
    import doctest  # here, because it loads the debugger

    try:
        body = ast.parse(f"{declaration.rstrip()}\n    pass\n").body
        of_it = [node for node in body if isinstance(node, ast.FunctionDef) and node.name == entry_point]
        said = "\n".join(ast.get_docstring(node) or "" for node in of_it)
        parsed = [_sides(one.source, one.want) for one in doctest.DocTestParser().get_examples(said)]
    except (SyntaxError, ValueError):  # examples that nobody could run
        return []
    line = re.compile(rf"\b({re.escape(entry_point)}\(.*\)){_GIVES}(.+?)\.?\s*$", re.MULTILINE)
    pairs = parsed or [(call, value) for call, value in line.findall(said)]
    pairs = pairs or [(f"{entry_point}({given})", value) for given, value in _IN_WORDS.findall(said)]
    found = (_assertion(call, value, entry_point) for call, value in pairs)
    return [test for test in dict.fromkeys(found) if test]


def _sides(source: str, want: str) -> tuple[str, str]:
    """The call and the value of a doctest, which may compare the two itself and be followed by nothing."""
    try:
        node = ast.parse(source.strip(), mode="eval").body
    except SyntaxError:
        return source, want
    match node:
        case ast.Compare(left=call, ops=[ast.Eq()], comparators=[value]) if want.strip() in ("", "True"):
            return ast.unparse(call), ast.unparse(value)
    return source, want


def called(tests: Any) -> str:
    """The function that an assertion calls first; "" if there is none."""
    if not isinstance(tests, list) or not tests:
        return ""
    try:
        tree = ast.parse(str(tests[0]).strip())
    except SyntaxError:
        return ""
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    named = [call.id for call in calls if isinstance(call, ast.Name)]
    # set(f(x)) tests f; one of MBPP's functions is called as a built-in one is.
    return next((name for name in named if not hasattr(builtins, name)), named[0] if named else "")


def _assertion(call: str, value: str, entry_point: str) -> str:
    """An assertion, or nothing unless arguments and value of the call are written out."""
    try:
        node = ast.parse(call.strip(), mode="eval").body
        expected = ast.unparse(ast.parse(_WORDS.get(value.strip(), value.strip()), mode="eval"))
        ast.literal_eval(expected)
        given = [*node.args, *(word.value for word in node.keywords)] if isinstance(node, ast.Call) else []
        for argument in given:
            ast.literal_eval(argument)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == entry_point:
        return f"assert {ast.unparse(node)} == {expected}"
    return ""
