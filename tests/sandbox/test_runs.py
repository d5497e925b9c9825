"""Runs over HTTP: what goes in, what comes out."""

from __future__ import annotations

import base64
import shutil
from pathlib import Path

import pytest

from .attack import served_without
from .conftest import needs_isolation
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


def test_reading_from_an_empty_stdin_ends_at_once(server: Server) -> None:
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


def test_a_request_may_set_its_memory_limit(server: Server) -> None:
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
def test_a_bad_request_gets_an_error_that_says_what_is_wrong(
    server: Server, body: object, code: int, says: str
) -> None:
    answered, told = server.ask("POST", "/run", body)
    assert answered == code
    assert says in told["error"]


def test_unknown_paths_answer_404_and_wrong_methods_405(server: Server) -> None:
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
def test_other_languages_run_if_they_are_installed(
    server: Server, language: str, tool: str, code: str, output: str
) -> None:
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


@needs_isolation
def test_packages_outside_the_interpreters_prefix_are_found_and_other_folders_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed, own = tmp_path / "lib" / "site-packages", tmp_path / "my_code"
    for folder, module in ((installed, "an_installed_package"), (own, "code_of_the_user")):
        folder.mkdir(parents=True)
        (folder / f"{module}.py").write_text("print('imported')")
    monkeypatch.setenv("PYTHONPATH", f"{installed}:{own}")
    with served_without(frozenset(), "--workers", "1") as server:
        assert server.run("import an_installed_package")["stdout"] == "imported\n"
        assert "No module named 'code_of_the_user'" in server.run("import code_of_the_user")["stderr"]
        assert server.run(f"print(__import__('os').path.exists({str(own)!r}))")["stdout"] == "False\n"
