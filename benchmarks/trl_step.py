"""TRL's side of `step_cpu.py`: the least script that runs its GRPOTrainer on the same work.

python trl_step.py MODEL_FOLDER STEPS WORKING_FOLDER
"""

from __future__ import annotations

import sys
from typing import Any

import step_work
import torch
from datasets import Dataset
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from trl import GRPOConfig, GRPOTrainer


class Announce(TrainerCallback):
    """Says that a step is finished, in the words of Toolwright's own display."""

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **rest: Any
    ) -> None:
        if state.global_step == 1:
            print(f"step 1/{state.max_steps}", flush=True)


def reward(completions: list[Any], completion_ids: list[list[int]], **columns: Any) -> list[float]:
    work = step_work.work()
    if {len(ids) for ids in completion_ids} != {work.new_tokens}:
        raise ValueError(f"expected answers of {work.new_tokens} tokens, found {completion_ids}")
    return step_work.reward(completions)


def main(model_folder: str, steps: int, working_folder: str) -> None:
    work = step_work.work()
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    # An end token beyond the model's vocabulary: it is looked for, and never drawn, as on our side.
    tokenizer.add_special_tokens({"eos_token": "<|never|>"})
    config = GRPOConfig(
        output_dir=working_folder,
        max_steps=steps,
        per_device_train_batch_size=work.sequences,
        gradient_accumulation_steps=1,
        num_generations=work.samples,
        max_completion_length=work.new_tokens,
        pad_to_multiple_of=None,
        beta=0.0,
        epsilon=step_work.CLIP,
        loss_type="grpo",
        learning_rate=step_work.LEARNING_RATE,
        lr_scheduler_type="constant",
        adam_beta1=step_work.BETAS[0],
        adam_beta2=step_work.BETAS[1],
        weight_decay=0.0,
        max_grad_norm=step_work.MAX_GRAD_NORM,
        optim="adamw_torch_fused",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,  # on by default, and slower: there is memory enough
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32),
        reward_funcs=reward,
        args=config,
        train_dataset=Dataset.from_list([{"prompt": step_work.messages(q)} for q in step_work.QUESTIONS]),
        processing_class=tokenizer,
        callbacks=[Announce()],
    )
    trainer.train()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
