"""A load generator: keeps a number of calls in flight against a server and says how they went."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import orjson


@dataclass
class Report:
    """What came back."""

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
    """Calls in flight without a pause; those that end in the given seconds, after a warm-up, are counted."""
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
    """The outcome of a run as its answer tells it."""
    if code != 200:
        return str(code)
    told: Any = orjson.loads(answer)
    if "results" in told:
        statuses = {item["status"] for item in told["results"]}
        return statuses.pop() if len(statuses) == 1 else "mixed"
    return str(told.get("status", told.get("success")))


def main(*, urls: list[str], concurrency: int, seconds: float, code: str, batch: int) -> None:
    """Prints a line for each server."""
    from toolwright.sandbox.local import local_server

    run = {"code": code}
    path, body = ("/run/batch", {"runs": [run] * batch}) if batch > 1 else ("/run", run)

    def measure(url: str) -> None:
        work = load(
            url,
            path,
            orjson.dumps(body),
            concurrency=concurrency,
            seconds=seconds,
            runs_each=batch,
            verdict=status_of,
        )
        print(f"{url:28} {asyncio.run(work).line()}")

    for url in urls:
        measure(url)
    if not urls:
        with local_server() as url:
            measure(url)
