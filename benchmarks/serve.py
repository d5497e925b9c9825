"""What serving costs: a model of 1M parameters behind HTTP, beside the same engine asked in process.

    python benchmarks/serve.py [--json FILE]

Starts `toolwright serve` as a user would and asks it over a real socket, streamed and not, with 1 to 32
callers who each ask questions of their own, the next as soon as they are answered; asks the engine itself
the same way. Answers have 32 to 96 tokens. The three take turns, and the median of their rounds counts. One
thread for the model; the callers are another process on the same machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

CALLERS = (1, 8, 32)
SHORTEST, LONGEST, QUESTIONS, ROUNDS = 32, 96, 4, 5
TARGET = 0.8  # of the engine's own rate, with the most callers
Ask = Callable[[int], Awaitable[int]]  # a seed in, the number of tokens out


def prompt(seed: int) -> str:
    return f"Question {seed:5}: what is {seed} times 91? ".ljust(84, ".")


def length(seed: int) -> int:
    """Of the answer, in tokens."""
    return SHORTEST + seed * 37 % (LONGEST - SHORTEST + 1)


def make(folder: Path) -> None:
    from toolwright.models import huggingface
    from toolwright.models.decoder import Decoder, Shape
    from toolwright.models.tokenizer import Tokenizer

    tokenizer = Tokenizer.characters(string.printable)
    shape = Shape(
        vocab=tokenizer.size, layers=4, width=144, heads=4, kv_heads=4, ffn=400, context=512, head_dim=36
    )
    huggingface.save(Decoder(shape).initialise(0), folder)
    tokenizer.save(folder)


async def rate(ask: Ask, callers: int) -> float:
    """Tokens a second, all callers together."""

    async def one(number: int) -> int:
        return sum([await ask(number * QUESTIONS + turn) for turn in range(QUESTIONS)])

    started = time.perf_counter()
    tokens = sum(await asyncio.gather(*map(one, range(callers))))
    return tokens / (time.perf_counter() - started)


@asynccontextmanager
async def over_http(url: str, model: str) -> AsyncIterator[dict[str, Ask]]:
    async with aiohttp.ClientSession(url, connector=aiohttp.TCPConnector(limit=0)) as http:

        def post(seed: int, **more: Any) -> Any:
            body = {"model": model, "prompt": prompt(seed), "max_tokens": length(seed), "seed": seed, **more}
            return http.post("/v1/completions", json=body)

        async def whole(seed: int) -> int:
            async with post(seed) as answer:
                return int((await answer.json())["usage"]["completion_tokens"])

        async def streamed(seed: int) -> int:
            async with post(seed, stream=True, stream_options={"include_usage": True}) as answer:
                events = [line async for line in answer.content if line.startswith(b"data: {")]
            return int(json.loads(events[-1][6:])["usage"]["completion_tokens"])

        async def first(seed: int) -> int:
            async with post(seed, stream=True) as answer:
                await answer.content.readline()
                return 1

        yield {"served": whole, "streamed": streamed, "first": first}


@asynccontextmanager
async def in_process(folder: Path) -> AsyncIterator[Ask]:
    from toolwright.config import schema
    from toolwright.engines import Sampling
    from toolwright.providers.local import load

    model = load(schema.Model(path=str(folder), context=512), schema.EngineConfig(slots=32))
    engine = model.engine.engine

    async def ask(seed: int) -> int:
        sampling = Sampling(max_tokens=length(seed), seed=seed)
        answer = await engine.generate(model.tokenizer.encode(prompt(seed)), sampling, attempt=str(seed))
        engine.release(str(seed))
        return len(answer.tokens)

    yield ask
    await engine.close()  # in the loop where it was asked


async def measure(url: str, folder: Path) -> dict[str, Any]:
    async with over_http(url, folder.name) as http, in_process(folder) as inside:
        asks = {"engine": inside, "served": http["served"], "streamed": http["streamed"]}
        rates: dict[str, dict[int, list[float]]] = {name: {n: [] for n in CALLERS} for name in asks}
        for turn in range(ROUNDS + 1):
            for callers in CALLERS:
                for name, ask in asks.items():
                    found = await rate(ask, callers)
                    if turn:  # the first is warm-up
                        rates[name][callers].append(found)
        first = [1 / await rate(http["first"], 1) for _ in range(5)]
    medians = {
        name: {n: statistics.median(found) for n, found in by_callers.items()}
        for name, by_callers in rates.items()
    }
    return {"first_s": statistics.median(first), "rates": medians}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, help="where the numbers are written as well")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "model"
        make(folder)
        command = [sys.executable, "-m", "toolwright", "serve", str(folder), "--port", "0", "--threads", "1"]
        started = time.perf_counter()
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            url = server.stdout.readline().split()[-1]
            ready = time.perf_counter() - started
            try:
                found = asyncio.run(measure(url, folder))
            finally:
                server.terminate()
    found["ready_s"] = ready
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))
    tell(found)


def tell(found: dict[str, Any]) -> None:
    answers = f"answers of {SHORTEST} to {LONGEST}"
    print(f"1M parameters, prompts of {len(prompt(0))} tokens, {answers}, load {os.getloadavg()[0]:.1f}")
    print(f"seconds from the command to serving  {found['ready_s']:.1f}")
    print(f"milliseconds to the first token      {1e3 * found['first_s']:.1f}")
    print(f"{'tokens a second, callers':36} " + "".join(f"{n:>8}" for n in CALLERS))
    for name, rates in found["rates"].items():
        print(f"  {name:34} " + "".join(f"{rates[n]:8.0f}" for n in CALLERS))
    most = CALLERS[-1]
    ratio = found["rates"]["served"][most] / found["rates"]["engine"][most]
    print(f"served / engine, {most} callers          {ratio:.2f} (target: {TARGET} at least)")


if __name__ == "__main__":
    main()
