"""Values as text between a solution and its checker: JSON with a tag for every type that JSON lacks.

The reader builds only values of exact built-in types from the text: no pickle, no class of the writer, no
object that decides itself what it equals. Any other object travels as a number that only its owner can use.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from datetime import date, datetime, time, timedelta
from typing import Any

from toolwright.sandbox import wire

LARGEST = 16 << 20  # bytes of one message
_WARM_UPS = 20
_SCALARS = frozenset((type(None), bool, str, float))
_SHORT = 1 << 62  # larger integers travel in hexadecimal: reading decimals takes quadratic time


class BrokenChannel(Exception):
    """The other side is gone, or it sent something that is not a message."""


class MessageStream:
    """Messages over a stream socket, each after its length."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def send(self, text: str) -> None:
        body = text.encode()
        if len(body) > LARGEST:
            raise OverflowError(f"a value of more than {LARGEST >> 20} MiB")
        try:
            wire.write_all(self._descriptor, wire.with_length(body))
        except OSError as error:
            raise BrokenChannel("it is gone") from error

    def receive(self) -> str:
        length = int.from_bytes(self._exactly(4), "little")
        if length > LARGEST:
            raise BrokenChannel("it sent a message that is too long")
        try:
            return str(self._exactly(length), "utf-8")
        except UnicodeDecodeError:
            raise BrokenChannel("it sent bytes that are not text") from None

    def _exactly(self, size: int) -> bytes:
        pieces = bytearray()
        while len(pieces) < size:
            try:
                data = os.read(self._descriptor, min(size - len(pieces), 1 << 20))
            except OSError:
                data = b""
            if not data:
                raise BrokenChannel("it is gone")
            pieces += data
        return bytes(pieces)


def warm_up_sockets() -> Iterator[tuple[int, int]]:
    """Socket pairs for the warm-up of a zygote, as many as the interpreter needs to specialise its code."""
    for _ in range(_WARM_UPS):
        reading, writing = socket.socketpair()
        with reading, writing:
            yield reading.fileno(), writing.fileno()


def encoded(value: Any, refer: Callable[[Any], dict[str, Any]]) -> Any:
    """A value in the form that `json.dumps` takes. A subclass is sent as its base: a named tuple as a tuple.

    `refer` gives the form of objects that are not plain values.
    """
    kind = type(value)
    if kind in _SCALARS:
        return value
    if kind is int:
        return value if -_SHORT < value < _SHORT else {"int": hex(value)}
    if kind is list:
        return [item if type(item) in _SCALARS else encoded(item, refer) for item in value]
    for base, tag, parts in _PLAIN:
        if isinstance(value, base):
            return {tag: [encoded(part, refer) for part in parts(value)]} if tag else parts(value)
    if kind.__name__ in _BY_TEXT and kind.__module__ == _BY_TEXT[kind.__name__]:
        return {kind.__name__: [str(value)]}
    if kind.__module__ == "numpy" and hasattr(value, "item") and not getattr(value, "shape", ()):
        return encoded(value.item(), refer)
    return refer(value)


def _pairs(value: dict[Any, Any]) -> list[Any]:
    return [part for pair in dict.items(value) for part in pair]


def _short(value: int) -> Any:
    return encoded(int(value), _no_reference)


def _no_reference(value: Any) -> dict[str, Any]:
    raise TypeError(f"a {type(value).__name__} is not a plain value")


# Type, tag (none: the function gives JSON already), function that gives the parts. The first match counts.
_PLAIN: tuple[tuple[type, str, Callable[[Any], Any]], ...] = (
    (tuple, "tuple", list),
    (Counter, "Counter", _pairs),
    (OrderedDict, "OrderedDict", _pairs),
    (defaultdict, "dict", _pairs),
    (dict, "dict", _pairs),
    (set, "set", list),
    (frozenset, "frozenset", list),
    (deque, "deque", list),
    (list, "list", list),
    (int, "", _short),
    (float, "", float),
    (str, "", str.__str__),
    (complex, "complex", lambda value: [value.real, value.imag]),
    (bytearray, "bytearray", lambda value: [value.hex()]),
    (bytes, "bytes", lambda value: [value.hex()]),
    (type({}.keys()), "keys", list),
    (type({}.items()), "items", list),
    (range, "range", lambda value: [value.start, value.stop, value.step]),
    (datetime, "datetime", lambda value: [value.isoformat()]),
    (date, "date", lambda value: [value.isoformat()]),
    (time, "time", lambda value: [value.isoformat()]),
    (timedelta, "timedelta", lambda value: [value.days, value.seconds, value.microseconds]),
)
_BY_TEXT = {"Decimal": "decimal", "Fraction": "fractions"}  # from modules that few solutions load


def decoded(text: str, resolve: Callable[[str, Any], Any]) -> Any:
    """The value that a text stands for; `resolve` handles the tags of objects that are not plain values."""

    def rebuilt(tagged: dict[str, Any]) -> Any:
        if len(tagged) != 1:
            raise ValueError("an object of several tags")
        [(tag, parts)] = tagged.items()
        if tag in _REBUILT or tag in _BY_TEXT:
            if type(parts) is not list:
                raise ValueError(f"a {tag} without its parts")
            return _REBUILT[tag](parts) if tag in _REBUILT else _from_text(tag, *parts)
        return int(parts, 16) if tag == "int" else resolve(tag, parts)

    try:
        return json.loads(text, object_hook=rebuilt)
    except BrokenChannel:
        raise
    except Exception as error:  # any error in the text is the writer's fault
        raise BrokenChannel(f"it sent something that is not a value: {type(error).__name__}") from None


def _paired(parts: list[Any]) -> dict[Any, Any]:
    return dict(zip(parts[::2], parts[1::2], strict=True))


_REBUILT: dict[str, Callable[[list[Any]], Any]] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "deque": deque,
    "dict": _paired,
    "Counter": lambda parts: Counter(_paired(parts)),
    "OrderedDict": lambda parts: OrderedDict(_paired(parts)),
    "complex": lambda parts: complex(*parts),
    "bytes": lambda parts: bytes.fromhex(*parts),
    "bytearray": lambda parts: bytearray.fromhex(*parts),
    "keys": lambda parts: dict.fromkeys(parts).keys(),
    "items": lambda parts: dict(parts).items(),
    "range": lambda parts: range(*parts),
    "datetime": lambda parts: datetime.fromisoformat(*parts),
    "date": lambda parts: date.fromisoformat(*parts),
    "time": lambda parts: time.fromisoformat(*parts),
    "timedelta": lambda parts: timedelta(*parts),
}


def _from_text(name: str, text: str) -> Any:
    return getattr(importlib.import_module(_BY_TEXT[name]), name)(text)
