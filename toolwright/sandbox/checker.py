"""The checker: it runs the tests and calls the solution's functions over a socket.

The solution sees the arguments of a call and nothing else of the tests. What it returns is rebuilt here from
text, as a value of an exact built-in type. A value that cannot be rebuilt ends the check at once, so that no
test takes it for an exception that it expects.
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

_REASON_LENGTH = 500  # characters of the reason why a test failed
# Names that tests use without importing them, because solutions usually do. They are Python's, never the
# solution's: its own `math.pi` or `Counter` could make both sides of a comparison equal.
_MODULES = {name: name for name in sys.stdlib_module_names} | {"np": "numpy", "numpy": "numpy"}
_CLASSES = {
    "Counter": "collections", "OrderedDict": "collections", "defaultdict": "collections",
    "deque": "collections", "Decimal": "decimal", "Fraction": "fractions", "datetime": "datetime",
    "timedelta": "datetime",
}  # fmt: skip


def check(setup: str, checks: list[str], entry_point: str, link: int) -> NoReturn:
    """Runs every check and reports each on standard output. Output of the tests goes to standard error."""
    report_to = os.dup(1)
    os.dup2(2, 1)

    def report(outcome: str, why: str = "") -> None:
        os.write(report_to, json.dumps([outcome, why[:_REASON_LENGTH]]).encode() + b"\n")

    def give_up(outcome: str, why: str) -> NoReturn:
        report(outcome, why)
        os._exit(0)

    _check_all(_Solution(values.MessageStream(link), give_up), setup, checks, entry_point, report)
    with contextlib.suppress(BaseException):
        sys.stdout.flush()
    os._exit(0)


def warm_up() -> None:
    """Runs a check in the zygote with a solution whose answers are prepared."""
    answers = ["ready"], ["value", {"reference": 0}], ["value", {"tuple": [3, [0.5, "a"]]}], ["value", None]
    checks = ["assert f(1, [2], key='a') == (3, [0.5, 'a'])\nassert f({1: (2,)}) is None"]

    def give_up(outcome: str, why: str) -> NoReturn:
        raise AssertionError(f"{outcome}: {why}")

    for reading, writing in values.warm_up_sockets():
        for message in answers:
            values.MessageStream(writing).send(json.dumps(message))
        _check_all(
            _Solution(values.MessageStream(reading), give_up), "", checks, "", lambda outcome, why="": None
        )


def _check_all(
    solution: _Solution, setup: str, checks: list[str], entry_point: str, report: Callable[..., None]
) -> None:
    solution.wait_until_loaded()
    report("loaded")
    for index, test in enumerate(checks):
        namespace = _Namespace(solution, f"{setup}\n{test}")
        try:
            if setup:
                exec(_compiled(setup, "setup.py"), namespace)
            if entry_point:
                namespace[entry_point] = solution.named(entry_point)
            exec(_compiled(test, f"test{index}.py"), namespace)
        except BaseException as error:
            report("failed", _description(error))
        else:
            report("passed")


def _compiled(code: str, name: str) -> Any:
    program.cache_source(name, code)
    return compile(code, name, "exec", dont_inherit=True)


def _description(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__


class _Namespace(dict[str, Any]):
    """The names of a test. A name that neither the test nor Python defines is the solution's."""

    def __init__(self, solution: _Solution, text: str) -> None:
        super().__init__(__name__="test", __builtins__=builtins)
        self._solution, self._text = solution, text

    def __missing__(self, name: str) -> Any:
        if hasattr(builtins, name):
            raise KeyError(name)  # Python finds it itself
        if name in _MODULES and not re.search(rf"(?<![\w.]){name}\s*\(", self._text):
            return importlib.import_module(_MODULES[name])
        if name in _CLASSES:
            return getattr(importlib.import_module(_CLASSES[name]), name)
        return self._solution.named(name)


