"""GRPO from top to bottom in one file: a tiny transformer learns to find the largest of three digits.

    python examples/01_grpo_in_one_file.py

This is the algorithm of `toolwright train algorithm=grpo` without anything around it, for reading. A test
feeds it the trainer's weights and trajectories and gets the trainer's losses (tests/examples). Left out:

- the reference and its KL: nothing here is worth staying close to (`algorithm.kl.where=none`);
- several updates a step: with one, the old policy is the present one and the ratio is 1 until the gradient
  is taken. The clip is kept, because it is what the formula says;
- a key-value cache, slots, packing: `model(tokens)` is computed anew for every token, as eight tokens allow;
- evaluation on held-out tasks, checkpoints, failures, tools: what makes a trainer longer than its algorithm.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import Qwen3Config, Qwen3ForCausalLM

PROMPTS, SAMPLES, STEPS = 16, 8, 150
LEARNING_RATE, CLIP, MAX_GRAD_NORM, TEMPERATURE = 1e-3, 0.2, 1.0, 1.0
ALPHABET = "0123456789>$"  # `>` asks for the answer, `$` ends it
END = ALPHABET.index("$")
MAX_TOKENS = 2


@dataclass
class Attempts:
    """N sequences, padded on the right. `actions` marks the tokens that the policy sampled."""

    tokens: Tensor  # [N, T]
    actions: Tensor  # [N, T] bool
    old_log_prob: Tensor  # [N, T], 0 where there is no action


def encode(text: str) -> list[int]:
    return [ALPHABET.index(character) for character in text]


def decode(tokens: Sequence[int]) -> str:
    return "".join(ALPHABET[token] for token in tokens).removesuffix("$")


def make_task(rng: random.Random) -> tuple[str, str]:
    digits = "".join(rng.choices("0123456789", k=3))
    return f"{digits}>", max(digits)


def make_model() -> nn.Module:
    config = Qwen3Config(
        vocab_size=len(ALPHABET),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=16,
        tie_word_embeddings=True,
    )
    return Qwen3ForCausalLM(config)


def log_probs(model: nn.Module, tokens: Tensor, temperature: float = TEMPERATURE) -> Tensor:
    """log π(token t | tokens before it), [N, T]; 0 for the first, which has none before it."""
    logits = model(input_ids=tokens).logits[:, :-1] / temperature
    chosen = logits.log_softmax(-1).gather(2, tokens[:, 1:, None])[..., 0]
    return nn.functional.pad(chosen, (1, 0))


@torch.no_grad()
def sample(model: nn.Module, prompts: Sequence[list[int]]) -> Attempts:
    """One attempt at each prompt (all of one length here), token by token until it ends."""
    tokens = torch.tensor(prompts)
    actions = torch.zeros_like(tokens, dtype=torch.bool)
    done = torch.zeros(len(prompts), dtype=torch.bool)
    for _ in range(MAX_TOKENS):
        probs = (model(input_ids=tokens).logits[:, -1] / TEMPERATURE).softmax(-1)
        drawn = torch.multinomial(probs, 1)[:, 0]
        tokens = torch.cat([tokens, drawn[:, None]], dim=1)
        actions = torch.cat([actions, ~done[:, None]], dim=1)
        done = done | (drawn == END)
    return Attempts(tokens, actions, log_probs(model, tokens) * actions)


def advantages(rewards: Tensor, group: Sequence[int]) -> Tensor:
    """A = (R − mean) / (std + ε) over the attempts at the same task, [N] -> [N]."""
    result = torch.zeros_like(rewards)
    members = torch.tensor(group)
    for name in members.unique():
        mine = members == name
        result[mine] = (rewards[mine] - rewards[mine].mean()) / (rewards[mine].std() + 1e-6)
    return result


def grpo_loss(log_prob: Tensor, attempts: Attempts, advantage: Tensor) -> Tensor:
    """−min(r A, clip(r, 1 − ε, 1 + ε) A), the mean over an attempt's tokens, then over attempts."""
    ratio = (log_prob - attempts.old_log_prob).exp()
    clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
    per_token = -torch.minimum(ratio * advantage[:, None], clipped * advantage[:, None])
    actions = attempts.actions.float()
    per_attempt = (per_token * actions).sum(1) / actions.sum(1)
    return per_attempt.mean()


def make_optimizer(model: nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.99), weight_decay=0.0)


def update(
    model: nn.Module, optimizer: torch.optim.Optimizer, attempts: Attempts, advantage: Tensor
) -> tuple[float, float]:
    """One gradient step; returns the loss and the gradient's norm before clipping."""
    loss = grpo_loss(log_probs(model, attempts.tokens), attempts, advantage)
    optimizer.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
    optimizer.step()
    return loss.item(), float(norm)


def main() -> None:
    torch.set_num_threads(1)  # this small a model is faster for it
    torch.manual_seed(0)
    rng = random.Random(0)
    model = make_model()
    optimizer = make_optimizer(model)
    for step in range(1, STEPS + 1):
        tasks = [make_task(rng) for _ in range(PROMPTS)]
        group = [number for number in range(PROMPTS) for _ in range(SAMPLES)]
        attempts = sample(model, [encode(tasks[number][0]) for number in group])
        answers = [
            decode(row[mask].tolist()) for row, mask in zip(attempts.tokens, attempts.actions, strict=True)
        ]
        right = [answer == tasks[number][1] for answer, number in zip(answers, group, strict=True)]
        rewards = torch.tensor(right).float()
        loss, norm = update(model, optimizer, attempts, advantages(rewards, group))
        if step == 1 or step % 10 == 0:
            question, truth = tasks[0]
            print(
                f"step {step:3d}  reward {rewards.mean():.2f}  loss {loss:+.4f}  gradient {norm:.2f}"
                f"  {question}{answers[0]} ({truth})"
            )


if __name__ == "__main__":
    main()
