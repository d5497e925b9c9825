"""The checker's side of a trial: runs the tests, and calls the solution's functions over a line.

The solution sees the arguments of the call that it is asked for and nothing else of the tests. What it
returns is rebuilt here from text, as a value of an exact built-in type. What cannot be rebuilt ends the trial
at once, so that no test takes it for an exception that it expects.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import json
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from toolwright.sandbox import program, values

_MOST_SAID = 500  # characters of the reason why a test failed
# What tests use without importing it, because solutions usually do. It is Python's, never the solution's: a
# `math.pi` or a `Counter` of the solution's own could make both sides of a comparison equal.
_MODULES = {name: name for name in sys.stdlib_module_names} | {"np": "numpy", "numpy": "numpy"}
_CLASSES = {
    "Counter": "collections", "OrderedDict": "collections", "defaultdict": "collections",
    "deque": "collections", "Decimal": "decimal", "Fraction": "fractions", "datetime": "datetime",
    "timedelta": "datetime",
}  # fmt: skip


def check(setup: str, checks: list[str], entry_point: str, link: int) -> NoReturn:
    """Runs every check and reports each on standard output; what the tests print goes to standard error."""
    report = os.dup(1)
    os.dup2(2, 1)

    def tell(outcome: str, why: str = "") -> None:
        os.write(report, json.dumps([outcome, why[:_MOST_SAID]]).encode() + b"\n")

    def give_up(outcome: str, why: str) -> NoReturn:
        tell(outcome, why)
        os._exit(0)

    _check_all(_Solution(values.MessageStream(link), give_up), setup, checks, entry_point, tell)
    with contextlib.suppress(BaseException):
        sys.stdout.flush()
    os._exit(0)


def rehearse() -> None:
    """In the zygote: a trial whose solution has given all its answers before."""
    told = ["ready"], ["value", {"reference": 0}], ["value", {"tuple": [3, [0.5, "a"]]}], ["value", None]
    checks = ["assert f(1, [2], key='a') == (3, [0.5, 'a'])\nassert f({1: (2,)}) is None"]

    def give_up(outcome: str, why: str) -> NoReturn:
        raise AssertionError(f"{outcome}: {why}")

    for reading, writing in values.rehearsal():
        for message in told:
            values.MessageStream(writing).send(json.dumps(message))
        _check_all(
            _Solution(values.MessageStream(reading), give_up), "", checks, "", lambda outcome, why="": None
        )


def _check_all(
    solution: _Solution, setup: str, checks: list[str], entry_point: str, tell: Callable[..., None]
) -> None:
    solution.wait_until_loaded()
    tell("loaded")
    for index, test in enumerate(checks):
        namespace = _Namespace(solution, f"{setup}\n{test}")
        try:
            if setup:
                exec(_compiled(setup, "setup.py"), namespace)
            if entry_point:
                namespace[entry_point] = solution.named(entry_point)
            exec(_compiled(test, f"test{index}.py"), namespace)
        except BaseException as error:
            tell("failed", _described(error))
        else:
            tell("passed")


def _compiled(code: str, name: str) -> Any:
    program.remember(name, code)
    return compile(code, name, "exec", dont_inherit=True)


def _described(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__


class _Namespace(dict[str, Any]):
    """The test's names. One that neither the test nor Python defines is the solution's."""

    def __init__(self, solution: _Solution, text: str) -> None:
        super().__init__(__name__="test", __builtins__=builtins)
        self._solution, self._text = solution, text

    def __missing__(self, name: str) -> Any:
        if hasattr(builtins, name):
            raise KeyError(name)  # Python's own, as is
        if name in _MODULES and not re.search(rf"(?<![\w.]){name}\s*\(", self._text):
            return importlib.import_module(_MODULES[name])
        if name in _CLASSES:
            return getattr(importlib.import_module(_CLASSES[name]), name)
        return self._solution.named(name)


class _Solution:
    """The process at the other end of the line."""

    def __init__(self, line: values.MessageStream, give_up: Callable[[str, str], NoReturn]) -> None:
        self._line = line
        self._give_up = give_up
        self._lent: list[Any] = []  # functions and iterators of the test's that the solution knows by number
        self._objects: dict[int, _Object] = {}
        self._turn = threading.RLock()

    def wait_until_loaded(self) -> None:
        match self._hear():
            case ["ready"]:
                return
            case ["unloaded", str(why)]:
                self._give_up("ended", why)
        self._give_up("ended", "the solution sent what is no answer")

    def named(self, name: str) -> Any:
        """What the solution calls by that name; with a capital it is a class that the test uses."""
        value = self.ask("name", name)
        if isinstance(value, _Object) and name[0].isupper():
            value.made_for_the_test()
        return value

    def ask(self, operation: str, target: Any, *given: Any, **named: Any) -> Any:
        """What an operation on something of the solution's returns or raises."""
        try:
            message = json.dumps([operation, *map(self._encoded, (target, list(given), named))])
        except TypeError as error:
            self._give_up("unsupported", str(error))
        with self._turn:
            self._say(message)
            while True:
                match self._hear():
                    case ["value", value]:
                        return value
                    case ["value", None, list(changed)] if len(changed) == len(given):
                        for value, state in zip(given, changed, strict=True):
                            _change(value, state)
                        return None
                    case ["raised", list(names), list(told)]:
                        raise _rebuilt(names, told, may_stop=operation == "next")
                    case [("call" | "next") as wish, int(number), list(args), dict(keywords)] if (
                        0 <= number < len(self._lent)
                    ):
                        self._lend(wish, self._lent[number], args, keywords)
                    case _:
                        self._give_up("ended", "the solution sent what is no answer")

    def _lend(self, wish: str, function: Any, given: list[Any], named: dict[str, Any]) -> None:
        """Calls a function of the test's for the solution."""
        try:
            result = next(function) if wish == "next" else function(*given, **named)
            message = ["value", self._encoded(result)]
        except Exception as error:
            message = ["raised", {"tuple": [type(error).__name__, str(error)]}]
        self._say(json.dumps(message))

    def _say(self, text: str) -> None:
        try:
            self._line.send(text)
        except values.Broken as broken:
            self._give_up("ended", f"the solution cannot be reached: {broken}")

    def _hear(self) -> Any:
        try:
            return values.decoded(self._line.receive(), self._resolve)
        except values.Broken as broken:
            self._give_up("ended", f"the solution gave no answer: {broken}")

    def _encoded(self, value: Any) -> Any:
        return values.encoded(value, self._refer)

    def _refer(self, value: Any) -> dict[str, Any]:
        if isinstance(value, _Object):
            return {"reference": value._number}
        name = getattr(value, "__name__", None)
        if isinstance(name, str) and getattr(builtins, name, None) is value:
            return {"builtin": name}
        if not callable(value) and not isinstance(value, Iterator):
            raise TypeError(f"a solution cannot be given a {type(value).__name__}")
        self._lent.append(value)
        return {"function" if callable(value) else "iterator": len(self._lent) - 1}

    def _resolve(self, tag: str, told: Any) -> Any:
        if tag == "reference" and type(told) is int:
            return self._objects.setdefault(told, _Object(self, told))
        if tag == "class" and isinstance(getattr(builtins, told), type):
            return getattr(builtins, told)
        raise values.Broken("it sent an unknown tag")


