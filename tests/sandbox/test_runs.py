"""Runs over HTTP: what goes in, what comes out."""

from __future__ import annotations

import base64
import shutil

import pytest

from .served import Server


def test_code_runs_and_prints(server: Server) -> None:
    result = server.run("print(1+1)")
    assert (result["status"], result["stdout"], result["stderr"], result["exit_code"]) == ("ok", "2\n", "", 0)
    assert not result["truncated"]
    assert result["duration_s"] > 0
    assert result["queued_s"] >= 0


def test_an_exception_is_an_error_with_its_traceback_and_source_line(server: Server) -> None:
    result = server.run("def f():\n    return 1/0\nf()")
    assert (result["status"], result["exit_code"]) == ("error", 1)
    assert result["stderr"].splitlines()[0] == "Traceback (most recent call last):"
    assert 'File "main.py", line 2, in f' in result["stderr"]
    assert "return 1/0" in result["stderr"]
    assert "toolwright" not in result["stderr"]


@pytest.mark.parametrize(
    ("code", "exit_code", "status"),
    [
        ("import sys; sys.exit(3)", 3, "error"),
        ("exit()", 0, "ok"),
        ("import sys; sys.exit('why')", 1, "error"),
        ("import os; os._exit(7)", 7, "error"),
        ("def", 1, "error"),
        ("import ctypes; ctypes.string_at(0)", -11, "error"),
    ],
)
def test_exit_codes_are_those_of_an_interpreter(
    server: Server, code: str, exit_code: int, status: str
) -> None:
    result = server.run(code)
    assert (result["exit_code"], result["status"]) == (exit_code, status)


@pytest.mark.parametrize(
    "code",
    [
        "print(input() + input())",
        "print(open(0).read().replace('\\n', ''))",
        "import os; print(os.read(0, 9).decode().replace('\\n', ''))",
    ],
)
def test_stdin_is_a_real_file(server: Server, code: str) -> None:
    assert server.run(code, stdin="ab\ncd\n")["stdout"] == "abcd\n"


def test_without_stdin_there_is_an_end_at_once(server: Server) -> None:
    assert "EOFError" in server.run("input()")["stderr"]


def test_exit_functions_and_threads_are_waited_for(server: Server) -> None:
    code = """
import atexit, threading, time
atexit.register(lambda: print('last'))
said = threading.Event()
threading.Thread(target=lambda: (said.wait(), time.sleep(0.1), print('thread'))).start()
print('main')
said.set()
"""
    assert server.run(code)["stdout"] == "main\nthread\nlast\n"


def test_files_go_in_and_come_out(server: Server) -> None:
    code = """
import helper
data = open('in/data.bin', 'rb').read()
open('out.bin', 'wb').write(data + bytes([255]))
open('out.txt', 'w').write(helper.word)
"""
    files = {"helper.py": "word = 'héllo'", "in/data.bin": {"base64": base64.b64encode(b"\x00\x01").decode()}}
    result = server.run(code, files=files, fetch=["out.bin", "out.txt", "missing"])
    assert result["status"] == "ok", result
    assert result["files"] == {
        "out.txt": "héllo",
        "out.bin": {"base64": base64.b64encode(b"\x00\x01\xff").decode()},
    }


def test_files_are_fetched_after_a_sudden_end(server: Server) -> None:
    result = server.run("open('f', 'w').write('x'); import os; os.kill(os.getpid(), 9)", fetch=["f"])
    assert result["files"] == {"f": "x"}
    assert result["exit_code"] == -9


def test_a_timeout_keeps_what_was_printed(server: Server) -> None:
    result = server.run("print('before', flush=True)\nwhile True: pass", timeout_s=2)
    assert (result["status"], result["stdout"]) == ("timeout", "before\n")
    assert 2 <= result["duration_s"] < 60


def test_memory_can_be_asked_for(server: Server) -> None:
    code = "block = bytearray(200 << 20); print(len(block) >> 20)"
    assert server.run(code, memory_mb=100)["status"] == "memory"
    assert server.run(code, memory_mb=400)["stdout"] == "200\n"


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
def test_a_program_in_cpp_is_refused_memory_as_well(server: Server) -> None:
    source = "#include <vector>\nint main(){ std::vector<char> v(1u << 31); return v[5]; }"
    assert server.run(source, language="cpp")["status"] == "memory"


def test_numpy_is_refused_memory_as_well(server: Server) -> None:
    pytest.importorskip("numpy")
    assert server.run("import numpy; numpy.ones(1 << 28)")["status"] == "memory"


def test_a_flood_is_cut_and_ended(server: Server) -> None:
    short = server.run("print('x' * (2 << 20))")
    assert (short["status"], short["truncated"], len(short["stdout"])) == ("ok", True, 1 << 20)
    endless = server.run("while True: print('x' * 10000)", timeout_s=60)
    assert (endless["status"], endless["truncated"]) == ("killed", True)


def test_bytes_that_are_not_text_are_shown_as_such(server: Server) -> None:
    result = server.run("import os; os.write(1, bytes([0xff, 0xfe, 65])); os.write(2, b'\\x80')")
    assert (result["stdout"], result["stderr"]) == ("\ufffd\ufffdA", "\ufffd")


def test_packages_are_there_and_random_numbers_differ(server: Server) -> None:
    pytest.importorskip("numpy")
    code = "import random, numpy; print(random.random(), numpy.random.rand())"
    drawn = [number for _ in range(6) for number in server.run(code)["stdout"].split()]
    assert len(set(drawn)) == 12


def test_a_set_has_the_same_order_in_every_run(server: Server) -> None:
    assert len({server.run("print({'a', 'b', 'c', 'd', 'e'})")["stdout"] for _ in range(8)}) == 1


