"""The solution's side of a trial: loads a program, then answers calls until the checker hangs up.

All of this shares a process with a program that may be hostile, so nobody believes any of it. Whatever the
program does to it, all that leaves is text, and all that the text can say is what a call returned.
"""

from __future__ import annotations

import builtins
import json
import operator
import os
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from toolwright.sandbox import program, values

_NAME = "solution"
_MUTABLE = (list, dict, set, bytearray)
_OPERATIONS: dict[str, Callable[..., Any]] = {
    "call": lambda target, *given, **named: target(*given, **named),
    "get": getattr,
    "set": setattr,
    "item": operator.getitem,
    "put": operator.setitem,
    "len": len,
    "str": str,
    "repr": repr,
    "bool": bool,
    "iter": iter,
    "next": next,
}


def serve(code: str, link: int) -> NoReturn:
    """Never returns: the checker's end, the solution's own, or the worker ends this process."""
    peer = _Checker(values.MessageStream(link))
    module = sys.modules[_NAME] = types.ModuleType(_NAME)
    program.remember(f"{_NAME}.py", code)
    try:
        exec(compile(code, f"{_NAME}.py", "exec", dont_inherit=True), module.__dict__)
    except BaseException as error:
        peer.say(["unloaded", f"{type(error).__name__}: {error}"[:500]])
        os._exit(1)
    peer.say(["ready"])
    try:
        while True:
            peer.answer(peer.hear(), module)
    except values.Broken:
        os._exit(0)


def rehearse() -> None:
    """In the zygote: calls of a function that were asked for before."""
    module = types.ModuleType(_NAME)
    exec(compile("def f(*given, **named): return given", "", "exec"), module.__dict__)
    call = ["call", {"reference": 0}, [1, [0.5], {"tuple": ["a"]}], {"dict": ["key", None]}]
    for reading, writing in values.rehearsal():
        peer = _Checker(values.MessageStream(reading))
        for request in (["name", "f", [], {"dict": []}], call):
            values.MessageStream(writing).send(json.dumps(request))
        for _ in range(2):
            peer.answer(peer.hear(), module)


class _Checker:
    """The other end of the line: its calls, and what belongs to it or was given to it by number."""

    def __init__(self, line: values.MessageStream) -> None:
        self._line = line
        self._given: list[Any] = []  # what the checker knows by number
        self._numbers: dict[int, int] = {}

    def say(self, message: list[Any]) -> None:
        self._line.send(json.dumps(message))

    def hear(self) -> list[Any]:
        return values.decoded(self._line.receive(), self._resolve)

    def answer(self, request: list[Any], module: types.ModuleType) -> None:
        operation, target, given, named = request
        before = [self._state(value) for value in given] if operation == "call" else []
        try:
            if operation == "name":
                result = getattr(module, target)
            else:
                result = _OPERATIONS[operation](target, *given, **named)
            reply: list[Any] = ["value", values.encoded(result, self._refer)]
            if result is None and any(before):
                # A function that returns nothing may have been called for what it does to its arguments.
                after = [self._state(value) for value in given]
                if after != before:
                    reply.append(
                        [None if a == b else json.loads(a) for a, b in zip(after, before, strict=True)]
                    )
            self.say(reply)
        except values.Broken:
            raise
        except Exception as error:
            self.say(self._raised(error))
        except BaseException:
            os._exit(1)

    def call(self, number: int, given: tuple[Any, ...], named: dict[str, Any], operation: str) -> Any:
        """Calls a function of the test's, which it gave as an argument."""
        self.say([operation, number, *(values.encoded(told, self._refer) for told in (list(given), named))])
        outcome, result = self.hear()
        if outcome == "value":
            return result
        raise getattr(builtins, result[0], Exception)(result[1])

    def _state(self, value: Any) -> str:
        return json.dumps(values.encoded(value, self._refer)) if isinstance(value, _MUTABLE) else ""

    def _refer(self, value: Any) -> dict[str, Any]:
        """A number for what is no plain value. It is kept, so that the number stays its own."""
        if isinstance(value, type) and value.__module__ == "builtins":
            return {"class": value.__name__}
        number = self._numbers.get(id(value))
        if number is None:
            number = self._numbers[id(value)] = len(self._given)
            self._given.append(value)
        return {"reference": number}

    def _resolve(self, tag: str, told: Any) -> Any:
        if tag == "reference":
            return self._given[told]
        if tag == "builtin":
            return getattr(builtins, told)
        return _Iterator(self, told) if tag == "iterator" else _Function(self, told)

    def _raised(self, error: Exception) -> list[Any]:
        try:
            told = values.encoded(list(error.args), self._refer)
        except Exception:
            told = [str(error)]
        return ["raised", [kind.__name__ for kind in type(error).__mro__], told]


class _Function:
    """A function that the test passed as an argument: called here, run by the checker."""

    def __init__(self, checker: _Checker, number: int) -> None:
        self._checker, self._number = checker, number

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self._checker.call(self._number, given, named, "call")


class _Iterator(_Function):
    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self._checker.call(self._number, (), {}, "next")
