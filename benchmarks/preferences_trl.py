"""Losses and gradients of DPO, KTO and ORPO beside TRL's trainers, on the same model and the same tokens.

.venv-trl/bin/python benchmarks/preferences_trl.py

Prints the loss of both and the largest difference of any gradient, as a part of the largest gradient. TRL's
ORPO counts the prompt's tokens in the likelihood and averages over tokens: here its odds ratio is joined to
the likelihood of the answers.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer
from trl.experimental.orpo.orpo_trainer import ORPOTrainer

from toolwright.algorithms import preferences
from toolwright.batch import Batch
from toolwright.config import schema
from toolwright.learner.objective import PreferenceObjective
from toolwright.learner.policy import Policy
from toolwright.models import huggingface
from toolwright.models.decoder import Decoder, Shape
from toolwright.models.tokenizer import Tokenizer
from toolwright.trajectory import Segment, Task, Trajectory

PAIRS = [("1+1", "2", "3"), ("2+5", "7", "12"), ("10+7", "17", "1"), ("6+6", "12", "66"), ("9+8", "17", "8")]
BETA = 0.3


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        policy, reference = Path(folder, "policy"), Path(folder, "reference")
        for seed, place in enumerate((policy, reference)):
            _model(seed, place)
        print(f"{'loss':6} {'toolwright':>12} {'TRL':>12} {'largest difference of a gradient':>34}")
        for name, peer in (("dpo", _dpo), ("kto", _kto), ("orpo", _orpo)):
            theirs, gradients, batch, params = peer(policy, reference, Path(folder, name))
            ours, own = _ours(name, policy, reference, batch, params)
            scale = max(float(gradient.abs().max()) for gradient in gradients.values())
            apart = max(float((own[key] - gradients[key]).abs().max()) for key in gradients) / scale
            print(f"{name:6} {ours:12.8f} {theirs:12.8f} {apart:34.2g}")


def _model(seed: int, folder: Path) -> None:
    tokenizer = Tokenizer.characters("0123456789+")
    shape = Shape(
        vocab=tokenizer.size, layers=2, width=32, heads=4, kv_heads=4, ffn=48, context=64, head_dim=8,
        extra={"eos_token_id": tokenizer.end, "pad_token_id": 0, "bos_token_id": None},
    )  # fmt: skip
    decoder = Decoder(shape).initialise(seed)
    with torch.no_grad():
        decoder.embedding.weight.mul_(20)  # fresh weights find every token equally likely
    huggingface.save(decoder, folder)
    tokenizer.save(folder)


def _tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    found = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    own = Tokenizer.load(folder)
    found.eos_token, found.pad_token = own.backend.id_to_token(own.end), own.backend.id_to_token(0)
    return found


def _dpo(policy: Path, reference: Path, out: Path) -> Any:
    rows = [{"prompt": prompt, "chosen": good, "rejected": bad} for prompt, good, bad in PAIRS]
    config = DPOConfig(output_dir=str(out), beta=BETA, **_common())
    trainer = DPOTrainer(_load(policy), _load(reference), config, train_dataset=Dataset.from_list(rows),
                         processing_class=_tokenizer(policy))  # fmt: skip
    inputs = next(iter(trainer.get_train_dataloader()))
    loss, gradients = _learned(trainer, inputs)
    tokens, masks = inputs["input_ids"], inputs["completion_mask"]
    half = len(tokens) // 2
    order = [row + side * half for row in range(half) for side in (0, 1)]
    return (
        loss,
        gradients,
        _packed(tokens, masks, inputs["attention_mask"], order, [1, 0] * half),
        {"beta": BETA},
    )


def _kto(policy: Path, reference: Path, out: Path) -> Any:
    rows = [
        {"prompt": prompt, "completion": answer, "label": good}
        for prompt, *answers in PAIRS
        for answer, good in zip(answers, (True, False), strict=True)
    ]
    config = KTOConfig(output_dir=str(out), beta=BETA, desirable_weight=1.2, **_common(len(rows)))
    trainer = KTOTrainer(_load(policy), _load(reference), config, train_dataset=Dataset.from_list(rows),
                         processing_class=_tokenizer(policy))  # fmt: skip
    inputs = next(iter(trainer.get_train_dataloader()))
    loss, gradients = _learned(trainer, inputs)
    width = max(inputs["input_ids"].shape[1], inputs["KL_input_ids"].shape[1])
    columns = [
        torch.cat([_widened(inputs[name], width), _widened(inputs[f"KL_{name}"], width)])
        for name in ("input_ids", "completion_mask", "attention_mask")
    ]
    count = len(inputs["input_ids"])
    order = [row + side * count for row in range(count) for side in (0, 1)]
    labels = [float(label) * (1 - side) for label in inputs["label"] for side in (0, 1)]
    return loss, gradients, _packed(*columns, order, labels), {"beta": BETA, "desirable_weight": 1.2}


def _orpo(policy: Path, reference: Path, out: Path) -> Any:
    """The odds ratio is TRL's; the likelihood is that of the answers."""
    loss, _, batch, _ = _dpo(policy, reference, out)
    model = _load(policy)
    means, start, place = [], 0, 0
    for length, count in zip(batch.lengths, batch.action_lengths, strict=True):
        tokens = batch.tokens[start : start + length]
        labels = torch.full_like(tokens, -100)
        at = batch.actions[place : place + count] - start
        labels[at] = tokens[at]
        logits = model(input_ids=tokens[None]).logits
        means.append(ORPOTrainer.get_batch_logps(logits, labels[None], average_log_prob=True)[0])
        start, place = start + length, place + count
    chosen, rejected = torch.stack(means[0::2]), torch.stack(means[1::2])
    itself = SimpleNamespace(beta=BETA, accelerator=SimpleNamespace(device=chosen.device))
    losses, *_ = ORPOTrainer.odds_ratio_loss(itself, chosen, rejected)
    loss = -chosen.mean() - losses.mean()
    loss.backward()
    return float(loss), _gradients(model), batch, {"weight": BETA}


