"""What a docstring says: of the whole, and of each parameter, in Google's or Sphinx's way of writing."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, field

_SECTION = re.compile(r"^(Args|Arguments|Parameters|Returns|Return|Yields|Raises|Examples?|Notes?):\s*$")
_GOOGLE = re.compile(r"^(\*{0,2}\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")
_SPHINX = re.compile(r"^:(param|parameter|arg|returns?|rtype|raises?|type)\b\s*([^:]*):\s*(.*)$")


@dataclass
class Docstring:
    """The description without its sections, and what is said of each parameter."""

    summary: str = ""
    parameters: dict[str, str] = field(default_factory=dict)


def read(text: str | None) -> Docstring:
    """Reads a docstring; what it does not understand stays in the summary."""
    found = Docstring()
    summary: list[str] = []
    section, parameter, depth = "", "", 0
    for line in inspect.cleandoc(text or "").splitlines():
        words, indent = line.strip(), len(line) - len(line.lstrip())
        if heading := _SECTION.match(line):
            section, parameter, depth = heading[1], "", 0
        elif sphinx := _SPHINX.match(words):
            section = "Sphinx"
            parameter = sphinx[2].split()[-1] if sphinx[1].startswith(("param", "arg")) and sphinx[2] else ""
            found.parameters.update({parameter: sphinx[3]} if parameter else {})
        elif section in ("Args", "Arguments", "Parameters"):
            depth = depth or indent
            named = _GOOGLE.match(words) if indent == depth else None
            if words and indent == 0:
                section = ""
                summary.append(line)
            elif named:
                parameter = named[1].lstrip("*")
                found.parameters[parameter] = named[2]
            else:
                _continue(found.parameters, parameter, words)
        elif section == "Sphinx":
            _continue(found.parameters, parameter, words)
        elif not section or (words and indent == 0):
            section = ""
            summary.append(line)
    found.summary = re.sub(r"\n{3,}", "\n\n", "\n".join(summary)).strip()
    return found


def _continue(parameters: dict[str, str], parameter: str, words: str) -> None:
    if parameter and words:
        parameters[parameter] = f"{parameters[parameter]} {words}".strip()
