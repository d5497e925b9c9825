"""What is learned from: which groups, which attempts, and what an attempt's length costs. Plain Python."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from toolwright.failures import UserError


def has_signal(accuracies: Sequence[float], tolerance: float = 1e-8) -> bool:
    """Whether a group's attempts differ at all in how right they are.

    DAPO's dynamic sampling (arXiv 2503.14476): a group that is all right or all wrong has no advantage and
    no gradient; it is sampled again. Rewards can differ where answers do not, by their length alone.
    """
    return len(accuracies) > 0 and max(accuracies) - min(accuracies) > tolerance


def overlong_penalty(length: int, *, max_length: int, buffer: int, penalty: float = 1.0) -> float:
    """What is added to the reward of an attempt of this length: 0, down to −penalty at the limit.

    DAPO's soft overlong punishment (arXiv 2503.14476, eq. 13): with a `buffer` of L tokens before the limit,

        0                                    length ≤ max − L
        penalty · (max − L − length) / L     within the buffer
        −penalty                             beyond the limit
    """
    if not 0 <= buffer <= max_length:
        raise UserError(
            f"the overlong buffer of {buffer} tokens must lie within the limit of {max_length}: "
            "set reward.overlong_buffer to less, or the limit to more"
        )
    if buffer == 0:
        return -penalty if length > max_length else 0.0
    over = length - (max_length - buffer)
    return -penalty * min(max(over / buffer, 0.0), 1.0)


def faults(*, tool_calls: int, tool_errors: int, format_faults: float = 0.0) -> float:
    """How unclean an attempt is: the part of its tool calls that failed, plus its faults of format.

    GRPO-RoC (arXiv 2508.20722): an attempt without tool calls counts as half faulty, so that one with clean
    calls is preferred to it.
    """
    return (tool_errors / tool_calls if tool_calls else 0.5) + format_faults


def resample_on_correct(
    correct: Sequence[bool], faults: Sequence[float], keep: int, rng: random.Random
) -> list[int]:
    """The `keep` attempts of a group that are learned from, as sorted positions.

    GRPO-RoC (arXiv 2508.20722), which samples 2G attempts and keeps G. Wrong attempts are thinned out
    uniformly, to keep all the ways of failing; right ones are drawn with probability inverse to their faults,
    so that clean ones go first. Both are thinned by the same factor, but while there are any of a kind at
    least one stays, or the group would have nothing to compare.
    """
    if len(correct) != len(faults):
        raise UserError(f"{len(correct)} attempts but {len(faults)} fault counts")
    if keep >= len(correct):
        return list(range(len(correct)))
    right = [i for i, good in enumerate(correct) if good]
    wrong = [i for i, good in enumerate(correct) if not good]
    wrong_kept = len(wrong) * keep // len(correct)
    wrong_kept = max(wrong_kept, min(1, len(wrong)) if keep > 1 else 0, keep - len(right))
    wrong_kept = min(wrong_kept, keep - min(1, len(right)))
    # Exponential keys: the smallest are a draw without replacement with weights 1 / (faults + ε).
    cost = {i: -math.log(1.0 - rng.random()) * (faults[i] + 1e-6) for i in right}
    cleanest = sorted(right, key=lambda i: (cost[i], i))[: keep - wrong_kept]
    return sorted(cleanest + rng.sample(wrong, wrong_kept))
