"""Lines that a run prints before it starts: batch sizes, checkpoints, a learning rate that is too high."""

from __future__ import annotations

from pathlib import Path

from toolwright.config.schema import Checkpoint, Config, SupervisedConfig

LARGE = 50_000_000


def rate_line(config: Config | SupervisedConfig, parameters: int) -> str | None:
    """Warn of a learning rate that ruins a trained model: the default is for tiny models."""
    if isinstance(config, Config):
        key, rate, most, usual = "update.policy.lr", config.update.policy.lr, 5e-5, "1e-6 to 1e-5"
    else:
        key, rate, most, usual = "optimizer.lr", config.optimizer.lr, 1e-4, "1e-5 to 5e-5"
    path, lora = config.model.path, config.model.lora
    if path is None or parameters < LARGE or rate <= most:
        return None
    if lora.rank is not None or lora.path is not None or Path(path, "adapter_config.json").is_file():
        return None
    return (
        f"{key}={rate:g} is far above what a trained model of {parameters / 1e6:,.0f}M parameters survives; "
        f"{usual} is usual, or an adapter (model.lora.rank=16) with 1e-4"
    )


def batch_line(config: Config) -> str:
    """prompts × samples = trajectories → epochs × minibatches → updates; printed before a run starts."""
    rollout, update, selection = config.rollout, config.update, config.algorithm.selection
    trajectories = rollout.prompts * rollout.samples
    kept = ""
    if selection.resample_on_correct:
        kept = f" (kept of {rollout.samples * selection.oversample:,})"
    even = trajectories % update.minibatches == 0
    size = -(-trajectories // update.minibatches)
    return (
        f"{_count(rollout.prompts, 'prompt')} × {_count(rollout.samples, 'sample')}{kept}"
        f" = {_count(trajectories, 'trajectory', 'trajectories')} a step"
        f" → {_count(update.epochs, 'epoch')} × {_count(update.minibatches, 'minibatch', 'minibatches')}"
        f" of {'' if even else '≤ '}{size:,}"
        f" → {_count(update.epochs * update.minibatches, 'update')} a step"
        + (f"; micro-batches of ≤ {update.micro_tokens:,} tokens" if update.micro_tokens else "")
    )


def checkpoint_line(config: Checkpoint) -> str:
    """When checkpoints are written, each with its key."""
    by_steps = f"every {_count(config.every, 'step')} (checkpoint.every)" if config.every else ""
    by_time = f"every {config.minutes:g} minutes (checkpoint.minutes)" if config.minutes else ""
    often = [*filter(None, (by_steps, by_time))]
    if not often:
        return "a checkpoint only at the end (checkpoint.minutes)"
    return f"a checkpoint {', '.join(often)} and at the end"


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"
