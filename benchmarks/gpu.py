"""One GPU: tokens a second generated and learned, seconds a GRPO step; beside peers in the same run.

    python benchmarks/gpu.py --model FOLDER [--json FILE] [--only SECTIONS] [--no-peers]

FOLDER holds SmolLM2-135M-Instruct (`toolwright model get smollm2-135m`). Peers that are installed are run
beside, each in a process of its own: transformers' `generate`, vLLM, TRL, TRL with vLLM in the same process.
A figure is the median of repeated runs; what is done for the first time is not counted. Sections:

- generation: so many sequences × 256 tokens, no sequence may end before; prompts of 32 tokens, all different
- step: GRPO, 64 prompts × 8 samples × at most 256 tokens, sums of two-digit numbers, one update; how many
  tokens were sampled on average stands beside
- learner: one update of 32 × 512 packed tokens; MFU counts 6 × parameters a token and the attention's
  products, nothing that is computed twice, against 989 TFLOP/s
- adapter: generation and an update as above, of the model with an adapter of rank 16 on all its matrices
- profile: where a step of decoding and an update spend their time, against what memory and arithmetic allow
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpu_work import NEW_TOKENS, PROMPT_TOKENS, PROMPTS, SAMPLES, SEQUENCES, prompt, seconds

PEAK_FLOPS, BANDWIDTH = 989e12, 4.3e12  # dense bfloat16 by the datasheet; a copy as measured
SECTIONS = ("generation", "step", "learner", "adapter", "profile")
PEERS = {
    "generation": {"transformers generate": ["transformers"], "vLLM": ["vllm"]},
    "step": {"TRL": ["trl"], "TRL + vLLM": ["trl", "vllm"]},
}


def main() -> None:
    options = arguments()
    results: list[dict[str, Any]] = []
    for section in options.only:
        results += OURS[section](options.model)
        for name, needs in PEERS.get(section, {}).items() if not options.no_peers else ():
            missing = [need for need in needs if importlib.util.find_spec(need) is None]
            results.append(
                {"section": section, "who": name, "left_out": f"no {missing[0]} here"}
                if missing
                else {"section": section, "who": f"{name} {versions(needs)}", **asked(name, options.model)}
            )
    print(table(results))
    if options.json:
        options.json.write_text(json.dumps({"device": device_name(), "results": results}, indent=2) + "\n")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", required=True, help="folder of SmolLM2-135M-Instruct")
    parser.add_argument("--only", type=lambda text: text.split(","), default=SECTIONS, metavar="SECTIONS")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result there as well")
    return parser.parse_args()


def asked(peer: str, model: str) -> dict[str, Any]:
    """A peer's figures, from a process of its own."""
    command = [sys.executable, str(Path(__file__).with_name("gpu_peers.py")), peer, model]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    if done.returncode:
        return {"left_out": (done.stderr.strip().splitlines() or ["failed"])[-1][:120]}
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


def versions(packages: list[str]) -> str:
    from importlib.metadata import version

    return ", ".join(map(version, packages))


def device_name() -> str:
    import torch

    return f"{torch.cuda.get_device_name()}, torch {torch.__version__}"


# --- ours -------------------------------------------------------------------------------------------------


def shapes() -> dict[str, Any]:
    from toolwright.models.decoder import Shape

    return {
        "Qwen2.5-0.5B's shape": Shape(
            vocab=151_936, layers=24, width=896, heads=14, kv_heads=2, ffn=4_864, context=512, head_dim=64,
            rope_theta=1e6, qkv_bias=True, family="qwen2",
        ),
        "Qwen3-0.6B's shape": Shape(
            vocab=151_936, layers=28, width=1_024, heads=16, kv_heads=8, ffn=3_072, context=1_024,
            head_dim=128, rope_theta=1e6, qk_norm=True, family="qwen3",
        ),
    }  # fmt: skip


def decoder_of(shape: Any) -> Any:
    import torch

    from toolwright.models.decoder import Decoder

    decoder = Decoder(shape).cuda()
    with torch.no_grad():
        for parameter in decoder.parameters():
            if parameter.dim() >= 2:
                parameter.normal_(0, parameter.shape[1] ** -0.5)
    return decoder


