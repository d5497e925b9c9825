"""GSM8K without tools, by Toolwright and by TRL with vLLM in its process: accuracy against seconds.

    python benchmarks/gsm8k_trl.py --model FOLDER --data FOLDER [--steps 15] [--only ours,TRL] [--out FOLDER]

Both train the same weights on the same questions with the same settings: 64 questions × 8 attempts of at most
300 tokens a step, GRPO with the average over tokens, one update, a constant learning rate, no reference. The
reward is Toolwright's scorer for GSM8K. Each trains in a process of its own. Counted are the seconds of the
steps after the first; loading and compiling are not. `toolwright eval` then judges both models alike, by
greedy answers to 512 held-out questions. --data is the folder of `toolwright data prepare gsm8k`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

PROMPTS, SAMPLES, TOKENS, RATE = 64, 8, 300, 5e-6
CONTEXT = 640
HELD_OUT = 512


def main() -> None:
    options = arguments()
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    if options.part == "TRL":
        trl(options, out)
        return
    rows = [{"who": "untrained", **judged(options, options.model, out / "judged_start")}]
    for who in options.only:
        seconds = TRAINED[who](options, out)
        model = out / who / "model"
        rows.append({"who": who, "seconds": seconds, **judged(options, model, out / f"judged_{who}")})
        print(json.dumps(rows[-1]), flush=True)
    print("\n| | accuracy | 95 % | tokens an answer | seconds of training |\n| --- | --- | --- | --- | --- |")
    for row in rows:
        interval = f"{row['accuracy_low']:.1%} to {row['accuracy_high']:.1%}"
        taken = f"{row['seconds']:.1f}" if "seconds" in row else ""
        print(f"| {row['who']} | {row['accuracy']:.1%} | {interval} | {row['tokens_mean']:.0f} | {taken} |")
    (out / "result.json").write_text(json.dumps(rows, indent=2) + "\n")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", required=True, help="a Hugging Face folder")
    parser.add_argument("--data", required=True, type=Path, help="the folder of gsm8k_train.parquet")
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--only", type=lambda text: text.split(","), default=["ours", "TRL"], metavar="WHO")
    parser.add_argument("--out", type=Path, default=Path("gsm8k_trl"))
    parser.add_argument("--part", help=argparse.SUPPRESS)
    return parser.parse_args()


def task_settings(data: Path) -> list[str]:
    return [
        "task=gsm8k",
        f"task.train={data.resolve()}/gsm8k_train.parquet",
        f"task.held_out={data.resolve()}/gsm8k_test.parquet",
        f"task.held_out_size={HELD_OUT}",
        "tools={}",
        "model.dtype=bfloat16",
        f"model.context={CONTEXT}",
        "engine.slots=512",
        "rollout.max_turns=1",
        f"rollout.max_tokens={TOKENS}",
    ]


def toolwright(command: str, out: Path, *settings: str) -> None:
    words = [sys.executable, "-m", "toolwright", command, *settings]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    subprocess.run(words, cwd=out, check=True, env={**os.environ, "PYTHONPATH": path}, stdout=sys.stderr)


def judged(options: argparse.Namespace, model: str | Path, out: Path) -> dict[str, Any]:
    settings = [*task_settings(options.data), f"model.path={Path(model).resolve()}"]
    toolwright("eval", out.parent, *settings, f"run.dir={out.parent}", f"run.name={out.name}")
    last: dict[str, Any] = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])
    return {
        key: last[f"held_out/{key}"] for key in ("accuracy", "accuracy_low", "accuracy_high", "tokens_mean")
    }


def ours(options: argparse.Namespace, out: Path) -> float:
    settings = [
        *task_settings(options.data),
        f"model.path={Path(options.model).resolve()}",
        "algorithm=grpo",
        "algorithm.aggregate=token-mean",
        "algorithm.kl.where=none",
        f"rollout.prompts={PROMPTS}",
        f"rollout.samples={SAMPLES}",
        f"update.policy.lr={RATE}",
        "update.policy.decay=constant",
        "update.policy.warmup_steps=0",
        f"train.steps={options.steps}",
        "eval.every=0",
        f"run.dir={out}",
        "run.name=ours",
    ]
    toolwright("train", out, *settings)
    lines = (out / "ours" / "metrics.jsonl").read_text().splitlines()
    steps = [row for row in map(json.loads, lines) if "time/total_s" in row]
    return sum(float(row["time/total_s"]) - float(row.get("time/evaluate_s", 0)) for row in steps[1:])


def with_trl(options: argparse.Namespace, out: Path) -> float:
    words = [sys.executable, __file__, "--part", "TRL", "--model", options.model, "--data", str(options.data)]
    words += ["--steps", str(options.steps), "--out", str(out)]
    subprocess.run(words, check=True, stdout=sys.stderr)
    return float((out / "TRL" / "seconds").read_text())


def trl(options: argparse.Namespace, out: Path) -> None:
    import datasets
    import torch
    import transformers
    from trl import GRPOConfig, GRPOTrainer

    from toolwright.rewards.builtin.gsm8k import gsm8k
    from toolwright.tasks.builtin.file import tasks_of

    made = tasks_of(options.data / "gsm8k_train.parquet")
    rows = [{"prompt": task.prompt, "truth": str(task.ground_truth)} for task in made]

    def reward(completions: Any, truth: Any, **_: Any) -> list[float]:
        return [gsm8k(c[0]["content"], t) for c, t in zip(completions, truth, strict=True)]

    ends: list[float] = []

    class Clock(transformers.TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            torch.cuda.synchronize()
            ends.append(time.perf_counter())

    config = GRPOConfig(
        output_dir=str(out / "TRL"), per_device_train_batch_size=PROMPTS, gradient_accumulation_steps=SAMPLES,
        num_generations=SAMPLES, max_completion_length=TOKENS, temperature=1.0, learning_rate=RATE,
        lr_scheduler_type="constant", beta=0.0, bf16=True, max_steps=options.steps, logging_steps=1,
        save_strategy="no", report_to=[], loss_type="dapo", use_vllm=True, vllm_mode="colocate",
        vllm_gpu_memory_utilization=0.3, vllm_max_model_length=CONTEXT,
        model_init_kwargs={"dtype": "float32"},
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=options.model, reward_funcs=reward, args=config, train_dataset=datasets.Dataset.from_list(rows),
        processing_class=transformers.AutoTokenizer.from_pretrained(options.model, padding_side="left"),
        callbacks=[Clock()],
    )  # fmt: skip
    trainer.train()
    trainer.save_model(str(out / "TRL" / "model"))
    (out / "TRL" / "seconds").write_text(str(ends[-1] - ends[0]))


TRAINED = {"ours": ours, "TRL": with_trl}


if __name__ == "__main__":
    main()