def _common(batch: int = len(PAIRS)) -> dict[str, Any]:
    return {
        "per_device_train_batch_size": batch, "use_cpu": True, "bf16": False, "report_to": [],
        "gradient_checkpointing": False, "dataloader_num_workers": 0, "disable_tqdm": True,
    }  # fmt: skip


def _load(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def _learned(trainer: Any, inputs: Any) -> tuple[float, dict[str, Tensor]]:
    trainer.model.zero_grad()
    loss = trainer.compute_loss(trainer.model, inputs)
    loss.backward()
    return float(loss), _gradients(trainer.model)


def _gradients(model: Any) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def _widened(values: Tensor, width: int) -> Tensor:
    return torch.nn.functional.pad(values, (0, width - values.shape[1]))


def _packed(tokens: Tensor, answers: Tensor, there: Tensor, order: list[int], labels: list[float]) -> Batch:
    made = []
    for row, label in zip(order, labels, strict=True):
        kept = there[row].bool()
        said, ours = tokens[row][kept].tolist(), answers[row][kept].tolist()
        first = ours.index(1)
        attempt = Trajectory(Task("", []), group=str(len(made) // 2))
        attempt.append(Segment("prompt", said[:first]))
        attempt.append(Segment("policy", said[first:], [0.0] * len(said[first:]), reward=label))
        made.append(attempt)
    batch = Batch.pack(made)
    del batch.columns["sampled_log_prob"]
    batch.columns["label"] = (
        torch.tensor(labels).float().repeat_interleave(torch.tensor(batch.action_lengths))
    )
    return batch


def _ours(
    name: str, policy: Path, reference: Path, batch: Batch, params: dict[str, Any]
) -> tuple[float, dict[str, Tensor]]:
    learner, other = (_learner(folder) for folder in (policy, reference))
    if preferences.needs(name):
        batch.columns["ref_log_prob"] = other.statistics(batch)["log_prob"]
    found: dict[str, Tensor] = {}

    def keep() -> dict[str, float]:
        state = {key: p.grad for key, p in learner.decoder.named_parameters()}
        with torch.no_grad():
            for key, p in learner.decoder.named_parameters():
                p.copy_(state[key])
        with tempfile.TemporaryDirectory() as folder:  # under the names of the hub, in its order
            huggingface.save(learner.decoder, Path(folder))
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
            found.update({key: p.detach().clone() for key, p in model.named_parameters()})
        return {}

    learner.optimizer.step = keep  # type: ignore[method-assign]
    objective = PreferenceObjective(schema.Algorithm(loss=name, params={name: params}))
    return learner.update(batch, objective)["loss"], found


def _learner(folder: Path) -> Policy:
    optimizer = schema.OptimizerConfig(lr=1e-3)
    return Policy(huggingface.load(folder), optimizer, total_updates=1, temperature=1.0, micro_tokens=None,
                  dtype=torch.float32)  # fmt: skip


if __name__ == "__main__":
    main()