def loaded(model: str, context: int) -> Any:
    from toolwright.models import huggingface

    return huggingface.load(Path(model), context=context).cuda()


def engine_of(decoder: Any, slots: int) -> Any:
    import torch

    from toolwright.config import schema
    from toolwright.engines.native import build
    from toolwright.models.tokenizer import Tokenizer

    tokenizer = Tokenizer.characters("0123456789")
    tokenizer.end_tokens = frozenset()  # every sequence is as long as it may be
    settings = schema.EngineConfig(slots=slots, timeout_s=600)
    return build(settings, decoder=decoder, tokenizer=tokenizer, dtype=torch.bfloat16)


def generate(engine: Any, sequences: int) -> None:
    from toolwright.engines import Sampling

    async def all_of_them() -> None:
        done = await asyncio.gather(
            *(
                engine.generate(prompt(i), Sampling(max_tokens=NEW_TOKENS, seed=i), attempt=str(i))
                for i in range(sequences)
            )
        )
        assert all(len(answer.tokens) == NEW_TOKENS for answer in done)
        for i in range(sequences):
            engine.release(str(i))

    asyncio.run(all_of_them())


def our_generation(model: str) -> list[dict[str, Any]]:
    import torch

    found = []
    qwen = shapes()["Qwen2.5-0.5B's shape"]
    for what, make, sequences in (
        ("SmolLM2-135M", lambda: loaded(model, 512), SEQUENCES),
        ("SmolLM2-135M", lambda: loaded(model, 512), 2048),
        ("Qwen2.5-0.5B's shape", lambda: decoder_of(qwen), SEQUENCES),
    ):
        engine = engine_of(make(), sequences)
        taken = seconds(lambda engine=engine, n=sequences: generate(engine, n), runs=5)
        rate = sequences * NEW_TOKENS / statistics.median(taken)
        found.append(
            {"section": "generation", "who": "toolwright", "what": f"{what}, {sequences} × {NEW_TOKENS}"}
            | {"tokens_per_s": rate, "spread": spread([sequences * NEW_TOKENS / t for t in taken])}
        )
        del engine
        torch.cuda.empty_cache()
    return found


def spread(values: list[float]) -> list[float]:
    return [min(values), max(values)]


def our_step(model: str) -> list[dict[str, Any]]:
    import torch

    from toolwright.config.compose import Source, resolve
    from toolwright.trainer.loop import TrainingLoop

    words = [
        f"model.path={model}", "task.params.examples=0", "task.params.max_operand=99",
        f"rollout.prompts={PROMPTS}", f"rollout.samples={SAMPLES}", f"rollout.max_tokens={NEW_TOKENS}",
        "rollout.agent=single_turn", f"engine.slots={PROMPTS * SAMPLES}", "update.policy.lr=1e-6",
        "task.held_out_size=8",
    ]  # fmt: skip
    trainer = TrainingLoop(resolve(Source(config_name="smollm2_sums"), words).config)
    rows = []
    try:
        for step in range(1, 13):
            torch.cuda.synchronize()
            start = time.perf_counter()
            sampled = trainer.sample(step)
            middle = time.perf_counter()
            trainer.learn(sampled, step)
            torch.cuda.synchronize()
            lengths = [t.sampled_tokens for t in sampled.trajectories]
            rows.append((time.perf_counter() - start, middle - start, statistics.mean(lengths)))
    finally:
        trainer.close()
    whole, sample, length = (statistics.median(column) for column in zip(*rows[4:], strict=True))
    return [
        {
            "section": "step",
            "who": "toolwright",
            "step_s": whole,
            "sample_s": sample,
            "update_s": whole - sample,
            "mean_tokens": length,
            "spread": spread([row[0] for row in rows[4:]]),
        }
    ]


