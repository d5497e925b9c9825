"""What honest callers of a sandbox notice while others attack its HTTP side.

    python benchmarks/pressure.py [--seconds 8] [--open-files 1024] [--only NAME ...]

A server is started with a low limit of open files. Attackers run in a process of their own; beside them two
callers, on a new connection for each call as a stranger has it, ask for `/health` and run `print(1)`. All
share the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import orjson
from load import LoadConnection, Report

from toolwright.sandbox.local import command

EVERY_S = 0.02
CALL_LIMIT_S = 30.0
BAD_ITEMS = 50_000
CELLS, CELLS_KEPT = 3_900, 64
COMMON = "host: localhost\r\ncontent-type: application/json\r\n"


async def opened(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    place = urlsplit(url)
    return await asyncio.open_connection(place.hostname, place.port)


async def again_and_again(count: int, once: Callable[[], Awaitable[None]]) -> None:
    """So many attackers side by side, each of whom begins anew a second after the server hung up."""

    async def one() -> None:
        while True:
            with contextlib.suppress(OSError, EOFError):
                await once()
            await asyncio.sleep(1)

    await asyncio.gather(*(one() for _ in range(count)))


async def slow_heads(url: str) -> None:
    async def once() -> None:
        reader, writer = await opened(url)
        writer.write(b"POST /run HTTP/1.1\r\nhost: localhost\r\nx: ")
        while not reader.at_eof():
            writer.write(b"x")
            await asyncio.sleep(0.5)
        writer.close()

    await again_and_again(500, once)


async def endless_heads(url: str) -> None:
    async def once() -> None:
        reader, writer = await opened(url)
        writer.write(b"GET /status HTTP/1.1\r\nx: ")
        while not reader.at_eof():
            writer.write(b"x" * 65536)
            await writer.drain()
        writer.close()

    await again_and_again(8, once)


async def half_requests(url: str) -> None:
    async def once() -> None:
        reader, writer = await opened(url)
        writer.write(f"POST /run HTTP/1.1\r\n{COMMON}content-length: 1000\r\n\r\n{{".encode())
        await reader.read()
        writer.close()

    await again_and_again(2000, once)


async def big_batches(url: str) -> None:
    body = orjson.dumps({"runs": [{"code": 5, "nothing": number} for number in range(BAD_ITEMS)]})

    async def once() -> None:
        connection = LoadConnection(url)
        while True:
            await connection.post("/run/batch", body)

    await again_and_again(1, once)


async def hoarding_session(url: str) -> None:
    opening = LoadConnection(url)
    name = orjson.loads((await opening.post("/sessions", b"{}"))[1])["id"]
    cell = orjson.dumps({"code": "import time; time.sleep(500)", "timeout_s": 60})
    turned_away = 0

    async def once() -> None:
        nonlocal turned_away
        connection = LoadConnection(url)
        code, _ = await connection.post(f"/sessions/{name}/run", cell)
        turned_away += code == 429
        if turned_away == CELLS - CELLS_KEPT:
            print("the session's line is full", flush=True)
        await asyncio.sleep(600)

    await again_and_again(CELLS, once)


ATTACKS = {
    one.__name__.replace("_", " "): one
    for one in (slow_heads, endless_heads, half_requests, big_batches, hoarding_session)
}


async def honest(url: str, method: str, path: str, body: bytes, seconds: float) -> Report:
    """One call after another; what is not answered within the limit counts as that long."""
    report = Report()
    head = f"{method} {path} HTTP/1.1\r\nconnection: close\r\n{COMMON}content-length: {len(body)}\r\n\r\n"
    request = head.encode() + body
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        started = time.monotonic()
        try:
            async with asyncio.timeout(CALL_LIMIT_S):
                reader, writer = await opened(url)
                writer.write(request)
                answer = await reader.read()
                writer.close()
            report.codes[answer[9:12].decode() or "hung up"] += 1
        except (OSError, EOFError) as error:
            report.codes[type(error).__name__] += 1
        report.latencies_s.append(time.monotonic() - started)
        await asyncio.sleep(EVERY_S)
    return report


async def both(url: str, seconds: float) -> tuple[Report, Report]:
    return await asyncio.gather(
        honest(url, "GET", "/health", b"", seconds),
        honest(url, "POST", "/run", b'{"code": "print(1)"}', seconds),
    )


@contextlib.contextmanager
def served(open_files: int) -> Iterator[tuple[str, int]]:
    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, open_files))

    process = subprocess.Popen(
        command("serve", "--port", "0"), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        preexec_fn=limited,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        yield process.stdout.readline().removeprefix("serving on ").strip(), process.pid
    finally:
        process.terminate()
        process.wait(60)


def measure(name: str, seconds: float, open_files: int) -> None:
    with served(open_files) as (url, server), contextlib.ExitStack() as stack:
        if name != "nobody":
            attacker = subprocess.Popen(
                [sys.executable, __file__, "--attack", name, "--url", url], stdout=subprocess.PIPE
            )
            stack.callback(attacker.wait)
            stack.callback(attacker.kill)
            assert attacker.stdout is not None
            attacker.stdout.readline()
            time.sleep(1)  # until it is under way
        health, run = asyncio.run(both(url, seconds))
        peak = next(
            int(line.split()[1]) >> 10
            for line in Path(f"/proc/{server}/status").read_text().splitlines()
            if line.startswith("VmHWM")
        )
    cells = [f"{report.percentile_ms(share):.0f}" for report in (health, run) for share in (0.5, 0.99, 1.0)]
    codes = {"health": dict(health.codes), "run": dict(run.codes)}
    print(f"| {name} | {' | '.join(cells)} | {peak} | {codes} | {os.getloadavg()[0]:.1f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=8.0, help="of each measurement")
    parser.add_argument("--open-files", type=int, default=1024, help="of the server")
    parser.add_argument("--only", nargs="*", choices=["nobody", *ATTACKS], help="some of the attacks")
    parser.add_argument("--attack", choices=[*ATTACKS], help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.attack:
        if arguments.attack != "hoarding session":
            print("under way", flush=True)
        asyncio.run(ATTACKS[arguments.attack](arguments.url))
        return
    print(f"{platform.platform()}, Python {platform.python_version()}, {os.cpu_count()} cores; milliseconds")
    print("| attacker | health p50 | p99 | most | run p50 | p99 | most | server's peak MB | answers | load |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for name in arguments.only or ["nobody", *ATTACKS]:
        # Cells wait on connections of their own, so this one needs more of them than there are cells.
        files = max(arguments.open_files, 8192) if name == "hoarding session" else arguments.open_files
        measure(name, arguments.seconds, files)


if __name__ == "__main__":
    main()
