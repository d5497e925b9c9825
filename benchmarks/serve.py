"""What serving costs: a model of 1M parameters behind HTTP, beside the same engine asked in process.

    python benchmarks/serve.py

Starts `toolwright serve` as a user would, asks it over a real socket, streamed and not, with 1 to 32 callers
who each ask again as soon as they are answered, and asks the engine itself the same way. One thread for the
model; the callers are another process on the same machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp

CALLERS = (1, 8, 32)
TOKENS, ROUNDS = 64, 4
PROMPT = "What is 20 times 91? " * 4
Ask = Callable[[int], Awaitable[int]]  # a seed in, the number of tokens out


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
        return sum([await ask(number * ROUNDS + turn) for turn in range(ROUNDS)])

    await ask(0)
    started = time.perf_counter()
    tokens = sum(await asyncio.gather(*map(one, range(callers))))
    return tokens / (time.perf_counter() - started)


async def over_http(url: str, model: str) -> dict[str, dict[int, float] | float]:
    body = {"model": model, "prompt": PROMPT, "max_tokens": TOKENS, "temperature": 1.0}
    async with aiohttp.ClientSession(url, connector=aiohttp.TCPConnector(limit=0)) as http:

        async def whole(seed: int) -> int:
            async with http.post("/v1/completions", json={**body, "seed": seed}) as answer:
                return int((await answer.json())["usage"]["completion_tokens"])

        async def streamed(seed: int) -> int:
            asked = {**body, "seed": seed, "stream": True, "stream_options": {"include_usage": True}}
            async with http.post("/v1/completions", json=asked) as answer:
                events = [line async for line in answer.content if line.startswith(b"data: {")]
            return int(json.loads(events[-1][6:])["usage"]["completion_tokens"])

        async def first() -> float:
            started = time.perf_counter()
            async with http.post("/v1/completions", json={**body, "seed": 0, "stream": True}) as answer:
                await answer.content.readline()
                return time.perf_counter() - started

        return {
            "whole": {n: await rate(whole, n) for n in CALLERS},
            "streamed": {n: await rate(streamed, n) for n in CALLERS},
            "first": sorted([await first() for _ in range(9)])[4],
        }


async def in_process(folder: Path) -> dict[int, float]:
    from toolwright.config import schema
    from toolwright.engines import Sampling
    from toolwright.providers.local import load

    model = load(schema.Model(path=str(folder), context=512), schema.Engine(slots=32))
    prompt = model.tokenizer.encode(PROMPT)

    async def ask(seed: int) -> int:
        sampling = Sampling(max_tokens=TOKENS, seed=seed)
        answer = await model.engine.engine.generate(prompt, sampling, attempt=str(seed))
        model.engine.engine.release(str(seed))
        return len(answer.tokens)

    return {n: await rate(ask, n) for n in CALLERS}


def main() -> None:
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
                http = asyncio.run(over_http(url, folder.name))
            finally:
                server.terminate()
        inside = asyncio.run(in_process(folder))
    print(f"1M parameters, prompts of {len(PROMPT)} tokens, {TOKENS} new ones, load {os.getloadavg()[0]:.1f}")
    print(f"seconds from the command to serving  {ready:.1f}")
    print(f"milliseconds to the first token      {1e3 * http['first']:.1f}")  # type: ignore[operator]
    print(f"{'tokens a second, callers':36} " + "".join(f"{n:>8}" for n in CALLERS))
    for name, rates in (
        ("the engine itself", inside),
        ("served", http["whole"]),
        ("streamed", http["streamed"]),
    ):
        print(f"  {name:34} " + "".join(f"{rates[n]:8.0f}" for n in CALLERS))  # type: ignore[index]


if __name__ == "__main__":
    main()
