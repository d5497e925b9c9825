"""One GPU, real sizes: tokens a second generated, beside vLLM at the same work in the same run.

    python benchmarks/generation.py [--only "7b,1.5b long"] [--json FILE]

- 7b: 256 sequences × 1,024 tokens after prompts of 32
- 1.5b long: 16 prompts of 24 k tokens, all different, 128 tokens each; reading the prompts counts

Weights are random (vLLM's are its own dummy ones), no sequence may end early, and no prompt is asked twice.
Each row is a process of its own and prints one line of JSON: the median of three runs after one that is not
counted. vLLM's line says why where it cannot run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cache import asked, prompt_of
from gpu_work import seconds


@dataclass(frozen=True)
class Work:
    size: str
    sequences: int
    prompt: int
    new: int

    @property
    def context(self) -> int:
        return self.prompt + self.new

    def prompts(self, run: int) -> list[list[int]]:
        """Prompts that no earlier run has had."""
        return [prompt_of(1 + number + run * self.sequences, self.prompt) for number in range(self.sequences)]


WORK = {
    "7b": Work("7b", sequences=256, prompt=32, new=1_024),
    "1.5b long": Work("1.5b", sequences=16, prompt=24_576, new=128),
}
RUNS = 3


def ours(work: Work) -> list[float]:
    import torch
    from gpu import engine_of
    from sizes import random_decoder

    from toolwright.trainer.forecast import model_of

    torch.set_num_threads(1)
    shape = replace(model_of(work.size, context=work.context).shape, qkv_bias=True, family="qwen2")
    engine = engine_of(random_decoder(shape, "bfloat16"), work.sequences)
    taken = []
    for run in range(1 + RUNS):
        taken.append(asked(engine, work.prompts(run), work.new))
        engine.publish(run + 1)
    return taken[1:]


def vllm(work: Work) -> list[float]:
    from vllm import LLM, SamplingParams

    from toolwright.models.known import SIZES

    with tempfile.TemporaryDirectory() as folder:
        config = {**SIZES[work.size], "architectures": ["Qwen2ForCausalLM"], "torch_dtype": "bfloat16"}
        Path(folder, "config.json").write_text(json.dumps(config))
        engine = LLM(
            folder, load_format="dummy", skip_tokenizer_init=True, dtype="bfloat16",
            max_model_len=work.context, max_num_seqs=work.sequences, gpu_memory_utilization=0.85,
            enable_prefix_caching=False,
        )  # fmt: skip
    settings = SamplingParams(temperature=1.0, max_tokens=work.new, ignore_eos=True, detokenize=False)
    runs = iter(range(1 + RUNS))

    def generate() -> None:
        prompts = [{"prompt_token_ids": tokens} for tokens in work.prompts(next(runs))]
        done = engine.generate(prompts, settings, use_tqdm=False)
        assert all(len(one.outputs[0].token_ids) == work.new for one in done)

    return seconds(generate, runs=RUNS)


WHO = {"toolwright": ours, "vLLM": vllm}


def measured(name: str, who: str) -> dict[str, Any]:
    import torch

    work = WORK[name]
    rates = [work.sequences * work.new / taken for taken in WHO[who](work)]
    return {
        "tokens_per_s": round(statistics.median(rates)),
        "spread": [round(min(rates)), round(max(rates))],
        "device": torch.cuda.get_device_name(),
    }


def line_of(name: str, who: str) -> str:
    """A row, from a process of its own."""
    command = [sys.executable, str(Path(__file__)), "--row", name, who]
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    found = done.stdout.strip().splitlines()
    if done.returncode == 0 and found:
        row = json.loads(found[-1])
    else:
        row = {"failed": (done.stderr.strip().splitlines() or ["failed"])[-1][:300]}
    line = json.dumps({"case": name, "who": who, **row})
    print(line, f"# {time.perf_counter() - started:.0f} s with its start", flush=True)
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", type=lambda text: text.split(","), default=tuple(WORK), metavar="CASES")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the lines there as well")
    parser.add_argument("--row", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        print(json.dumps(measured(*options.row)), flush=True)
        return
    lines = [line_of(name, who) for name in options.only for who in WHO]
    if options.json:
        options.json.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