def test_subprocesses_and_pools_work(server: Server) -> None:
    code = """
import subprocess, sys, concurrent.futures, multiprocessing
def double(x): return 2 * x
print(subprocess.run([sys.executable, '-c', 'print(5)'], capture_output=True, text=True).stdout.strip())
with multiprocessing.get_context('fork').Pool(2) as pool: print(pool.map(double, [1, 2]))
with concurrent.futures.ThreadPoolExecutor(4) as threads: print(list(threads.map(double, [3, 4])))
"""
    assert server.run(code)["stdout"] == "5\n[2, 4]\n[6, 8]\n"


def test_asyncio_and_temporary_files_work(server: Server) -> None:
    code = """
import asyncio, tempfile
async def main():
    process = await asyncio.create_subprocess_exec('/nonexistent') if False else None
    await asyncio.sleep(0)
    with tempfile.NamedTemporaryFile('w+') as file: file.write('ok'); file.seek(0); print(file.read())
asyncio.run(main())
"""
    assert server.run(code)["stdout"] == "ok\n"


def test_a_batch_answers_in_order_and_survives_its_bad_items(server: Server) -> None:
    runs = [{"code": f"print({n})"} for n in range(20)]
    runs[3] = {"code": "1/0"}
    runs[5] = {"nonsense": True}  # type: ignore[dict-item]
    runs[7] = {"code": "x", "language": "cobol"}
    runs[9] = "not even an object"  # type: ignore[call-overload]
    results = server.post("/run/batch", {"runs": runs})["results"]
    assert [r["stdout"] for r in results] == ["" if n in (3, 5, 7, 9) else f"{n}\n" for n in range(20)]
    assert "ZeroDivisionError" in results[3]["stderr"]
    for index in (5, 7, 9):
        assert results[index]["status"] == "error"
        assert results[index]["reason"].startswith("refused:")
    assert server.post("/run/batch", {"runs": []}) == {"results": []}


@pytest.mark.parametrize(
    ("body", "code", "says"),
    [
        (b"not json", 422, "not JSON"),
        ({}, 422, "code"),
        ({"code": 1}, 422, "code"),
        ({"code": "x", "cod": "y"}, 422, "cod"),
        ({"code": "x", "timeout_s": -1}, 422, "timeout_s"),
        ({"code": "x", "timeout_s": 1e9}, 422, "600"),
        ({"code": "x", "memory_mb": 10**6}, 422, "4096"),
        ({"code": "x", "language": "pyton"}, 422, "did you mean 'python'"),
        ({"code": "x", "files": {"a": {"base64": "a"}}}, 422, "base64"),
        ([1, 2], 422, "body"),
    ],
)
def test_a_bad_request_is_told_what_is_wrong(server: Server, body: object, code: int, says: str) -> None:
    answered, told = server.ask("POST", "/run", body)
    assert answered == code
    assert says in told["error"]


def test_unknown_places_and_methods(server: Server) -> None:
    assert server.ask("GET", "/nowhere")[0] == 404
    assert server.ask("GET", "/run")[0] == 405
    assert server.ask("POST", "/status", {})[0] == 405


@pytest.mark.parametrize(
    ("language", "tool", "code", "output"),
    [
        ("cpp", "g++", '#include <iostream>\nint main(){int a;std::cin>>a;std::cout<<a*2<<"\\n";}', "42\n"),
        ("bash", "bash", "read a; echo $((a * 2)); ls", "42\nmain.sh\n"),
        ("javascript", "node", "const a = require('fs').readFileSync(0); console.log(a * 2)", "42\n"),
    ],
)
def test_other_languages(server: Server, language: str, tool: str, code: str, output: str) -> None:
    if shutil.which(tool) is None:
        assert "not installed" in server.status()["languages"][language]
        assert server.ask("POST", "/run", {"code": code, "language": language})[0] == 422
        return
    result = server.run(code, language=language, stdin="21\n")
    assert (result["status"], result["stdout"]) == ("ok", output), result
    # The tools see no more of the host than Python does.
    assert server.run("cat /etc/passwd || echo none", language="bash")["stdout"] == "none\n"


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
def test_a_program_that_does_not_compile_says_so(server: Server) -> None:
    result = server.run("int main( {", language="cpp")
    assert result["status"] == "error"
    assert result["reason"].startswith("compile:")
    assert "error:" in result["stderr"]


def test_judging(server: Server) -> None:
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


def test_status_health_and_metrics(server: Server) -> None:
    import urllib.request

    assert server.ask("GET", "/health") == (200, {"status": "ok"})
    status = server.status()
    assert status["num_workers"] == 2
    assert {"seccomp", "landlock", "user"} <= set(status["isolation"]["in_force"])
    assert status["languages"]["python"] == "warm"
    text = urllib.request.urlopen(server.url + "/metrics").read().decode()
    assert 'sandbox_requests_total{code="200",route="/run"}' in text
    assert "sandbox_queue_length 0.0" in text


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


def test_a_check_that_ends_the_program_leaves_the_others_theirs(server: Server) -> None:
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


def test_a_check_that_gives_what_no_program_can_be_given_is_said_to(server: Server) -> None:
    check = "class Mine: pass\nassert f(Mine()) is None"
    result = server.post("/judge", {"code": "def f(x): pass", "checks": [check]})
    assert result["verdicts"][0]["verdict"] == "unsupported"
    assert "cannot be given a Mine" in result["verdicts"][0]["reason"]
    both = {"code": "", "checks": ["1"], "expected_output": ""}
    assert server.ask("POST", "/judge", both)[0] == 422
    assert server.ask("POST", "/judge", {"code": "", "checks": ["1"], "language": "bash"})[0] == 422