def update_of(decoder: Any, sequences: int = 32, length: int = 512) -> Callable[[], Any]:
    import torch

    from toolwright.batch import Batch
    from toolwright.config import schema
    from toolwright.learner.objective import Objective
    from toolwright.learner.policy import Policy

    policy = Policy(
        decoder, schema.OptimizerConfig(lr=1e-6), total_updates=100, temperature=1.0,
        micro_tokens=sequences * length, dtype=torch.bfloat16,
    )  # fmt: skip
    actions = torch.cat([torch.arange(i * length + 1, (i + 1) * length) for i in range(sequences)])
    columns = {"sampled_log_prob": torch.zeros(len(actions)), "advantages": torch.randn(len(actions))}
    batch = Batch(
        tokens=torch.randint(0, decoder.shape.vocab, (sequences * length,)),
        lengths=[length] * sequences,
        actions=actions,
        action_lengths=[length - 1] * sequences,
        group=[str(i) for i in range(sequences)],
        steps=torch.zeros_like(actions),
        columns=columns,
    )
    objective = Objective(schema.Algorithm(), norm_tokens=length)
    return lambda: policy.update(batch, objective)


def flops(shape: Any, tokens: int, length: int) -> float:
    """Of an update: products with every weight forward and twice back, and attention."""
    width, inner = shape.width, shape.heads * shape.head_dim
    layer = width * (inner + 2 * shape.kv_heads * shape.head_dim) + inner * width + 3 * width * shape.ffn
    weights = shape.layers * layer + shape.vocab * width
    return 6 * weights * tokens + 12 * shape.layers * inner * tokens * length / 2


def our_learner(model: str) -> list[dict[str, Any]]:
    import torch

    torch.set_num_threads(1)  # as a run on a GPU does
    found = []
    for what, make in (
        ("SmolLM2-135M", lambda: loaded(model, 512)),
        ("Qwen3-0.6B's shape", lambda: decoder_of(shapes()["Qwen3-0.6B's shape"])),
    ):
        decoder = make()
        taken = seconds(update_of(decoder), runs=7, warm_up=3)
        middle, tokens = statistics.median(taken), 32 * 512
        found.append(
            {
                "section": "learner",
                "who": "toolwright",
                "what": f"{what}, 32 × 512",
                "tokens_per_s": tokens / middle,
                "mfu": flops(decoder.shape, tokens, 512) / middle / PEAK_FLOPS,
                "spread": spread([tokens / t for t in taken]),
            }
        )
        del decoder
        torch.cuda.empty_cache()
    return found


def with_adapter(decoder: Any) -> Any:
    from toolwright.models import lora

    modules = lora.matched(decoder, "all-linear")
    lora.attach(decoder, lora.Adapter(rank=16, alpha=32.0, scale=2.0), modules, seed=0)
    return decoder.cuda()


def our_adapter(model: str) -> list[dict[str, Any]]:
    import torch

    torch.set_num_threads(1)
    found = []
    qwen = shapes()["Qwen3-0.6B's shape"]
    for what, make in (
        ("SmolLM2-135M", lambda: loaded(model, 512)),
        ("Qwen3-0.6B's shape", lambda: decoder_of(qwen)),
    ):
        decoder = with_adapter(make())
        engine = engine_of(decoder, SEQUENCES)
        generated = seconds(lambda engine=engine: generate(engine, SEQUENCES), runs=5)
        del engine
        torch.cuda.empty_cache()
        learned = seconds(update_of(decoder), runs=7, warm_up=3)
        for taken, tokens, work in (
            (generated, SEQUENCES * NEW_TOKENS, f"{SEQUENCES} × {NEW_TOKENS} generated"),
            (learned, 32 * 512, "32 × 512 learned"),
        ):
            found.append(
                {"section": "adapter", "who": "toolwright", "what": f"{what}, {work}"}
                | {"tokens_per_s": tokens / statistics.median(taken)}
                | {"spread": spread([tokens / t for t in taken])}
            )
        del decoder
        torch.cuda.empty_cache()
    return found


