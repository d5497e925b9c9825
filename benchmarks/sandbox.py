"""How many runs the sandbox answers, and how fast; peers in the same run when their URLs are given.

    python benchmarks/sandbox.py [--seconds 8] [--code-judge URL] [--sandbox-fusion URL] [--soak 50000]

Without --url a server with full isolation is started on this machine, and shares its cores with the load.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import orjson
from load import LoadConnection, Report, load, status_of

from toolwright.sandbox.local import local_server

PRINT = "print(1+1)"
NUMPY = "import numpy as np; print(np.arange(10).sum())"
SYMPY = "import sympy; print(sympy.Symbol('x') + 1)"
SOLUTION = "def middle(numbers):\n    return sorted(numbers)[len(numbers) // 2] if numbers else None\n"
CHECK = "\n".join(
    f"assert middle({numbers!r}) == {sorted(numbers)[len(numbers) // 2]!r}"
    for numbers in ([3, 1, 2], [5.5, -1.0, 2.5], ["b", "c", "a"], list(range(9)), [7], [2, 1], [0, 0, 0])
)
DIFF = "import sympy; x = sympy.Symbol('x'); print(sympy.diff(x**3, x))"


def show(name: str, report: Report, wanted: str = "") -> None:
    print(f"{name:44} {report.line()}" + (f"   wanted: {wanted}" if wanted else ""), flush=True)


async def sessions(url: str, *, count: int, seconds: float) -> Report:
    """Each session is called by one caller, as an agent does."""
    opening = LoadConnection(url)
    names = [orjson.loads((await opening.post("/sessions", b"{}"))[1])["id"] for _ in range(count)]
    await opening.close()
    body = orjson.dumps({"code": "1+1"})
    parts = await asyncio.gather(
        *(
            load(url, f"/sessions/{name}/run", body, concurrency=1, seconds=seconds, verdict=status_of)
            for name in names
        )
    )
    whole = Report(seconds=max(part.seconds for part in parts))
    for part in parts:
        whole.runs += part.runs
        whole.latencies_s += part.latencies_s
        whole.codes += part.codes
    return whole


def passed(code: int, body: bytes) -> str:
    told = orjson.loads(body)
    return "passed" if told.get("passed") or told.get("success") else f"failed {code}"


def ours(url: str, seconds: float) -> None:
    def run(code: str, concurrency: int, batch: int = 1) -> Report:
        path, body = (
            ("/run/batch", {"runs": [{"code": code}] * batch}) if batch > 1 else ("/run", {"code": code})
        )
        options: dict[str, Any] = {"concurrency": concurrency, "seconds": seconds, "runs_each": batch}
        return asyncio.run(load(url, path, orjson.dumps(body), verdict=status_of, **options))

    def judge(body: dict[str, Any]) -> Report:
        call = partial(load, url, "/judge", orjson.dumps(body), concurrency=16, verdict=passed)
        asyncio.run(call(seconds=seconds / 4))  # what is loaded when it is first asked for
        return asyncio.run(call(seconds=seconds))

    show("toolwright  print, 16 at once", run(PRINT, 16), "450/s, p99 80 ms")
    show("toolwright  print, 128 at once", run(PRINT, 128), "no errors")
    show("toolwright  print, batches of 64, 4 at once", run(PRINT, 4, 64), "600/s")
    show("toolwright  numpy, 16 at once", run(NUMPY, 16), "250/s")
    show("toolwright  sympy, 16 at once", run(SYMPY, 16), "250/s")
    show("toolwright  sympy that differentiates", run(DIFF, 16))
    judged = {"code": SOLUTION, "checks": [CHECK]}
    show("toolwright  a solution and its test in one run", run(SOLUTION + CHECK, 16))
    show("toolwright  judged: 7 calls, two processes", judge(judged), "half of that")
    expression = {"type": "math", "solution": "$\\frac{3}{4}x$", "expected_output": "\\boxed{0.75x}"}
    show("toolwright  judged: an expression", judge(expression))
    show(
        "toolwright  session cells, 16 sessions",
        asyncio.run(sessions(url, count=16, seconds=seconds)),
        "1000/s",
    )


def peer(name: str, url: str, path: str, body: Callable[[str], dict[str, Any]], seconds: float) -> None:
    for label, code in (("print", PRINT), ("sympy", SYMPY)):
        call = load(url, path, orjson.dumps(body(code)), concurrency=16, seconds=seconds, verdict=status_of)
        show(f"{name}  {label}, 16 at once", asyncio.run(call))


def memory_mb(server: int) -> float:
    """Resident memory of a process and all below it."""
    total, waiting = 0, [server]
    while waiting:
        pid = waiting.pop()
        total += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        for task in Path(f"/proc/{pid}/task").iterdir():
            waiting += [int(child) for child in (task / "children").read_text().split()]
    return total * os.sysconf("SC_PAGE_SIZE") / 2**20


def soak(url: str, calls: int) -> None:
    """Whether memory stays where it is."""
    server = int(Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()[0])
    body = orjson.dumps({"runs": [{"code": PRINT}] * 64})

    async def batches(count: int) -> None:
        async def caller() -> None:
            nonlocal count
            connection = LoadConnection(url)
            while count > 0:
                count -= 64
                code, _ = await connection.post("/run/batch", body)
                assert code == 200
            await connection.close()

        await asyncio.gather(*(caller() for _ in range(4)))

    asyncio.run(batches(2000))
    before = memory_mb(server)
    for part in range(5):
        asyncio.run(batches(calls // 5))
        print(
            f"after {(part + 1) * calls // 5:6} calls: {memory_mb(server):7.1f} MB (before: {before:.1f})",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=8.0, help="of each measurement")
    parser.add_argument("--url", help="a running server of ours")
    parser.add_argument("--code-judge", help="a running code-judge")
    parser.add_argument("--sandbox-fusion", help="a running SandboxFusion")
    parser.add_argument("--soak", type=int, default=0, help="calls over which memory is watched")
    arguments = parser.parse_args()
    load_now = ", ".join(f"{value:.2f}" for value in os.getloadavg())
    print(
        f"{platform.platform()}, Python {platform.python_version()}, {os.cpu_count()} cores, load {load_now}"
    )
    with ExitStack() as stack:
        url = arguments.url or stack.enter_context(local_server())
        ours(url, arguments.seconds)
        if arguments.soak:
            soak(url, arguments.soak)
    if arguments.code_judge:
        peer(
            "code-judge", arguments.code_judge, "/run", lambda code: {"type": "python", "solution": code},
            arguments.seconds,
        )  # fmt: skip
    if arguments.sandbox_fusion:
        peer(
            "SandboxFusion", arguments.sandbox_fusion, "/run_code",
            lambda code: {"language": "python", "code": code}, arguments.seconds,
        )  # fmt: skip


if __name__ == "__main__":
    main()
