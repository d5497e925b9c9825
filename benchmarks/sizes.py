"""One GPU, real sizes: peak memory, seconds a step, tokens a second, with the settings that a run would find.

    python benchmarks/sizes.py [--only "7b,7b lora"] [--json FILE]

Weights are random and made on the device. Each case is a process of its own and prints one line of JSON. A
step samples with the native engine, makes one update of all that was sampled, and publishes; the case
`1.5b 32k` makes updates alone, of two sequences of 32,768 tokens, within 60 GB; `1.5b 32k ffn` the same with
feed-forward halves alone computed twice. What is done for the first time is not counted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpu_work import prompt

GIB = 1 << 30


@dataclass(frozen=True)
class Case:
    size: str
    rank: int | None = None  # of an adapter; None: all weights
    sequences: int = 128
    sampled: int = 256  # tokens of each; 0: nothing is sampled
    length: int = 1_024  # the longest sequence
    limit: float | None = None  # gigabytes that the process may take
    steps: int = 2  # after the first, which is not counted
    stated: dict[str, Any] = field(default_factory=dict)  # keys that are not `auto`


CASES = {
    "7b": Case("7b"),
    "7b lora": Case("7b", rank=16),
    "32b lora": Case("32b", rank=16, sequences=64),
    "30b-a3b lora": Case("30b-a3b", rank=16, sequences=64),
    "1.5b 32k": Case("1.5b", sequences=2, sampled=0, length=32_768, limit=60),
    "1.5b 32k ffn": Case(
        "1.5b", sequences=2, sampled=0, length=32_768, limit=60,
        stated={"model.gradient_checkpointing": "ffn", "update.optimizer_state": "float32"},
    ),
    "14b": Case("14b", sequences=64, steps=1),
}  # fmt: skip
USUAL = ("7b", "7b lora", "32b lora", "30b-a3b lora", "1.5b 32k")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", type=lambda text: text.split(","), default=USUAL, metavar="CASES")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the lines there as well")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        print(json.dumps({"case": options.case, **measured(CASES[options.case])}), flush=True)
        return
    lines = [asked(name) for name in options.only]
    if options.json:
        options.json.write_text("\n".join(lines) + "\n")


def asked(name: str) -> str:
    """The line of a case, from a process of its own."""
    command = [sys.executable, str(Path(__file__)), "--case", name]
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    found = done.stdout.strip().splitlines()
    line = found[-1] if done.returncode == 0 and found else None
    if line is None:
        reason = (done.stderr.strip().splitlines() or ["failed"])[-1][:300]
        line = json.dumps({"case": name, "failed": reason})
    print(line, f"# {time.perf_counter() - started:.0f} s with its start", flush=True)
    return line


def measured(case: Case) -> dict[str, Any]:
    import torch

    from toolwright.config import schema
    from toolwright.learner.objective import Objective
    from toolwright.learner.policy import Policy
    from toolwright.trainer import memory
    from toolwright.trainer.economy import chosen_economy, economies
    from toolwright.trainer.forecast import model_of

    torch.set_num_threads(1)
    free, total = torch.cuda.mem_get_info()
    if case.limit is not None:
        free = int(case.limit * 1e9) - GIB  # the driver's own is not ours to count
        torch.cuda.set_per_process_memory_fraction(free / total)
    planned = model_of(case.size, context=case.length)
    if case.rank:
        low = memory.adapter_parameters(planned.shape, case.rank)
        planned = replace(planned, adapted=True, trained=low, fresh=True)
    blocks: dict[str, dict[str, Any]] = {
        "model": {"context": case.length},
        "rollout": {"prompts": case.sequences, "samples": 1},
        "engine": {"slots": case.sequences},
        "update": {},
    }
    for key, value in case.stated.items():
        block, _, name = key.partition(".")
        blocks[block][name] = value
    config = schema.Config.model_validate(blocks)
    economy, fits = chosen_economy(config, planned, free, economies(config, planned, "bfloat16"))
    config = economy.applied(config)
    planned = replace(planned, stored=config.model.stored)
    needed = memory.counted(config, planned)
    decoder = made(case, planned.shape, config)
    engine = None
    if case.sampled:
        assert needed.engine.fit is not None
        tokens = needed.engine.fit(case.sequences, free - needed.total + needed.engine.cache)
        engine = engine_of(decoder, case.sequences, tokens)
    policy = Policy(
        decoder, schema.OptimizerConfig(lr=1e-6), total_updates=100, temperature=1.0,
        micro_tokens=None if case.sampled else case.length, dtype=torch.bfloat16,
        packs=economy.optimizer_state == "int8",
    )  # fmt: skip
    objective = Objective(schema.Algorithm(), norm_tokens=case.length)
    rows, gap = [], 0.0
    for step in range(1 + case.steps):
        torch.cuda.synchronize()
        start = time.perf_counter()
        batch = sampled(engine, case, step) if engine is not None else long_batch(case, planned.shape.vocab)
        middle = time.perf_counter()
        gap = policy.update(batch, objective).get("gap/abs_mean", 0.0)
        torch.cuda.synchronize()
        rows.append((middle - start, time.perf_counter() - middle, sum(batch.lengths)))
        if engine is not None:
            engine.publish(step + 1)
    sample_s, learn_s = (sum(row[i] for row in rows[1:]) / case.steps for i in (0, 1))
    return {
        "parameters": planned.parameters,
        "settings": {"dtype": economy.dtype, "optimizer_state": economy.optimizer_state}
        | {"gradient_checkpointing": economy.recompute, "lora_rank": case.rank, "fits": fits},
        "cache_tokens": engine.cache.pool.count * engine.cache.page_tokens if engine is not None else 0,
        "micro_tokens": policy.budget.tokens,
        "peak_gb": round(torch.cuda.max_memory_allocated() / 1e9, 1),
        "reserved_gb": round(torch.cuda.max_memory_reserved() / 1e9, 1),
        "counted_gb": round(needed.total / 1e9, 1),
        "step_s": round(sample_s + learn_s, 2),
        "sample_s": round(sample_s, 2),
        "learn_s": round(learn_s, 2),
        "sampled_tokens_per_s": round(case.sequences * case.sampled / sample_s) if case.sampled else 0,
        "learned_tokens_per_s": round(rows[-1][2] / learn_s),
        "gap": round(gap, 4),
        "device": torch.cuda.get_device_name(),
    }


def made(case: Case, shape: Any, config: Any) -> Any:
    from toolwright.models import lora

    decoder = random_decoder(shape, config.model.stored)
    if case.rank:
        modules = lora.matched(decoder, "all-linear")
        lora.attach(decoder, lora.Adapter(case.rank, 32.0, 32.0 / case.rank), modules, seed=0)
    return decoder.recomputing(config.model.recomputes)


def random_decoder(shape: Any, stored: str) -> Any:
    """Random weights, on the device from the beginning."""
    import torch

    from toolwright.models.decoder import Decoder
    from toolwright.models.quantised import MOST, QuantisedMatrix

    decoder = Decoder(shape, blank=True, stored=stored, device=torch.device("cuda"))
    with torch.no_grad():
        for parameter in decoder.parameters():
            if parameter.dim() >= 2:
                parameter.normal_(0, parameter.shape[1] ** -0.5)
        for module in decoder.modules():
            if isinstance(module, QuantisedMatrix):
                module.codes.random_(-MOST, MOST + 1)
                module.scales.fill_((3 / module.codes.shape[1]) ** 0.5 / MOST)
    return decoder


def engine_of(decoder: Any, slots: int, cache_tokens: int) -> Any:
    import torch

    from toolwright.config import schema
    from toolwright.engines.native import build
    from toolwright.models.tokenizer import Tokenizer

    tokenizer = Tokenizer.characters("0123456789")
    tokenizer.end_tokens = frozenset()  # every sequence is as long as it may be
    settings = schema.EngineConfig(slots=slots, timeout_s=600, params={"cache_tokens": cache_tokens})
    return build(settings, decoder=decoder, tokenizer=tokenizer, dtype=torch.bfloat16)


def sampled(engine: Any, case: Case, step: int) -> Any:
    import torch

    from toolwright.batch import Batch
    from toolwright.engines import Sampling
    from toolwright.trajectory import Segment, Task, Trajectory

    async def attempt(number: int) -> Trajectory:
        opening = prompt(number)
        settings = Sampling(max_tokens=case.sampled, seed=number + 1_000 * step)
        answer = await engine.generate(opening, settings, attempt=str(number))
        engine.release(str(number))
        found = Trajectory(Task(str(number), []), str(number))
        found.append(Segment("prompt", opening))
        found.append(Segment("policy", answer.tokens, answer.log_probs))
        return found

    async def all_of_them() -> list[Trajectory]:
        return await asyncio.gather(*map(attempt, range(case.sequences)))

    batch = Batch.pack(asyncio.run(all_of_them()))
    batch.columns["advantages"] = torch.randn(len(batch.actions))
    return batch


def long_batch(case: Case, vocab: int) -> Any:
    """Whole sequences of actions."""
    import torch

    from toolwright.batch import Batch

    count, length = case.sequences, case.length
    actions = torch.cat([torch.arange(i * length + 1, (i + 1) * length) for i in range(count)])
    return Batch(
        tokens=torch.randint(0, vocab, (count * length,)),
        lengths=[length] * count,
        actions=actions,
        action_lengths=[length - 1] * count,
        group=[str(i) for i in range(count)],
        steps=torch.zeros_like(actions),
        columns={"advantages": torch.randn(len(actions))},
    )


if __name__ == "__main__":
    main()