def our_profile(model: str) -> list[dict[str, Any]]:
    """By kind of kernel, milliseconds; and the least that the bytes and products allow."""
    import torch

    from toolwright.engines.native.graphs import Kind

    torch.set_num_threads(1)
    decoder = loaded(model, 512)
    engine = engine_of(decoder, SEQUENCES)
    generate(engine, SEQUENCES)
    graph = engine._graphs[Kind(SEQUENCES, filters=False, top=0)]
    engine.rows.positions.fill_(PROMPT_TOKENS + NEW_TOKENS // 2)
    engine.rows.left.zero_()
    engine.rows.step.zero_()
    shape = decoder.shape
    cached = 4 * shape.layers * shape.kv_heads * shape.head_dim * (PROMPT_TOKENS + NEW_TOKENS / 2)
    weights = 2 * sum(p.numel() for p in decoder.parameters())
    found = [
        {
            "section": "profile",
            "who": "one step of decoding, SmolLM2-135M, 512 rows",
            "kernels_ms": kernels(graph.replay),
            "bytes_ms": (weights + cached * SEQUENCES + 6 * SEQUENCES * shape.vocab) / BANDWIDTH * 1e3,
            "products_ms": weights * SEQUENCES / PEAK_FLOPS * 1e3,
        }
    ]
    del engine
    qwen = decoder_of(shapes()["Qwen3-0.6B's shape"])
    update = update_of(qwen)
    seconds(update, runs=1, warm_up=2)
    found.append(
        {
            "section": "profile",
            "who": "one update, Qwen3-0.6B's shape, 32 × 512",
            "kernels_ms": kernels(update),
            "products_ms": flops(qwen.shape, 32 * 512, 512) / PEAK_FLOPS * 1e3,
        }
    )
    return found


KINDS = (
    ("attention", ("flash", "_attend", "_join")),
    ("matrix products", ("nvjet", "gemm", "cutlass", "splitK", "memcpy32_post")),
    ("sampling", ("_survey", "_draw")),
    ("heads and norms", ("_place", "_forward", "_backward")),
    ("optimiser", ("multi_tensor", "adam")),
)


def kernels(work: Callable[[], Any]) -> dict[str, float]:
    import torch
    from torch.profiler import ProfilerActivity, profile

    with torch.inference_mode(False), profile(activities=[ProfilerActivity.CUDA]) as seen:
        work()
        torch.cuda.synchronize()
    spent = {kind: 0.0 for kind, _ in KINDS} | {"the rest": 0.0}
    for event in seen.key_averages():
        name = next((kind for kind, marks in KINDS if any(m in event.key for m in marks)), "the rest")
        spent[name] += event.self_device_time_total / 1e3
    return {"all": sum(spent.values()), **spent}


OURS = {
    "generation": our_generation,
    "step": our_step,
    "learner": our_learner,
    "adapter": our_adapter,
    "profile": our_profile,
}


# --- table ------------------------------------------------------------------------------------------------


def table(results: list[dict[str, Any]]) -> str:
    lines = [device_name()]
    for row in results:
        head = f"{row['section']:<11} {row['who']:<28} {row.get('what', ''):<36}"
        if "left_out" in row:
            lines.append(f"{head} left out: {row['left_out']}")
            continue
        parts = []
        if "tokens_per_s" in row:
            parts.append(f"{row['tokens_per_s'] / 1e3:8.1f} k tokens/s")
        if "mfu" in row:
            parts.append(f"MFU {row['mfu']:.1%}")
        if "step_s" in row:
            parts.append(f"{row['step_s']:.2f} s a step, {row['mean_tokens']:.0f} tokens on average")
        if "sample_s" in row:
            parts.append(f"sampling {row['sample_s']:.2f} s, update {row['update_s']:.2f} s")
        if "kernels_ms" in row:
            parts.append(", ".join(f"{kind} {ms:.2f}" for kind, ms in row["kernels_ms"].items()) + " ms")
            floors = {name: row[name] for name in ("bytes_ms", "products_ms") if name in row}
            parts.append("at least " + ", ".join(f"{n[:-3]} {ms:.2f} ms" for n, ms in floors.items()))
        if "spread" in row and "tokens_per_s" in row:
            parts.append(f"({row['spread'][0] / 1e3:.1f} to {row['spread'][1] / 1e3:.1f})")
        lines.append(f"{head} {'; '.join(parts)}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
