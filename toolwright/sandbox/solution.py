"""The solution: it loads a program, then answers calls until the checker hangs up.

This code shares a process with a program that may be hostile, so nothing of it is trusted. Whatever the
program does, only text leaves the process, and the text can only say what a call returned.
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
    "call": lambda target, *args, **kwargs: target(*args, **kwargs),
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
    """Never returns: the process ends with the checker, with the solution, or is ended by the worker."""
    peer = _Checker(values.MessageStream(link))
    module = sys.modules[_NAME] = types.ModuleType(_NAME)
    program.cache_source(f"{_NAME}.py", code)
    try:
        exec(compile(code, f"{_NAME}.py", "exec", dont_inherit=True), module.__dict__)
    except BaseException as error:
        peer.send(["unloaded", f"{type(error).__name__}: {error}"[:500]])
        os._exit(1)
    peer.send(["ready"])
    try:
        while True:
            peer.answer(peer.receive(), module)
    except values.BrokenChannel:
        os._exit(0)


def warm_up() -> None:
    """Answers prepared calls in the zygote."""
    module = types.ModuleType(_NAME)
    exec(compile("def f(*args, **kwargs): return args", "", "exec"), module.__dict__)
    call = ["call", {"reference": 0}, [1, [0.5], {"tuple": ["a"]}], {"dict": ["key", None]}]
    for reading, writing in values.warm_up_sockets():
        peer = _Checker(values.MessageStream(reading))
        for request in (["name", "f", [], {"dict": []}], call):
            values.MessageStream(writing).send(json.dumps(request))
        for _ in range(2):
            peer.answer(peer.receive(), module)


class _Checker:
    """The other end of the socket: its calls, and the objects that it knows by number."""

    def __init__(self, stream: values.MessageStream) -> None:
        self._stream = stream
        self._shared: list[Any] = []  # objects that the checker knows by number
        self._numbers: dict[int, int] = {}

    def send(self, message: list[Any]) -> None:
        self._stream.send(json.dumps(message))

    def receive(self) -> list[Any]:
        return values.decoded(self._stream.receive(), self._resolve)

    def answer(self, request: list[Any], module: types.ModuleType) -> None:
        operation, target, args, kwargs = request
        before = [self._state(value) for value in args] if operation == "call" else []
        try:
            if operation == "name":
                result = getattr(module, target)
            else:
                result = _OPERATIONS[operation](target, *args, **kwargs)
            reply: list[Any] = ["value", values.encoded(result, self._refer)]
            if result is None and any(before):
                # A function that returns nothing may have been called to change its arguments.
                after = [self._state(value) for value in args]
                if after != before:
                    reply.append(
                        [None if a == b else json.loads(a) for a, b in zip(after, before, strict=True)]
                    )
            self.send(reply)
        except values.BrokenChannel:
            raise
        except Exception as error:
            self.send(self._raised(error))
        except BaseException:
            os._exit(1)

    def call(self, number: int, args: tuple[Any, ...], kwargs: dict[str, Any], operation: str) -> Any:
        """Calls a function of the test, which the test passed as an argument."""
        self.send(
            [operation, number, *(values.encoded(value, self._refer) for value in (list(args), kwargs))]
        )
        outcome, result = self.receive()
        if outcome == "value":
            return result
        raise getattr(builtins, result[0], Exception)(result[1])

    def _state(self, value: Any) -> str:
        return json.dumps(values.encoded(value, self._refer)) if isinstance(value, _MUTABLE) else ""

    def _refer(self, value: Any) -> dict[str, Any]:
        """A number for an object that is not a plain value. It is kept, so the number stays unique."""
        if isinstance(value, type) and value.__module__ == "builtins":
            return {"class": value.__name__}
        number = self._numbers.get(id(value))
        if number is None:
            number = self._numbers[id(value)] = len(self._shared)
            self._shared.append(value)
        return {"reference": number}

    def _resolve(self, tag: str, value: Any) -> Any:
        if tag == "reference":
            return self._shared[value]
        if tag == "builtin":
            return getattr(builtins, value)
        return _Iterator(self, value) if tag == "iterator" else _Function(self, value)

    def _raised(self, error: Exception) -> list[Any]:
        try:
            arguments = values.encoded(list(error.args), self._refer)
        except Exception:
            arguments = [str(error)]
        return ["raised", [kind.__name__ for kind in type(error).__mro__], arguments]


class _Function:
    """A function that the test passed as an argument. The checker runs it."""

    def __init__(self, checker: _Checker, number: int) -> None:
        self._checker, self._number = checker, number

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._checker.call(self._number, args, kwargs, "call")


class _Iterator(_Function):
    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self._checker.call(self._number, (), {}, "next")
