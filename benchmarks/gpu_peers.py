"""Peers of `gpu.py` at the same work, each in a process of its own.

    python benchmarks/gpu_peers.py PEER FOLDER

prints its figures as JSON, in the last line.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from typing import Any

from gpu_work import NEW_TOKENS, PROMPTS, SAMPLES, SEQUENCES, prompt, seconds


def transformers_generation(model: str) -> dict[str, Any]:
    import torch
    from transformers import AutoModelForCausalLM

    decoder = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).cuda()
    inputs = torch.tensor([prompt(i) for i in range(SEQUENCES)]).cuda()

    def work() -> None:
        decoder.generate(
            inputs, attention_mask=torch.ones_like(inputs), do_sample=True, temperature=1.0, top_k=0,
            min_new_tokens=NEW_TOKENS, max_new_tokens=NEW_TOKENS, pad_token_id=0,
        )  # fmt: skip

    taken = seconds(work, runs=2)
    return {
        "what": f"SmolLM2-135M, {SEQUENCES} × {NEW_TOKENS}",
        "tokens_per_s": SEQUENCES * NEW_TOKENS / statistics.median(taken),
    }


def vllm_generation(model: str) -> dict[str, Any]:
    from vllm import LLM, SamplingParams

    engine = LLM(
        model, dtype="bfloat16", max_model_len=512, max_num_seqs=SEQUENCES, gpu_memory_utilization=0.6
    )
    settings = SamplingParams(temperature=1.0, max_tokens=NEW_TOKENS, ignore_eos=True, detokenize=False)

    def work() -> None:
        engine.generate([{"prompt_token_ids": prompt(i)} for i in range(SEQUENCES)], settings, use_tqdm=False)

    taken = seconds(work, runs=3)
    return {
        "what": f"SmolLM2-135M, {SEQUENCES} × {NEW_TOKENS}",
        "tokens_per_s": SEQUENCES * NEW_TOKENS / statistics.median(taken),
    }


def trl_step(model: str, *, colocated: bool = False) -> dict[str, Any]:
    import datasets
    import transformers
    from trl import GRPOConfig, GRPOTrainer

    from toolwright.rewards.builtin.numeric import numbers
    from toolwright.tasks import SplitSizes
    from toolwright.tasks.builtin.sums import sums

    made = sums(sizes=SplitSizes(0, 2000, 8), max_operand=99).train
    rows = [{"prompt": task.prompt, "truth": task.ground_truth} for task in made]
    lengths: list[float] = []

    def reward(completions: Any, truth: Any, completion_ids: Any, **_: Any) -> list[float]:
        lengths.append(statistics.mean(map(len, completion_ids)))
        said = [numbers(c[0]["content"][-200:]) for c in completions]
        return [float(bool(s) and str(s[-1]) == t) for s, t in zip(said, truth, strict=True)]

    ends: list[float] = []

    class Clock(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            import torch

            torch.cuda.synchronize()
            ends.append(time.perf_counter())

    inside = {"use_vllm": True, "vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.3}

    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder, per_device_train_batch_size=PROMPTS, gradient_accumulation_steps=SAMPLES,
            num_generations=SAMPLES, max_completion_length=NEW_TOKENS, temperature=1.0, learning_rate=1e-6,
            beta=0.0, bf16=True, max_steps=6, logging_steps=100, save_strategy="no", report_to=[],
            model_init_kwargs={"dtype": "bfloat16"}, **(inside if colocated else {}),
        )  # fmt: skip
        trainer = GRPOTrainer(
            model=model, reward_funcs=reward, args=config, train_dataset=datasets.Dataset.from_list(rows),
            processing_class=transformers.AutoTokenizer.from_pretrained(model, padding_side="left"),
            callbacks=[Clock()],
        )  # fmt: skip
        trainer.train()
    taken = [after - before for before, after in pairwise(ends[1:])]
    return {"step_s": statistics.median(taken), "mean_tokens": statistics.median(lengths[2:])}


PEER_RUNS = {
    "transformers generate": transformers_generation,
    "vLLM": vllm_generation,
    "TRL": trl_step,
    "TRL + vLLM": lambda model: trl_step(model, colocated=True),
}


if __name__ == "__main__":
    print(json.dumps(PEER_RUNS[sys.argv[1]](sys.argv[2])))
