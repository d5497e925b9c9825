"""The examples of a problem as a tool: they show what fails, and nothing of the hidden tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from toolwright.tasks.datasets import task_rows
from toolwright.tasks.public_tests import called, examples
from toolwright.tools.call import ToolRequest, ToolResult
from toolwright.trajectory import Task

from .conftest import Box

MBPP = {
    "task_id": 601,
    "text": "Write a function to double a number.",
    "code": "def double(n):\n    return 2 * n",
    "test_setup_code": "",
    "test_list": ["assert double(3) == 6", "assert double(-1) == -2", "assert double(1234) == 2468"],
}
HUMANEVAL = {
    "task_id": "HumanEval/0",
    "prompt": "from typing import List\n\n\n"
    'def largest(values: List[int]) -> int:\n    """The largest value.\n'
    '    >>> largest([1, 3, 2])\n    3\n    """\n',
    "canonical_solution": "    return max(values)\n",
    "test": "def check(candidate):\n    assert candidate([5, 9]) == 9\n",
    "entry_point": "largest",
}


def task_of(name: str, row: dict[str, object]) -> Task:
    (made,) = task_rows(name, [row], split="train")
    return Task("t", made["prompt"], made["reward_model"]["ground_truth"], name, made["extra_info"])


@pytest.fixture
def tried(box: Callable[..., Box], sandbox: str) -> Callable[[Task | None, str], ToolResult]:
    made = box({"run_tests": {"url": sandbox, "timeout_s": 5}})

    def call(task: Task | None, code: str) -> ToolResult:
        request = ToolRequest("run_tests", {"code": code})
        return made.runner.run(made.toolbox.call(request, attempt="a", task=task))

    return call


def test_only_the_first_assertion_of_mbpp_is_public() -> None:
    task = task_of("mbpp", MBPP)
    assert task.extra_info["public_tests"] == MBPP["test_list"][:1]
    assert task.extra_info["entry_point"] == "double"
    assert task.ground_truth["tests"] == MBPP["test_list"]
    assert "-2" not in task.prompt[0]["content"]


def test_a_solution_is_tried_on_the_examples_alone(tried: Callable[..., ToolResult]) -> None:
    task = task_of("mbpp", MBPP)
    assert tried(task, "def double(n):\n    return 6").text == "all 1 examples pass"
    wrong = tried(task, "def double(n):\n    return n")
    assert wrong.text == "0 of 1 examples pass\nassert double(3) == 6\n  the left side is 3"
    assert not wrong.trouble, "an example that fails is an answer, not an error"
    raising = tried(task, "def double(n):\n    return n + 'a'").text
    assert "TypeError: unsupported operand" in raising
    assert "_tried" not in raising
    assert tried(task, "```python\ndef double(n):\n    return 2 * n\n```").text == "all 1 examples pass"
    assert "there is no function double" in tried(task, "def other(n): ...").text


def test_code_that_does_not_run_is_an_error_with_its_traceback(tried: Callable[..., ToolResult]) -> None:
    found = tried(task_of("mbpp", MBPP), "def double(n:\n")
    assert found.trouble == "raised"
    assert "SyntaxError" in found.text
    endless = tried(task_of("mbpp", MBPP), "while True: pass")
    assert endless.trouble == "timeout"


def test_a_body_alone_completes_the_declaration(tried: Callable[..., ToolResult]) -> None:
    task = task_of("humaneval", HUMANEVAL)
    assert tried(task, "    return max(values)").text == "all 1 examples pass"
    whole = "def largest(values: List[int]) -> int:\n    return values[0]"
    assert "the left side is 1" in tried(task, whole).text


def test_without_examples_or_without_a_task_it_says_so(tried: Callable[..., ToolResult]) -> None:
    bare = Task("t", [{"role": "user", "content": "Write f."}], {"tests": ["assert f() == 1"]}, "mbpp")
    assert tried(bare, "def f(): return 1").text == "the code runs; this task has no examples to try it on"
    assert "this call has none" in tried(None, "x = 1").text


def test_the_policy_sees_the_code_as_the_only_argument(box: Callable[..., Box], sandbox: str) -> None:
    schema = box({"run_tests": {"url": sandbox}}).schemas()["run_tests"]
    assert list(schema["parameters"]["properties"]) == ["code"]


@pytest.mark.parametrize(
    ("docstring", "tests"),
    [
        (">>> f(1, [2])\n    3", ["assert f(1, [2]) == 3"]),
        ("f([4, 2]) ==> 2", ["assert f([4, 2]) == 2"]),
        ("f('a') ➞ true", ["assert f('a') == True"]),
        ("For example f(3) returns 4.", ["assert f(3) == 4"]),
        ("f(x) == 3", []),
        ("f(3) = 4 and so on", []),
        (">>> g(1)\n    2", []),
        ("f(3) == 4\n    f(3) == 4", ["assert f(3) == 4"]),
        ("f(3) = 4", ["assert f(3) == 4"]),
        (">>> f(3) == 4\n    True\n    >>> f(4) == None", ["assert f(3) == 4", "assert f(4) == None"]),
        (">>> f(3) == 4\n    False", []),
        (">>> f(3) == 4 == g(1)\n    True", []),
        ("For x = [1], y = 2, the output should be 3.", ["assert f(x=[1], y=2) == 3"]),
        ("For x = 'a'  the result should be ('b', False)", ["assert f(x='a') == ('b', False)"]),
        ("Input: [4, 2]\n    Output: [2, 1]  # the least", ["assert f([4, 2]) == [2, 1]"]),
        ("Input: n words\n    Output: 3", []),
    ],
)
def test_examples_are_found_as_docstrings_write_them(docstring: str, tests: list[str]) -> None:
    assert examples(f'def f(x):\n    """\n    {docstring}\n    """\n', "f") == tests


def test_the_function_under_test_is_found_inside_a_built_in_call() -> None:
    assert called(["assert set(f(1)) == {1}"]) == "f"
    assert called(["assert ("]) == ""
    assert called([]) == ""
