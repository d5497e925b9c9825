"""Keeps a number of calls to a sandbox server in flight and prints how they went.

python benchmarks/load.py [--url URL] [--concurrency 16] [--seconds 5] [--code CODE] [--batch 1]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import orjson

from toolwright.sandbox.local import local_server


@dataclass
class Report:
    """The outcomes of the calls."""

    runs: int = 0
    seconds: float = 0.0
    latencies_s: list[float] = field(default_factory=list)
    codes: Counter[str] = field(default_factory=Counter)

    @property
    def rate(self) -> float:
        return self.runs / self.seconds if self.seconds else 0.0

    def percentile_ms(self, share: float) -> float:
        ordered = sorted(self.latencies_s)
        return 1e3 * ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")

    def line(self) -> str:
        mean = 1e3 * statistics.fmean(self.latencies_s) if self.latencies_s else float("nan")
        return (
            f"{self.rate:8.0f} runs/s   p50 {self.percentile_ms(0.5):7.1f} ms   "
            f"p99 {self.percentile_ms(0.99):7.1f} ms   mean {mean:7.1f} ms   {dict(self.codes)}"
        )


class LoadConnection:
    """One keep-alive connection that speaks just enough HTTP: the generator must not be the bottleneck."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, body: bytes) -> tuple[int, bytes]:
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._host, self._port, limit=1 << 24)
        reader, writer = self._streams
        head = f"POST {path} HTTP/1.1\r\nhost: {self._host}\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        answer = (await reader.readuntil(b"\r\n\r\n")).lower()
        code = int(answer[9:12])
        place = answer.find(b"content-length:")
        if place < 0:
            raise ConnectionError(f"an answer without a length: {answer!r}")
        length = int(answer[place + 15 : answer.index(b"\r\n", place)])
        return code, await reader.readexactly(length)

    async def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def load(
    url: str,
    path: str,
    body: bytes,
    *,
    concurrency: int,
    seconds: float,
    runs_each: int = 1,
    verdict: Callable[[int, bytes], str] = lambda code, _: str(code),
    warm_up_s: float = 0.5,
) -> Report:
    """Calls without a pause, and counts the calls that end within the given seconds after a warm-up."""
    report = Report()
    begin = time.perf_counter() + warm_up_s
    end = begin + seconds

    async def caller() -> None:
        connection = LoadConnection(url)
        while (started := time.perf_counter()) < end:
            try:
                code, answer = await connection.post(path, body)
                outcome = verdict(code, answer)
            except (OSError, EOFError) as error:
                outcome = type(error).__name__
                await connection.close()
            finished = time.perf_counter()
            if begin <= finished <= end:
                report.latencies_s.append(finished - started)
                report.codes[outcome] += 1
                report.runs += runs_each
        await connection.close()

    await asyncio.gather(*(caller() for _ in range(concurrency)))
    report.seconds = seconds
    return report


def status_of(code: int, answer: bytes) -> str:
    """The outcome of a run, read from the answer."""
    if code != 200:
        return str(code)
    body: Any = orjson.loads(answer)
    if "results" in body:
        statuses = {item["status"] for item in body["results"]}
        return statuses.pop() if len(statuses) == 1 else "mixed"
    return str(body.get("status", body.get("success")))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", action="append", default=[], help="without it, a server is started")
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--code", default="print(1+1)")
    parser.add_argument("--batch", type=int, default=1, help="runs per request")
    options = parser.parse_args()
    run = {"code": options.code}
    path, body = ("/run/batch", {"runs": [run] * options.batch}) if options.batch > 1 else ("/run", run)
    with ExitStack() as stack:
        for url in options.url or [stack.enter_context(local_server())]:
            work = load(
                url,
                path,
                orjson.dumps(body),
                concurrency=options.concurrency,
                seconds=options.seconds,
                runs_each=options.batch,
                verdict=status_of,
            )
            print(f"{url:28} {asyncio.run(work).line()}")


if __name__ == "__main__":
    main()
