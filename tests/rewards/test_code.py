"""Programs against tests, in a real sandbox."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.rewards.attempts import attempt, said, score, scorer
from toolwright.failures import UserError
from toolwright.rewards import Scorer
from toolwright.rewards.programs import code_of
from toolwright.sandbox.local import local_server
from toolwright.trajectory import Segment, Task, Trajectory

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


def test_a_function_followed_by_a_block_that_uses_it_passes(code: Callable[..., Scorer]) -> None:
    double, add = fenced("def double(x):\n    return 2 * x"), fenced("def add(a, b):\n    return a + b")
    made = [
        attempt(f"{double}\n{fenced('print(double(4))')}", CHECK),
        attempt(f"{add}\n{fenced('add(1, 2)')}", ADD),
    ]
    assert score(code(), *made) == [1.0, 1.0], [one.failure for one in made]


def test_the_last_code_counts_if_only_words_follow_it(code: Callable[..., Scorer]) -> None:
    wrong, right = fenced("def add(a, b):\n    return 3"), fenced("def add(a, b):\n    return a + b")

    def turns(*texts: str) -> Trajectory:
        made = attempt(texts[0], ADD)
        for text in texts[1:]:
            made.segments += [Segment("tool", [3], text="```output\n1 example fails\n```\n"), said(text)]
        return made

    made = [turns(wrong, right, "Done."), turns(right, wrong, "Done."), turns(right, "Done.")]
    assert score(code(), *made) == [1.0, 0.0, 1.0], [one.failure for one in made]


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


def test_a_function_body_without_a_header_completes_the_declaration(code: Callable[..., Scorer]) -> None:
    declaration = 'from typing import List\n\ndef double(x: List) -> List:\n    """Twice."""\n'
    truth = {**CHECK, "test": "def check(candidate):\n    assert candidate([1]) == [1, 1]\n"}
    body, whole = "    return x + x", "def double(x: List):\n    return x + x"
    made = [attempt(answer, truth, declaration=declaration) for answer in (body, fenced(body), fenced(whole))]
    assert score(code(), *made) == [1.0, 1.0, 1.0]


def test_a_future_import_may_follow_the_declaration(code: Callable[..., Scorer]) -> None:
    declaration = "from typing import List\n\ndef double(x: List) -> List:\n    ...\n"
    answer = "from __future__ import annotations\nimport math\ndef double(x: Any):\n    return 2 * x"
    assert score(code(), attempt(answer, CHECK, declaration=declaration)) == [1.0]


def test_a_block_in_a_list_is_a_program(code: Callable[..., Scorer]) -> None:
    answer = "1. Add them:\n   ```python\n   def add(a, b):\n       return a + b\n   ```\n2. Done."
    assert score(code(), attempt(answer, ADD)) == [1.0]


@pytest.mark.parametrize(
    "load",
    [
        "class queue(Exception): pass\nraise queue('the machine was too busy')",
        "class worker(Exception): pass\nraise worker('the process that ran it was killed')",
    ],
)
def test_a_program_cannot_pretend_that_it_was_never_judged(load: str, code: Callable[..., Scorer]) -> None:
    made = [attempt(load, truth) for truth in (ADD, CHECK)]
    assert score(code(timeout_s=8), *made) == [0.0, 0.0]


def test_a_program_that_never_ends_is_wrong_however_many_tests_there_are(sandbox_url: str) -> None:
    many = {"inputs": ["x"] * 60, "outputs": ["y"] * 60}
    calls = {"tests": [f"assert f({n}) == {n}" for n in range(60)]}
    endless = "def f(n):\n    while True: pass"
    made = scorer("code", sandbox_url=sandbox_url, timeout_s=25, params={"code": {"timeout_s": 1}})
    try:
        slow = [attempt("while True: pass", many), attempt(endless, calls)]
        assert score(made, *slow) == [0.0, 0.0], [one.failure for one in slow]
    finally:
        made.close()


def test_a_program_that_never_ends_is_a_wrong_answer(sandbox_url: str) -> None:
    made = scorer("code", sandbox_url=sandbox_url, params={"code": {"timeout_s": 3}})
    try:
        endless, hungry = attempt("while True: pass", ECHO), attempt("x = 'x' * (1 << 33)", ECHO)
        assert score(made, endless, hungry, attempt("print(input().upper())", ECHO)) == [0.0, 0.0, 1.0]
    finally:
        made.close()


def test_an_answer_that_is_too_long_scores_zero(code: Callable[..., Scorer]) -> None:
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


HONEST = {
    "a generator": (
        "def f(n):\n    yield from range(n)",
        ["assert list(f(3)) == [0, 1, 2]", "assert next(f(2)) == 0"],
    ),
    "an endless generator": (
        "def f():\n    n = 0\n    while True:\n        yield n\n        n += 1",
        ["numbers = f()\nassert [next(numbers) for _ in range(3)] == [0, 1, 2]"],
    ),
    "tuples and lists": ("def f(x): return (x, [x])", ["assert f(1) == (1, [1])", "assert f(1) != [1, [1]]"]),
    "the types of dictionaries": (
        "from collections import Counter, defaultdict, OrderedDict\n"
        "def f(x):\n    d = defaultdict(list)\n    d[(1, 2)].append(x)\n"
        "    return Counter(x), d, OrderedDict(a=1)",
        [
            "assert f('aab') == ({'a': 2, 'b': 1}, {(1, 2): ['aab']}, {'a': 1})",
            "assert f('ab')[0].most_common(1)",
        ],
    ),
    "views of dictionaries": (
        "def f(d): return d.keys(), d.items()",
        [
            "keys, items = f({2: 'b', 1: 'a'})\nassert keys == {1, 2} and list(keys) == [2, 1]\n"
            "assert items == {(1, 'a'), (2, 'b')}"
        ],
    ),
    "sets and bytes": (
        "def f(): return {1}, frozenset((2,)), b'\\x00\\xff', bytearray(b'a'), 1 + 2j, range(3), None",
        [
            "assert f() == ({1}, {2}, b'\\x00\\xff', b'a', 1 + 2j, range(3), None)",
            "assert type(f()[1]) is frozenset",
        ],
    ),
    "large and odd numbers": (
        "import math\ndef f(): return 7 ** 5000, -(1 << 64), 0.1 + 0.2, math.inf, math.nan, True",
        [
            "a = f()\nassert a[:4] == (7 ** 5000, -(1 << 64), 0.1 + 0.2, float('inf'))\n"
            "assert a[4] != a[4] and a[5] is True"
        ],
    ),
    "any text": (
        "def f(x): return x + '\\ud800\\0é\\U0001f600'",
        ["assert f('ü') == 'ü\\ud800\\0é\\U0001f600'"],
    ),
    "subclasses": (
        "import enum, collections\nP = collections.namedtuple('P', 'x y')\nclass E(enum.IntEnum): A = 3\n"
        "def f(): return P(1, 2), E.A",
        ["assert f() == ((1, 2), 3)"],
    ),
    "numpy's numbers": (
        "import numpy as np\ndef f(x): return np.mean(x), np.int64(3), np.array(x) > 1, np.bool_(True)",
        [
            "m, n, larger, yes = f([1, 2, 3])\nassert m == 2.0 and n == 3 and yes is True\n"
            "assert larger.tolist() == [False, True, True]"
        ],
    ),
    "dates": (
        "from datetime import *\ndef f(d): return d + timedelta(days=1, seconds=5)",
        ["import datetime as d\nassert f(d.datetime(2024, 2, 28)) == d.datetime(2024, 2, 29, 0, 0, 5)"],
    ),
    "decimals and fractions": (
        "from decimal import Decimal\nfrom fractions import Fraction\n"
        "def f(): return Decimal('0.1'), Fraction(1, 3)",
        ["assert f() == (Decimal('0.1'), Fraction(2, 6))"],
    ),
    "a match": (
        "import re\ndef f(x): return re.search(r'(b+)', x)",
        [
            "assert f('abbc')",
            "assert f('abbc').group() == 'bb'",
            "assert not f('x')",
            "assert f('x') is None",
        ],
    ),
    "exceptions": (
        "class Mine(ValueError): pass\ndef f(x):\n    if x: raise Mine('no', 1)\n    return [][0]",
        [
            "try:\n    f(1)\nexcept ValueError as error:\n    assert error.args == ('no', 1)\n"
            "else:\n    assert False",
            "try:\n    f(0)\nexcept IndexError:\n    pass\nelse:\n    assert False",
        ],
    ),
    "functions as arguments": (
        "def f(g, xs, *, key=None): return sorted((g(x) for x in xs), key=key)",
        ["assert f(lambda x: x * 2, [1, 2], key=lambda x: -x) == [4, 2]", "assert f(str, [1]) == ['1']"],
    ),
    "iterators as arguments": (
        "def f(xs): return sum(xs)",
        ["assert f(iter([1, 2])) == 3", "assert f(x for x in [4]) == 4"],
    ),
    "functions as answers": (
        "def f(a): return lambda b: a + b",
        ["assert f(1)(2) == 3", "assert callable(f(1))"],
    ),
    "arguments changed in place": (
        "def f(xs, d): xs.sort(); d.clear()",
        ["xs, d = [3, 1, 2], {1: 2}\nassert f(xs, d) is None\nassert (xs, d) == ([1, 2, 3], {})"],
    ),
    "a class of the program's": (
        "class Stack:\n    def __init__(self): self.items = []\n    def push(self, x): self.items.append(x)\n"
        "    def pop(self): return self.items.pop()\n    def __len__(self): return len(self.items)\n"
        "def height(node): return 1 + max((height(c) for c in (node.left, node.right) if c), default=0)\n"
        "class Node:\n    def __init__(self): self.left = self.right = None",
        [
            "s = Stack()\ns.push(1)\ns.push([2])\nassert len(s) == 2 and s.pop() == [2] and s.items == [1]",
            "root = Node()\nroot.left = Node()\nassert height(root) == 2 and height(root.left) == 1",
        ],
    ),
    "a built-in name": ("def sum(a, b): return a * b", ["assert sum(2, 3) == 6"]),
    "a long answer": (
        "def f(n): return list(range(n)), 'x' * n",
        ["assert f(300_000) == (list(range(300_000)), 'x' * 300_000)"],
    ),
    "state": ("n = 0\ndef f():\n    global n\n    n += 1\n    return n", ["assert [f(), f()] == [1, 2]"]),
}


@pytest.mark.parametrize(
    "program",
    [
        "import io, sys\nsys.stdout = io.StringIO()\nprint(input().upper())\n"
        "sys.__stdout__.write(sys.stdout.getvalue())",
        "import sys\nprint(input().upper())\nsys.stdout.close()",
        "import sys\nprint(input().upper())\nsys.stdout.flush()\nsys.stdout = None",
        "import atexit, io, os, sys\nheld = io.BytesIO()\n"
        "sys.stdout = io.TextIOWrapper(held, write_through=True)\n"
        "atexit.register(lambda: os.write(1, held.getvalue()))\nprint(input().upper())",
    ],
)
def test_what_a_program_wrote_by_its_end_counts_however_it_buffers(
    program: str, code: Callable[..., Scorer]
) -> None:
    assert score(code(), attempt(program, ECHO)) == [1.0]


@pytest.mark.parametrize("what", HONEST)
def test_right_solutions_pass_with_any_type_of_argument_and_result(
    what: str, code: Callable[..., Scorer]
) -> None:
    answer, tests = HONEST[what]
    made = attempt(answer, {"tests": tests})
    assert score(code(), made) == [1.0], (made.failure, made.reward_parts)


def test_tests_that_cannot_be_run_are_a_failure_and_not_a_score(code: Callable[..., Scorer]) -> None:
    made = attempt("def f(x): pass", {"tests": ["class Mine: pass\nf(Mine())"]})
    assert score(code(), made) == [None]
    assert made.failure.kind == "task"
    assert "cannot be given a Mine" in made.failure.message