class _Object:
    """Something of the solution's that is no plain value: a function, an iterator, an instance.

    It equals itself only: the solution is not asked to compare, search or add, which would tell it what the
    test expects. Methods take arguments only on objects of classes that the test itself names.
    """

    __slots__ = ("_number", "_open", "_solution", "_takes")

    def __init__(self, solution: _Solution, number: int) -> None:
        for name, value in (("_solution", solution), ("_number", number), ("_open", False), ("_takes", True)):
            object.__setattr__(self, name, value)

    def made_for_the_test(self) -> None:
        object.__setattr__(self, "_open", True)

    def _ask(self, operation: str, *given: Any, **named: Any) -> Any:
        result = self._solution.ask(operation, self, *given, **named)
        if isinstance(result, _Object) and self._open:
            result.made_for_the_test()
        return result

    def __call__(self, *given: Any, **named: Any) -> Any:
        if (given or named) and not self._takes:
            raise TypeError("a method of what a solution returned takes no arguments in a test")
        return self._ask("call", *given, **named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__name__":
            raise AttributeError(name)
        result = self._ask("get", name)
        if isinstance(result, _Object) and not self._open:
            object.__setattr__(result, "_takes", False)
        return result

    def __setattr__(self, name: str, value: Any) -> None:
        self._ask("set", name, value)

    def __getitem__(self, key: Any) -> Any:
        if type(key) is not int:  # which tells nothing about what is expected
            self._only_if_open()
        return self._ask("item", key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._only_if_open()
        self._ask("put", key, value)

    def _only_if_open(self) -> None:
        if not self._open:
            raise TypeError("what a solution returned is no plain value")

    def __iter__(self) -> Any:
        return self._ask("iter")

    def __next__(self) -> Any:
        return self._ask("next")

    def __len__(self) -> int:
        return self._ask("len")

    def __bool__(self) -> bool:
        return self._ask("bool") is True

    def __str__(self) -> str:
        return self._ask("str")

    def __repr__(self) -> str:
        return self._ask("repr")


def _change(value: Any, state: Any) -> None:
    """Gives an argument the state that a function left it in."""
    if state is None or type(state) is not type(value):
        return
    if isinstance(value, list | bytearray):
        value[:] = state
    elif isinstance(value, dict | set):
        value.clear()
        value.update(state)


def _rebuilt(names: list[Any], told: list[Any], *, may_stop: bool) -> Exception:
    """The exception of that name, or of its nearest built-in ancestor."""
    for name in names:
        kind = getattr(builtins, name, None) if isinstance(name, str) else None
        if not isinstance(kind, type) or not issubclass(kind, Exception):
            continue
        if issubclass(kind, StopIteration | StopAsyncIteration) and not may_stop:
            kind = RuntimeError  # raised by a function, it would end a loop of the test's as if all were well
        try:
            return kind(*told)
        except Exception:
            return kind()
    return Exception(*told)
