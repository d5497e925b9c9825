"""Lines that a run prints before it starts: batch sizes, ranks, checkpoints."""

from __future__ import annotations

from toolwright.config.places import Runtime
from toolwright.config.schema import Checkpoint, Config


def batch_line(config: Config) -> str:
    """prompts × samples = trajectories → epochs × minibatches → updates; printed before a run starts."""
    rollout, update, selection = config.rollout, config.update, config.algorithm.selection
    trajectories = rollout.prompts * rollout.samples
    sample = "sample" if config.algorithm.preference is None else "recorded answer"
    kept = ""
    if selection.oversample > 1:
        kept = f" (kept of {rollout.samples * selection.oversample:,})"
    even = trajectories % update.minibatches == 0
    size = -(-trajectories // update.minibatches)
    return (
        f"{_count(rollout.prompts, 'prompt')} × {_count(rollout.samples, sample)}{kept}"
        f" = {_count(trajectories, 'trajectory', 'trajectories')} a step"
        f" → {_count(update.epochs, 'epoch')} × {_count(update.minibatches, 'minibatch', 'minibatches')}"
        f" of {'' if even else '≤ '}{size:,}"
        f" → {_count(update.epochs * update.minibatches, 'update')} a step"
        + (f"; micro-batches of ≤ {update.micro_tokens:,} tokens" if update.micro_tokens else "")
    )


def ranks_line(runtime: Runtime) -> str:
    """Describe how the policy's processes divide its work; empty for one process."""
    layout = runtime.placement.policy.layout
    if runtime.name != "ray" or layout.size == 1:
        return ""
    shares = {"sequences": layout.data, "the tokens of a pass": layout.sequence, "matrices": layout.tensor}
    told = [f"{what} among {count}" for what, count in shares.items() if count > 1]
    return f"the policy over {layout.size} ranks, which divide {', '.join(told)}"


def checkpoint_line(config: Checkpoint) -> str:
    """Describe when checkpoints are written, and by which key."""
    by_steps = f"every {_count(config.every, 'step')} (checkpoint.every)" if config.every else ""
    by_time = f"every {config.minutes:g} minutes (checkpoint.minutes)" if config.minutes else ""
    often = [*filter(None, (by_steps, by_time))]
    if not often:
        return "a checkpoint only at the end (checkpoint.minutes)"
    return f"a checkpoint {', '.join(often)} and at the end"


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"
