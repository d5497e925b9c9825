"""GiGPO: an episode against its group's episodes, plus a step against the steps taken from the same state.

    A = A_episode + ω A_step,   A_x = (R − mean) / (std + ε) with `mean_std_norm`, R − mean with `mean_norm`

arXiv 2505.10978. Rows are steps: `scores` holds the episode's score on each of its rows, `step_rewards` what
the step earned, `anchor` the state it was taken from. With `gamma` they are discounted here, along each
trajectory. As in verl-agent, an episode is compared with the mean over its group's rows, so that the episode
parts of a group's steps add up to 0. Compared with the mean over trajectories (`episode_rows` false) they do
not: attempts that fail are the long ones, the sum is negative, and with `token-mean` all that every attempt
says, the end of a turn for one, is unlearned.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from torch import Tensor

from toolwright.algorithms.advantages import registry
from toolwright.algorithms.anchors import discount, episodes, same_state
from toolwright.algorithms.groups import Groups
from toolwright.failures import UserError


@registry.register("gigpo", needs={"step_reward", "anchor"})
def gigpo(
    *,
    scores: Tensor,
    mask: Tensor,
    group: Sequence[Hashable],
    step_rewards: Tensor,
    trajectory: Sequence[Hashable],
    anchor: Sequence[Hashable],
    mode: str = "mean_norm",
    step_weight: float = 1.0,
    gamma: float | None = None,
    similarity: float | None = None,
    episode_rows: bool = True,
    epsilon: float = 1e-6,
) -> tuple[Tensor, Tensor]:
    if mode not in ("mean_norm", "mean_std_norm"):
        raise UserError(f"gigpo: unknown mode {mode!r}; known: mean_norm, mean_std_norm")
    by_std, own = mode == "mean_std_norm", list(zip(group, trajectory, strict=True))
    counted: Sequence[Hashable] = range(len(group)) if episode_rows else own
    episode = episodes(scores, group, counted, by_std=by_std, epsilon=epsilon, lone_is_raw=episode_rows)
    returns = step_rewards if gamma is None else discount(step_rewards, own, gamma)
    states = Groups.of(same_state(group, anchor, similarity), scores.device)
    step = states.standardise(returns, by_std=by_std, epsilon=epsilon)
    advantages = (episode + step_weight * step)[:, None] * mask
    return advantages, advantages