class _Solution:
    """The solution's process, at the other end of the socket."""

    def __init__(self, stream: values.MessageStream, give_up: Callable[[str, str], NoReturn]) -> None:
        self._stream = stream
        self._give_up = give_up
        self._shared: list[Any] = []  # functions and iterators of the test that the solution knows by number
        self._objects: dict[int, _Object] = {}
        self._turn = threading.RLock()

    def wait_until_loaded(self) -> None:
        match self._receive():
            case ["ready"]:
                return
            case ["unloaded", str(why)]:
                self._give_up("ended", why)
        self._give_up("ended", "the solution sent something that is not an answer")

    def named(self, name: str) -> Any:
        """The solution's object of that name. A capitalised name is a class that the test uses."""
        value = self.ask("name", name)
        if isinstance(value, _Object) and name[0].isupper():
            value.open_to_the_test()
        return value

    def ask(self, operation: str, target: Any, *args: Any, **kwargs: Any) -> Any:
        """Return or raise what an operation on an object of the solution gives."""
        try:
            message = json.dumps([operation, *map(self._encoded, (target, list(args), kwargs))])
        except TypeError as error:
            self._give_up("unsupported", str(error))
        with self._turn:
            self._send(message)
            while True:
                match self._receive():
                    case ["value", value]:
                        return value
                    case ["value", None, list(changed)] if len(changed) == len(args):
                        for value, state in zip(args, changed, strict=True):
                            _change(value, state)
                        return None
                    case ["raised", list(names), list(arguments)]:
                        raise _rebuilt(names, arguments, may_stop=operation == "next")
                    case [("call" | "next") as kind, int(number), list(positional), dict(keywords)] if (
                        0 <= number < len(self._shared)
                    ):
                        self._call_shared(kind, self._shared[number], positional, keywords)
                    case _:
                        self._give_up("ended", "the solution sent something that is not an answer")

    def _call_shared(self, kind: str, function: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
        """Calls a function of the test for the solution."""
        try:
            result = next(function) if kind == "next" else function(*args, **kwargs)
            message = ["value", self._encoded(result)]
        except Exception as error:
            message = ["raised", {"tuple": [type(error).__name__, str(error)]}]
        self._send(json.dumps(message))

    def _send(self, text: str) -> None:
        try:
            self._stream.send(text)
        except values.BrokenChannel as broken:
            self._give_up("ended", f"the solution cannot be reached: {broken}")

    def _receive(self) -> Any:
        try:
            return values.decoded(self._stream.receive(), self._resolve)
        except values.BrokenChannel as broken:
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
        self._shared.append(value)
        return {"function" if callable(value) else "iterator": len(self._shared) - 1}

    def _resolve(self, tag: str, value: Any) -> Any:
        if tag == "reference" and type(value) is int:
            return self._objects.setdefault(value, _Object(self, value))
        if tag == "class" and isinstance(getattr(builtins, value), type):
            return getattr(builtins, value)
        raise values.BrokenChannel("it sent an unknown tag")


class _Object:
    """An object of the solution that is not a plain value: a function, an iterator, an instance.

    It equals only itself: the solution is never asked to compare, search or add, which would tell it what the
    test expects. Methods take arguments only on objects of classes that the test itself names.
    """

    __slots__ = ("_number", "_open", "_solution", "_takes")

    def __init__(self, solution: _Solution, number: int) -> None:
        for name, value in (("_solution", solution), ("_number", number), ("_open", False), ("_takes", True)):
            object.__setattr__(self, name, value)

    def open_to_the_test(self) -> None:
        object.__setattr__(self, "_open", True)

    def _ask(self, operation: str, *args: Any, **kwargs: Any) -> Any:
        result = self._solution.ask(operation, self, *args, **kwargs)
        if isinstance(result, _Object) and self._open:
            result.open_to_the_test()
        return result

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if (args or kwargs) and not self._takes:
            raise TypeError("methods of an object that a solution returned take no arguments in a test")
        return self._ask("call", *args, **kwargs)

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
        if type(key) is not int:  # an index tells nothing about what is expected
            self._only_if_open()
        return self._ask("item", key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._only_if_open()
        self._ask("put", key, value)

    def _only_if_open(self) -> None:
        if not self._open:
            raise TypeError("the object that a solution returned is not a plain value")

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
    """Changes an argument as the function changed its copy."""
    if state is None or type(state) is not type(value):
        return
    if isinstance(value, list | bytearray):
        value[:] = state
    elif isinstance(value, dict | set):
        value.clear()
        value.update(state)


def _rebuilt(names: list[Any], arguments: list[Any], *, may_stop: bool) -> Exception:
    """The exception of that name, or of its nearest built-in ancestor."""
    for name in names:
        kind = getattr(builtins, name, None) if isinstance(name, str) else None
        if not isinstance(kind, type) or not issubclass(kind, Exception):
            continue
        if issubclass(kind, StopIteration | StopAsyncIteration) and not may_stop:
            kind = RuntimeError  # from a function it would silently end a loop of the test
        try:
            return kind(*arguments)
        except Exception:
            return kind()
    return Exception(*arguments)
