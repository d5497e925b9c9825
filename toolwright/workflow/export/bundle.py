"""The source of operators in one text: their own code, and what that uses of this package.

An exported file says what the operators here say, word for word, and needs nothing of Toolwright to run.
"""

from __future__ import annotations

import builtins
import inspect
import re
import types
from collections.abc import Iterable, Iterator
from typing import Any

from toolwright.failures import UserError
from toolwright.workflow.operators import Operator

OWN = "toolwright."
CLASS = """\
class {name}:
    ports, defaults = {ports!r}, {defaults!r}

    def setting(self, settings, name):
        return settings.get(name, self.defaults[name])
"""


class SourceBundle:
    """Imports and definitions, each once, in an order in which they can be read."""

    def __init__(self, operators: Iterable[Operator]) -> None:
        self.imports: set[str] = {"import re"}
        self.parts: dict[str, str] = {}
        self._known: dict[str, Any] = {}
        for operator in operators:
            self._operator(operator)

    @property
    def text(self) -> str:
        return "\n\n\n".join(self.parts.values())

    def _operator(self, operator: Operator) -> None:
        """A class with the operator's own `__call__`. Tools live in this process and cannot be exported."""
        name = type(operator).__name__
        if operator.name.startswith("tool."):
            raise UserError(f"{operator.name} is a tool of this installation: it cannot be exported")
        call: Any = type(operator).__call__
        self._used(call.__code__, call.__globals__)
        defaults = {key: setting.default for key, setting in operator.settings.items()}
        own = CLASS.format(name=name, ports=tuple(operator.ports), defaults=defaults)
        self.parts[f"class {name}"] = f"{own}\n{inspect.getsource(call).rstrip()}"

    def _used(self, code: types.CodeType, names: dict[str, Any]) -> None:
        for name in _names(code):
            if name not in names or hasattr(builtins, name):
                continue
            value = names[name]
            if name in self._known:
                if self._known[name] is not value:
                    raise UserError(f"two things that the operators use are called {name!r}")
                continue
            self._known[name] = value
            self._add(name, value)

    def _add(self, name: str, value: Any) -> None:
        if isinstance(value, types.ModuleType):
            self.imports.add(
                f"import {name}" if value.__name__ == name else f"import {value.__name__} as {name}"
            )
        elif isinstance(value, re.Pattern):
            self.parts[name] = f"{name} = re.compile({value.pattern!r}, {int(value.flags)})"
        elif not isinstance(value, type | types.FunctionType):
            self.parts[name] = f"{name} = {value!r}"
        elif not value.__module__.startswith(OWN):
            self.imports.add(f"from {value.__module__} import {name}")
        elif isinstance(value, types.FunctionType):
            self._used(value.__code__, value.__globals__)
            self.parts[name] = inspect.getsource(value).rstrip()
        else:
            raise UserError(
                f"the operators use the class {name} of {value.__module__}: it cannot be exported"
            )


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
