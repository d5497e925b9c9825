"""Programs judged by what they print and by what their functions return."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest

from .served import Server


def test_judge_gives_a_verdict_for_each_test(server: Server) -> None:
    tests = [
        {"stdin": "2", "expected_output": "4"},
        {"stdin": "3", "expected_output": "9  \n\n"},
        {"stdin": "4", "expected_output": "15"},
        {"stdin": "x", "expected_output": ""},
    ]
    result = server.post("/judge", {"code": "print(int(input())**2)", "tests": tests})
    assert [v["verdict"] for v in result["verdicts"]] == [
        "accepted",
        "accepted",
        "wrong_answer",
        "runtime_error",
    ]
    assert not result["passed"]
    one = server.post("/judge", {"code": "while True: pass", "expected_output": "", "timeout_s": 0.3})
    assert one["verdicts"][0]["verdict"] == "time_limit"
    assert server.post("/judge", {"code": "print(1)", "expected_output": "1"})["passed"]
    assert server.ask("POST", "/judge", {"code": "print(1)"})[0] == 422


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
def test_judging_compiles_once(server: Server) -> None:
    source = '#include <cstdio>\nint main(){int a;scanf("%d",&a);printf("%d",a+1);}'
    tests = [{"stdin": str(n), "expected_output": str(n + 1)} for n in range(20)]
    before = server.status()["answers"]
    assert server.post("/judge", {"code": source, "language": "cpp", "tests": tests})["passed"]
    assert server.status()["answers"] == before + 1 + len(tests)
    broken = server.post("/judge", {"code": "int main( {", "language": "cpp", "tests": tests[:2]})
    assert [v["verdict"] for v in broken["verdicts"]] == ["compile_error"] * 2


def test_judged_output_is_read_to_its_end_however_long(server: Server) -> None:
    """Ordinary runs show 1 MiB of what they print."""
    long = "x" * 70 + "\n"
    count = (3 << 20) // len(long)
    code = f"import sys\nfor _ in range({count}): sys.stdout.write({long!r})\n"
    expected = long * count
    right = server.post("/judge", {"code": code, "expected_output": expected})
    assert right["passed"]
    assert len(right["verdicts"][0]["stdout"]) == 1 << 20
    for wrong in ("print('and more')", "print('y' * 200_000)", "print('y' * (2 << 20))"):
        judged = server.post("/judge", {"code": code + wrong, "expected_output": expected})
        assert judged["verdicts"][0]["verdict"] == "wrong_answer", wrong
    short = server.post("/judge", {"code": code, "expected_output": expected[: 1 << 20]})
    assert short["verdicts"][0]["verdict"] == "wrong_answer"
    solution = {"type": "python", "solution": code, "expected_output": expected}
    assert server.post("/judge", solution)["success"]
    assert not server.post("/judge", {**solution, "solution": code + "print(1)"})["success"]


def test_checks_are_run_by_another_process_than_the_program(server: Server) -> None:
    program = (
        "import os\ndef where(): return os.getcwd(), sorted(os.listdir())\ndef pid(): return os.getpid()"
    )
    checks = [
        "assert where()[1] == ['given.txt']",
        "import os\nassert os.listdir() == []",
        "assert pid() == 7",
    ]
    request = {"code": program, "checks": checks, "files": {"given.txt": "1"}}
    result = server.post("/judge", request)
    assert [one["verdict"] for one in result["verdicts"]] == ["accepted", "accepted", "wrong_answer"]
    assert not result["passed"]


def test_a_check_that_ends_the_program_does_not_fail_the_other_checks(server: Server) -> None:
    program = (
        "import os\ndef f(n):\n    if n == 1: os._exit(0)\n    if n == 2: [0] * (1 << 40)\n"
        "    while n == 3: pass\n    return n"
    )
    checks = [f"assert f({n}) == {n}" for n in range(5)]
    result = server.post("/judge", {"code": program, "checks": checks, "timeout_s": 1.5})
    verdicts = ["accepted", "runtime_error", "wrong_answer", "time_limit", "accepted"]
    assert [one["verdict"] for one in result["verdicts"]] == verdicts
    assert "MemoryError" in result["verdicts"][2]["reason"]


@pytest.mark.parametrize(
    ("program", "verdict", "reason"),
    [
        ("def f(:", "runtime_error", "SyntaxError"),
        ("raise SystemExit", "runtime_error", "SystemExit"),
        ("while True: pass", "time_limit", "time"),
        ("x = ' ' * (1 << 40)", "runtime_error", "MemoryError"),
    ],
)
def test_a_program_that_cannot_be_loaded_fails_every_check(
    server: Server, program: str, verdict: str, reason: str
) -> None:
    result = server.post("/judge", {"code": program, "checks": ["f()"] * 3, "timeout_s": 1.5})
    assert [one["verdict"] for one in result["verdicts"]] == [verdict] * 3
    assert reason in result["verdicts"][0]["reason"]


def test_a_check_that_passes_an_object_of_its_own_class_is_unsupported(server: Server) -> None:
    check = "class Mine: pass\nassert f(Mine()) is None"
    result = server.post("/judge", {"code": "def f(x): pass", "checks": [check]})
    assert result["verdicts"][0]["verdict"] == "unsupported"
    assert "cannot be given a Mine" in result["verdicts"][0]["reason"]
    both = {"code": "", "checks": ["1"], "expected_output": ""}
    assert server.ask("POST", "/judge", both)[0] == 422
    assert server.ask("POST", "/judge", {"code": "", "checks": ["1"], "language": "bash"})[0] == 422


def test_many_judged_at_once_get_the_verdicts_that_each_gets_alone(server: Server) -> None:
    """Time limits count processor time: waiting for a processor is not the program's."""
    burn = "import time\ndef f(s):\n    while time.process_time() < s: pass\n    return 'done'\n"
    tasks = [(0.4, "accepted"), (1e9, "time_limit")] * 3
    requests = [
        {"code": burn, "checks": [f"assert f({seconds}) == 'done'"], "timeout_s": 1.0} for seconds, _ in tasks
    ]
    with ThreadPoolExecutor(len(tasks)) as callers:
        results = list(callers.map(lambda request: server.post("/judge", request), requests))
    assert [result["verdicts"][0]["verdict"] for result in results] == [verdict for _, verdict in tasks]


