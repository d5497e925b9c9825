"""Answers that are programs: finds the code, and reads the tests of a ground truth."""

from __future__ import annotations

import ast
import builtins
import json
import re
from dataclasses import dataclass
from typing import Any

from toolwright.failures import TaskFailure
from toolwright.rewards.answers import unfit
from toolwright.rewards.item import Item, final_turn
from toolwright.tasks.public_tests import called, completed

FORMS = (
    "{'test': code, 'entry_point': name}, {'tests': [assertion, …], 'setup': code}, "
    "{'inputs': [text, …], 'outputs': [text, …]} or [{'input': text, 'output': text}, …]"
)
MOST_TESTS = 1000  # what the sandbox takes in one call


@dataclass(frozen=True)
class Tests:
    """The tests of a program: inputs with expected outputs, or code that checks it."""

    checks: tuple[str, ...] = ()
    cases: tuple[tuple[str, str], ...] = ()
    entry_point: str = ""
    setup: str = ""

    def request(self, item: Item) -> dict[str, Any]:
        """The body of `/judge` for this attempt."""
        code = code_of(item["solution_str"], defining=self.entry_point or called(list(self.checks)))
        if not self.checks:
            tests = [{"stdin": stdin, "expected_output": expected} for stdin, expected in self.cases]
            return {"code": code, "tests": tests}
        declaration = str(item["extra_info"].get("declaration", ""))
        # Helpers of a declaration that tests use are the data set's, whatever a solution makes of them.
        helpers = f"{declaration.rstrip()}\n    pass\n" if declaration else ""
        return {
            "code": completed(code, declaration, self.entry_point),
            "checks": list(self.checks),
            "setup": helpers + self.setup,
            "entry_point": self.entry_point,
        }


def tests_of(ground_truth: Any) -> Tests:
    """The tests of a ground truth, in any of the forms that data sets have."""
    found = ground_truth
    if isinstance(found, str) and found.lstrip()[:1] in ("{", "["):  # verl's files hold it as JSON
        try:
            found = json.loads(found)
        except json.JSONDecodeError:
            found = ground_truth
    tests = _checks(found) or _cases(found)
    if tests is None:
        raise unfit(ground_truth, FORMS, scorer="code")
    if len(tests.checks or tests.cases) > MOST_TESTS:
        raise TaskFailure(f"scorer 'code' takes at most {MOST_TESTS} tests, found {len(tests.cases)}")
    return tests


def with_last_code(item: Item) -> Item:
    """The item with the policy's last turn that has a block as the solution. Where blocks are tried as they
    are written, words may follow the last one ("all examples pass"), and they do not take the code back."""
    item = final_turn(item)
    if (item.get("result") or {}).get("answer") is not None:
        return item
    written = (turn for turn in reversed(item.get("turns", ())) if _fenced(turn))
    return {**item, "solution_str": next(written, item["solution_str"])}


def code_of(text: str, *, defining: str = "") -> str:
    """The last fenced block, preferably one marked as Python; without a fence, the whole text.

    A block with the function `defining` comes before later ones without it, which show how it is used."""
    blocks = _fenced(text)
    marked = [code for language, code in blocks if language in ("python", "py", "python3")]
    if blocks:
        found = marked or [code for _, code in blocks]
        named = re.compile(rf"^\s*(async\s+)?def\s+{re.escape(defining)}\b", re.MULTILINE)
        text = next((code for code in reversed(found) if defining and named.search(code)), found[-1])
    return text.encode("utf-8", "replace").decode()  # a lone surrogate cannot be sent


def _fenced(text: str) -> list[tuple[str, str]]:
    """Language and content of every ``` block. A block that is not closed ends with the text.

    Lines lose the indentation of the fence, which stands in a list."""
    blocks: list[tuple[str, str]] = []
    language, lines, indented = None, [], ""
    for line in text.splitlines(keepends=True):
        fence = line.strip()
        if not fence.startswith("```"):
            lines.append(line.removeprefix(indented))
        elif language is None:
            language, lines = fence[3:].strip().lower(), []
            indented = line[: line.index("`")]
        else:
            blocks.append((language, "".join(lines)))
            language = None
    if language is not None and lines:
        blocks.append((language, "".join(lines)))
    return blocks


def _checks(truth: Any) -> Tests | None:
    if not isinstance(truth, dict):
        return None
    test, entry, tests = truth.get("test"), truth.get("entry_point"), truth.get("tests")
    if isinstance(test, str) and isinstance(entry, str) and entry.isidentifier():
        return Tests(checks=(f"{test}\n\ncheck({entry})\n",), entry_point=entry)
    setup = truth.get("setup") or ""
    if isinstance(tests, list) and tests and all(isinstance(one, str) for one in (setup, *tests)):
        return Tests(checks=tuple(tests), setup=setup, entry_point=_hidden_name(tests))
    return None


def _hidden_name(tests: list[str]) -> str:
    """The function under test, if it has the name of a built-in that the assertions would call instead."""
    names: set[str] = set()
    for test in tests:
        try:
            nodes = list(ast.walk(ast.parse(test)))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return ""
        names |= {
            node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
    [only] = names if len(names) == 1 else [""]
    return only if hasattr(builtins, only) else ""


def _cases(truth: Any) -> Tests | None:
    if isinstance(truth, dict) and "fn_name" not in truth:
        inputs, outputs = truth.get("inputs"), truth.get("outputs")
        if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
            return None
        pairs = list(zip(inputs, outputs, strict=True))
    elif isinstance(truth, list) and all(isinstance(case, dict) for case in truth):
        pairs = [(case.get("input"), case.get("output")) for case in truth]
    else:
        return None
    if not pairs or not all(isinstance(text, str) for pair in pairs for text in pair):
        return None
    return Tests(cases=tuple(pairs))
