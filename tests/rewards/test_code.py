"""Programs against tests, in a real sandbox."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.rewards.attempts import attempt, score, scorer
from toolwright.failures import UserError
from toolwright.rewards import Scorer
from toolwright.rewards.programs import code_of
from toolwright.sandbox.local import local_server
from toolwright.trajectory import Task

ADD = {"tests": ["assert add(1, 2) == 3", "assert add(-1, 1) == 0"]}
CHECK = {"test": "def check(candidate):\n    assert candidate(2) == 4\n", "entry_point": "double"}
ECHO = {"inputs": ["a\n", "b\n"], "outputs": ["A\n", "B\n"]}


@pytest.fixture(scope="module")
def code(sandbox_url: str) -> Iterator[Callable[..., Scorer]]:
    made: list[Scorer] = []

    def make(timeout_s: float = 120, **params: Any) -> Scorer:
        made.append(scorer("code", sandbox_url=sandbox_url, timeout_s=timeout_s, params={"code": params}))
        return made[-1]

    yield make
    for each in made:
        each.close()


def fenced(code: str) -> str:
    return f"I would write\n```python\n{code}\n```\nand that is all."


@pytest.mark.parametrize(
    ("answer", "truth", "right"),
    [
        ("def add(a, b):\n    return a + b", ADD, 1),
        ("def add(a, b):\n    print('adding')\n    return a + b\nprint('loaded')", ADD, 1),
        ("def add(a, b):\n    return 3", ADD, 0),
        ("def add(a, b:\n    return a + b", ADD, 0),
        ("import sys\nsys.exit(0)", ADD, 0),
        ("import os\nos._exit(0)", ADD, 0),
        ("print(__import__('sys').stdin.read())", ADD, 0),
        ("I do not know.", ADD, 0),
        ("def add(a, b):\n    return a + b\nif __name__ == '__main__':\n    input()", ADD, 1),
        ("def double(x):\n    return x + x", CHECK, 1),
        ("def double(x):\n    return x", CHECK, 0),
        ("print(input().upper())", ECHO, 1),
        ("print(input())", ECHO, 0),
        ("print(input().upper())", json.dumps(ECHO), 1),
        ("print(input().upper())", [{"input": "q", "output": "Q"}], 1),
    ],
)
def test_a_program_passes_all_its_tests_or_earns_nothing(
    answer: str, truth: Any, right: float, code: Callable[..., Scorer]
) -> None:
    made = [attempt(answer, truth), attempt(fenced(answer), truth)]
    assert score(code(), *made) == [right, right], [t.failure for t in made]


def test_the_share_of_passed_tests_is_recorded_and_may_be_the_score(code: Callable[..., Scorer]) -> None:
    half = attempt("def add(a, b):\n    return 3", ADD)
    assert score(code(), half) == [0.0]
    assert half.reward_parts == {"acc": 0.0, "passed": 0.5}
    assert score(code(partial=True), half) == [0.5]


def test_a_body_alone_completes_its_declaration(code: Callable[..., Scorer]) -> None:
    declaration = 'from typing import List\n\ndef double(x: List) -> List:\n    """Twice."""\n'
    truth = {**CHECK, "test": "def check(candidate):\n    assert candidate([1]) == [1, 1]\n"}
    body, whole = "    return x + x", "def double(x: List):\n    return x + x"
    made = [attempt(answer, truth, declaration=declaration) for answer in (body, fenced(body), fenced(whole))]
    assert score(code(), *made) == [1.0, 1.0, 1.0]


def test_a_program_that_never_ends_is_a_wrong_answer(sandbox_url: str) -> None:
    made = scorer("code", sandbox_url=sandbox_url, params={"code": {"timeout_s": 3}})
    try:
        endless, hungry = attempt("while True: pass", ECHO), attempt("x = 'x' * (1 << 33)", ECHO)
        assert score(made, endless, hungry, attempt("print(input().upper())", ECHO)) == [0.0, 0.0, 1.0]
    finally:
        made.close()


def test_a_long_answer_is_no_program(code: Callable[..., Scorer]) -> None:
    assert score(code(), attempt("#" * 2_000_000, ADD), attempt("\0\ud800", ADD)) == [0.0, 0.0]


@pytest.mark.parametrize(
    "truth", [None, "code", {}, {"tests": []}, {"inputs": ["1"], "outputs": []}, {"tests": [1]}, [], 5]
)
def test_a_ground_truth_without_tests_is_an_error_before_the_first_attempt(
    truth: Any, code: Callable[..., Scorer]
) -> None:
    made = code()
    with pytest.raises(UserError, match=r"task bad: the ground truth must be \{'test'"):
        made.check([Task("bad", [], truth)])
    lost = attempt("x", truth)
    assert score(made, lost) == [None]
    assert lost.failure.kind == "task"


def test_the_last_marked_block_is_the_program() -> None:
    assert code_of("```py\na\n```\n```python\nb\n```\n```\nc\n```") == "b\n"
    assert code_of("```\na\n```\ntext\n```\nb\n```") == "b\n"
    assert code_of("```python\nnot closed") == "not closed"
    assert code_of("no fence") == "no fence"


def test_without_a_url_the_scorer_starts_a_server_and_stops_it(sandbox_url: str) -> None:
    made = scorer("code")
    try:
        made.check([Task("t", [], ADD)])
        assert score(made, attempt("def add(a, b): return a + b", ADD)) == [1.0]
        part = made._parts[0]
        url = part._scorer._url
    finally:
        made.close()
    assert url != sandbox_url
    other = scorer("code", sandbox_url=url, timeout_s=1)
    try:
        with pytest.raises(UserError, match=url):
            other.check([Task("t", [], ADD)])
    finally:
        other.close()


def test_a_server_that_is_gone_is_named_and_nothing_is_scored_0() -> None:
    with local_server("--workers", "1") as url:
        pass
    made = scorer("code", sandbox_url=url, timeout_s=1)
    lost = [attempt("def add(a, b): return a + b", ADD) for _ in range(3)]
    try:
        assert score(made, *lost) == [None] * 3
    finally:
        made.close()
    for one in lost:
        assert one.failure.kind == "infrastructure"
        assert url in one.failure.message


def test_a_server_that_comes_back_within_the_limit_is_waited_for(sandbox_url: str) -> None:
    with local_server("--workers", "1") as url:
        pass
    port = url.rpartition(":")[2]
    made = scorer("code", sandbox_url=url, timeout_s=240)
    late = attempt("def add(a, b): return a + b", ADD)
    scoring = threading.Thread(target=score, args=(made, late))
    scoring.start()
    time.sleep(0.5)
    try:
        with local_server("--workers", "1", "--port", port):
            scoring.join()
    finally:
        made.close()
    assert late.reward == 1.0
