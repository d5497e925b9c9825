"""Trajectories packed into tensors, and back.

A batch holds its sequences end to end, without padding. What is learned lives on *actions*, the tokens the
policy sampled: an action column has one value for each of them, and the value at action i speaks of that
very token given all tokens before it. Prompts, tool results and observations are context: they are in
`tokens` and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor

from toolwright.trajectory import Trajectory


@dataclass
class Batch:
    tokens: Tensor  # [tokens] int64, all sequences end to end
    lengths: list[int]  # tokens of each sequence
    actions: Tensor  # [actions] int64, where in `tokens` each action stands
    action_lengths: list[int]  # actions of each sequence
    group: list[str]
    steps: Tensor  # [actions] int64, which step of its trajectory each action belongs to
    columns: dict[str, Tensor] = field(default_factory=dict)  # [actions] float32 each

    @classmethod
    def pack(cls, trajectories: Sequence[Trajectory]) -> Batch:
        tokens, actions, steps, sampled = [], [], [], []
        for trajectory in trajectories:
            step = 0
            for segment in trajectory.segments:
                if segment.source == "policy":
                    actions.extend(range(len(tokens), len(tokens) + len(segment.tokens)))
                    steps.extend([step] * len(segment.tokens))
                    sampled.extend(segment.log_probs)
                    step += 1
                tokens.extend(segment.tokens)
        return cls(
            tokens=torch.tensor(tokens, dtype=torch.int64),
            lengths=[sum(len(s.tokens) for s in t.segments) for t in trajectories],
            actions=torch.tensor(actions, dtype=torch.int64),
            action_lengths=[t.sampled_tokens for t in trajectories],
            group=[t.group for t in trajectories],
            steps=torch.tensor(steps, dtype=torch.int64),
            columns={"sampled_log_prob": torch.tensor(sampled, dtype=torch.float32)},
        )

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def mask(self) -> Tensor:
        """[sequences, longest] float32: 1 where a padded action column holds an action."""
        longest = max(self.action_lengths, default=0)
        return (torch.arange(longest)[None] < torch.tensor(self.action_lengths)[:, None]).float()

    def padded(self, column: Tensor | str) -> Tensor:
        """An action column as [sequences, longest], zero where there is no action. Differentiable."""
        values = self.columns[column] if isinstance(column, str) else column
        mask = self.mask.bool().to(values.device)
        return values.new_zeros(mask.shape).masked_scatter(mask, values)

    def flat(self, padded: Tensor) -> Tensor:
        """The inverse of `padded`."""
        return padded[self.mask.bool().to(padded.device)]

    def rewards(self, scores: Sequence[float]) -> Tensor:
        """One score a sequence, given at its last action: [sequences, longest]."""
        rewards = torch.zeros(len(self), max(self.action_lengths, default=0))
        rows = torch.arange(len(self))
        rewards[rows, torch.tensor(self.action_lengths) - 1] = torch.tensor(scores, dtype=torch.float32)
        return rewards

    def select(self, rows: Sequence[int]) -> Batch:
        """The batch of these sequences, in this order."""
        starts = [0, *accumulate(self.lengths)]
        action_starts = [0, *accumulate(self.action_lengths)]
        tokens = _ranges((starts[r], starts[r + 1]) for r in rows)
        actions = _ranges((action_starts[r], action_starts[r + 1]) for r in rows)
        lengths = [self.lengths[r] for r in rows]
        action_lengths = [self.action_lengths[r] for r in rows]
        moved = (
            [new - starts[r] for r, new in zip(rows, accumulate([0, *lengths[:-1]]), strict=True)]
            if rows
            else []
        )
        shift = torch.repeat_interleave(
            torch.tensor(moved, dtype=torch.int64), torch.tensor(action_lengths, dtype=torch.int64)
        )
        return Batch(
            tokens=self.tokens[tokens],
            lengths=lengths,
            actions=self.actions[actions] + shift,
            action_lengths=action_lengths,
            group=[self.group[r] for r in rows],
            steps=self.steps[actions],
            columns={name: column[actions] for name, column in self.columns.items()},
        )

    def split(self, token_budget: int) -> list[Batch]:
        """Micro-batches of at most `token_budget` tokens once padded, alike in length so that little is padding."""
        return [self.select(rows) for rows in partition(self.lengths, token_budget)]


def partition(lengths: Sequence[int], token_budget: int) -> list[list[int]]:
    """Rows sorted by length and cut where rows × longest would pass the budget; a longer row stands alone."""
    bins: list[list[int]] = []
    for row in sorted(range(len(lengths)), key=lambda r: (-lengths[r], r)):
        if bins and (len(bins[-1]) + 1) * lengths[bins[-1][0]] <= token_budget:
            bins[-1].append(row)
        else:
            bins.append([row])
    return bins


def _ranges(spans: Sequence[tuple[int, int]] | object) -> Tensor:
    pieces = [torch.arange(start, stop) for start, stop in spans]  # type: ignore[attr-defined]
    return torch.cat(pieces) if pieces else torch.zeros(0, dtype=torch.int64)
