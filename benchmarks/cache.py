"""One GPU: what the native engine's cache costs and saves; runs with any version of it, to compare two.

    python benchmarks/cache.py [--model FOLDER] [--only short,step,long,group,turns]
    PYTHONPATH=OTHER_CHECKOUT python benchmarks/cache.py …

- short: SmolLM2-135M (`--model`), 512 sequences × 256 tokens after prompts of 32, median of seven runs
- step: a GRPO step of the same model, as `gpu.py` measures it
- long: 1.5B's shape, random weights, 16 prompts of 24 k tokens, all different: seconds until all are read,
  and tokens a second of 128 more for each
- group: the same shape, 1,024 attempts at one prompt of 8 k tokens, 64 tokens each, at a context of 32 k
- turns: SmolLM2-135M, 256 attempts of four turns of 48 tokens, whose prompts begin with the same 512 tokens

Peak memory is what torch has allocated; pages are printed where the engine has them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from typing import Any

from gpu import decoder_of, device_name, engine_of, generate, loaded, our_step
from gpu_work import NEW_TOKENS, SEQUENCES, seconds

CASES = ("short", "step", "long", "group", "turns")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", help="folder of SmolLM2-135M-Instruct")
    parser.add_argument("--only", type=lambda text: text.split(","), default=CASES, metavar="CASES")
    options = parser.parse_args()
    import torch

    import toolwright

    print(device_name(), toolwright.__file__)
    for case in options.only:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        found = MEASURED[case](options.model)
        found["peak_gb"] = round(torch.cuda.max_memory_allocated() / 1e9, 2)
        print(json.dumps({"case": case, **found}), flush=True)


def pages(engine: Any) -> dict[str, Any]:
    pool = getattr(engine.cache, "pool", None)
    if pool is None:
        return {"slots": engine.cache.slots}
    size = engine.cache.page_tokens
    return {
        "cache_tokens": pool.count * size,
        "tokens_used": pool.peak * size,
        "saved": pool.peak_saved * size,
    }


def short(model: str) -> dict[str, Any]:
    engine = engine_of(loaded(model, 512), SEQUENCES)
    taken = seconds(lambda: generate(engine, SEQUENCES), runs=7, warm_up=2)
    rates = [SEQUENCES * NEW_TOKENS / t for t in taken]
    return {
        "tokens_per_s": round(statistics.median(rates)),
        "spread": [round(min(rates)), round(max(rates))],
        **pages(engine),
    }


def step(model: str) -> dict[str, Any]:
    (found,) = our_step(model)
    names = ("step_s", "sample_s", "update_s", "mean_tokens", "spread")
    return {name: found[name] for name in names}


def shape(context: int) -> Any:
    from toolwright.models.decoder import Shape

    return Shape(
        vocab=151_936, layers=28, width=1_536, heads=12, kv_heads=2, ffn=8_960, context=context, head_dim=128,
        rope_theta=1e6, qkv_bias=True, family="qwen2",
    )  # fmt: skip


def long(_: str) -> dict[str, Any]:
    engine = engine_of(decoder_of(shape(24_576 + 256)), 16)
    prompts = [prompt_of(number, 24_576) for number in range(16)]
    asked(engine, [one[:2_048] for one in prompts], 32)  # kernels and graphs are there
    read, whole = [], []
    for number in range(2):
        engine.publish(number + 1)  # nothing is found
        read.append(asked(engine, prompts, 1))
        engine.publish(number + 101)
        whole.append(asked(engine, prompts, 128))
    between = statistics.median(whole) - statistics.median(read)
    return {
        "read_s": round(statistics.median(read), 2),
        "whole_s": round(statistics.median(whole), 2),
        "decoded_per_s": round(16 * 127 / between),
        "tokens_per_s": round(16 * 128 / statistics.median(whole)),
        **pages(engine),
    }


def group(_: str) -> dict[str, Any]:
    engine = engine_of(decoder_of(shape(32_768)), 1_024)
    opening = prompt_of(1, 8_192)
    asked(engine, [prompt_of(2, 256)] * 1_024, 17)
    engine.publish(1)
    taken = asked(engine, [opening] * 1_024, 64)
    return {"seconds": round(taken, 2), "tokens_per_s": round(1_024 * 64 / taken), **pages(engine)}


def turns(model: str) -> dict[str, Any]:
    from toolwright.engines import Sampling

    engine = engine_of(loaded(model, 1_024), 256)
    opening = prompt_of(0, 512)

    async def attempt(number: int, version: int) -> None:
        tokens = [*opening, *prompt_of(number // 8 + 1, 32)]
        for turn in range(4):
            sampling = Sampling(max_tokens=48, seed=number)
            answer = await engine.generate(tokens, sampling, attempt=f"{version}/{number}")
            tokens = [*tokens, *answer.tokens, *prompt_of(number + turn, 16)]
        engine.release(f"{version}/{number}")

    def every() -> None:
        engine.publish(engine.weights_version + 1)

        async def all_of_them() -> None:
            await asyncio.gather(*(attempt(number, engine.weights_version) for number in range(256)))

        asyncio.run(all_of_them())

    taken = statistics.median(seconds(every, runs=5, warm_up=2))
    return {"seconds": round(taken, 3), "tokens_per_s": round(256 * 4 * 48 / taken), **pages(engine)}


def asked(engine: Any, prompts: list[list[int]], new: int) -> float:
    """Seconds until every prompt has so many new tokens."""
    import torch

    from toolwright.engines import Sampling

    async def one(number: int, tokens: list[int]) -> None:
        answer = await engine.generate(tokens, Sampling(max_tokens=new, seed=number), attempt=str(number))
        assert len(answer.tokens) == new
        engine.release(str(number))

    async def all_of_them() -> None:
        await asyncio.gather(*(one(number, tokens) for number, tokens in enumerate(prompts)))

    torch.cuda.synchronize()
    start = time.perf_counter()
    asyncio.run(all_of_them())
    torch.cuda.synchronize()
    return time.perf_counter() - start


def prompt_of(number: int, length: int) -> list[int]:
    return [1_000 + (number * 7_919 + place * 104_729 + place * place) % 40_000 for place in range(length)]


MEASURED = {"short": short, "step": step, "long": long, "group": group, "turns": turns}

if __name__ == "__main__":
    main()