def test_a_thousand_checks_are_reported_whatever_is_raised(server: Server) -> None:
    code = "def f(x):\n    raise ValueError('\\ud800\\u1234' * 400)"
    result = server.post("/judge", {"code": code, "checks": ["f(1)"] * 999 + ["assert True"]})
    assert [one["verdict"] for one in result["verdicts"]] == ["wrong_answer"] * 999 + ["accepted"]
    assert result["verdicts"][0]["reason"].startswith("ValueError: ?\u1234")


def test_a_check_that_overwrites_its_report_is_not_a_server_error(server: Server) -> None:
    write = "import os\nfor n in range(256):\n    try: os.write(n, {text!r})\n    except OSError: pass"
    for text in (b"nonsense\n", b"[1]\n", b"[" * 5000, b'["failed", "\\ud800"]\n' * 9):
        result = server.post("/judge", {"code": "", "checks": [write.format(text=text), "assert False"]})
        assert not result["passed"]
        assert len(result["verdicts"]) == 2


def test_an_endless_program_with_many_tests_is_judged_in_the_time_of_a_few(server: Server) -> None:
    code = "n = int(input())\nwhile n in (1, 3, 5): pass\nprint(n)"
    tests = [{"stdin": str(n), "expected_output": str(n)} for n in range(40)]
    result = server.post("/judge", {"code": code, "tests": tests, "timeout_s": 0.5})
    assert [one["verdict"] for one in result["verdicts"]] == [
        *("accepted", "time_limit", "accepted"),
        *["time_limit"] * 37,
    ]
    assert result["verdicts"][4]["reason"].startswith("not run")
    program = "def f(n):\n    while n: pass\n    return n"
    checks = [f"assert f({n % 2}) == {n % 2}" for n in range(40)]
    result = server.post("/judge", {"code": program, "checks": checks, "timeout_s": 0.5})
    assert [one["verdict"] for one in result["verdicts"]] == [
        *("accepted", "time_limit", "accepted"),
        *["time_limit"] * 37,
    ]


@pytest.mark.parametrize(
    "written", ["a\x0bb", "a\x0cb", "a\x1cb", "a\x85b", "a\u2028b", "a\rb", "a\x1f\nb", "a\xa0\nb"]
)
def test_only_new_lines_end_lines_and_only_blanks_are_left_out(server: Server, written: str) -> None:
    expected = {"expected_output": "a\nb\n"}
    assert not server.post("/judge", {"code": f"print({written!r})", **expected})["passed"]
    assert server.post("/judge", {"code": "print('\\na \\t\\r\\nb\\r\\n\\n')", **expected})["passed"]
