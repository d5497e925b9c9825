"""Whatever a policy says, a built-in scorer gives a score in its range, from any thread."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.rewards.attempts import attempt, score, scorer
from toolwright.rewards import Scorer

PIECES = [
    *("\\boxed{", "}", "{", "####", "<answer>", "</answer>", "<think>", "</think>", "```python\n", "```"),
    *("12", "-", "1,234.5", "$", "\\frac{1}{2}", "\\text{yes}", "the", "^", "(", ")", "=", "\n", "def f(x):"),
    *("\\", "−", "٣"),
]
LONG = ["9" * 200_000, "1," * 100_000, "1,111" * 40_000, "-" * 200_000, "\\boxed{" * 30_000]
ANSWERS = st.one_of(st.text(max_size=80), st.lists(st.sampled_from(PIECES), max_size=25).map("".join))
TRUTHS: dict[str, Any] = {
    "exact": "yes",
    "numeric": "12",
    "gsm8k": "1,234",
    "countdown": {"numbers": [3, 7], "target": 10},
    "f1": ["yes", "the tower"],
    "em": {"target": ["yes"]},
    "drop": ["12", "12 yards"],
    "length": None,
    "tool_efficiency": None,
}
PARAMS = {"length": {"length": {"most": 10}}}


@pytest.mark.parametrize("name", TRUTHS)
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(answer=ANSWERS)
def test_any_answer_has_a_score_from_0_to_1(name: str, answer: str) -> None:
    made = attempt(answer, TRUTHS[name])
    (value,) = score(scorer(name, params=PARAMS.get(name, {})), made)
    assert value is not None, made.failure
    assert 0.0 <= value <= 1.0


@pytest.fixture(scope="module")
def elsewhere(sandbox_url: str) -> Iterator[dict[str, Scorer]]:
    made = {
        "math": scorer("math", timeout_s=60, workers=1),
        "format": scorer("format"),
        "code": scorer("code", sandbox_url=sandbox_url, params={"code": {"timeout_s": 10}}),
    }
    yield made
    for each in made.values():
        each.close()


@settings(max_examples=25, deadline=None)
@given(answers=st.lists(ANSWERS, min_size=8, max_size=8))
def test_any_answer_is_scored_where_it_can_be_killed_too(
    answers: list[str], elsewhere: dict[str, Scorer]
) -> None:
    for name, truth in (
        ("math", "\\frac{1}{2}"),
        ("format", None),
        ("code", {"tests": ["assert f(1) == 1"]}),
    ):
        made = [attempt(answer, truth) for answer in answers]
        for value, one in zip(score(elsewhere[name], *made), made, strict=True):
            # What sympy cannot digest is a failure that is told, never a score.
            assert one.failure.kind == "task" if value is None and name == "math" else value in (0.0, 1.0)


@pytest.mark.parametrize(
    "answer", ["9" * 200_000, "1," * 100_000, "1,111" * 40_000, "-" * 200_000, "\\boxed{" * 30_000]
)
@pytest.mark.parametrize("name", TRUTHS)
def test_a_long_answer_takes_no_longer_than_it_should(name: str, answer: str) -> None:
    made = scorer(name, params=PARAMS.get(name, {}))
    began = time.process_time()
    assert score(made, attempt(answer, TRUTHS[name]))[0] is not None
    assert time.process_time() - began < 0.5  # a tenth of that; what is quadratic takes minutes


def test_64_threads_may_ask_one_scorer(elsewhere: dict[str, Scorer]) -> None:
    cases = {
        "math": ("\\boxed{0.5}", "\\frac{1}{2}"),
        "format": ("<think></think><answer></answer>", None),
        "code": ("def f(x): return x", {"tests": ["assert f(1) == 1"]}),
    }
    found: list[float | None] = []

    def ask(name: str) -> None:
        found.extend(score(elsewhere[name], attempt(*cases[name])))

    threads = [threading.Thread(target=ask, args=(list(cases)[n % 3],)) for n in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [1.0] * 64


def seconds_for_a_thousand() -> float:
    """Of the processor."""
    made = scorer("openai/gsm8k")
    reasoning = "She sold 48 clips in April and half of that, 24, in May, so 48+24 = 72 altogether.\n" * 5
    attempts = [attempt(f"{reasoning}#### {n}", str(n)) for n in range(1000)]
    began = time.process_time()
    assert score(made, *attempts) == [1.0] * 1000
    return time.process_time() - began


def test_a_thousand_gsm8k_answers_are_scored_quickly() -> None:
    """In a process of its own: the processor's time is that of all threads, also those other tests left."""
    code = "from tests.rewards import test_any_answer as here; print(here.seconds_for_a_thousand())"
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, env={**os.environ, "PYTHONPATH": f"{root}:{root}/tests"},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 0.2
