"""Keys of what is learned and how: the algorithm, and how its gradient becomes updates."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from toolwright.config.block import Auto, BelowOne, Block, PositiveShare, Share
from toolwright.config.names import Registered

PREFERENCES = "toolwright.algorithms.preferences"


class KL(Block):
    """The pull towards the reference: in the reward, in the loss, or nowhere."""

    where: Literal["none", "reward", "loss"] = "none"
    """where the pull towards the reference acts"""
    estimator: Annotated[str, Registered("KL estimator", "toolwright.algorithms.kl", own=False)] = "k3"
    """k1, abs, k2, k3; with +, the gradient is the KL's in the first update of a step; unbiased: in every
    update"""
    coef: NonNegativeFloat = 0.001
    """coefficient of the KL"""
    target: PositiveFloat | None = None
    """adapt the coefficient to this KL; null: fixed"""
    horizon: PositiveInt = 10_000
    """trajectories over which the coefficient adapts"""

    @model_validator(mode="after")
    def _adapts_something(self) -> KL:
        if self.target is not None and self.where == "none":
            raise ValueError(f"algorithm.kl.target={self.target} has no effect if algorithm.kl.where=none")
        return self


class SelectionConfig(Block):
    """Which groups and trajectories are learned from."""

    dynamic_sampling: bool | Literal["reward"] = False
    """DAPO: sample groups again if all attempts are equally right; reward: if all rewards are equal, before
    overlong penalties"""
    max_rounds: PositiveInt = 4
    """limit on rounds of sampling in a step"""
    oversample: PositiveInt = 1
    """GRPO-RoC: sample this many times as many attempts, keep the cleanest right ones; 1: off"""
    replay: NonNegativeInt = 0
    """ARPO: keep a rare success at up to this many tasks, and put it into groups of failures; 0: off"""


class Correction(Block):
    """Importance weights for the gap between sampling and training probabilities."""

    mode: Literal["auto", "none", "truncate", "mask", "reject"] = "auto"
    """auto: truncate, unless the engine computes exactly what the learner does; reject: drop whole sequences,
    weigh the others 1"""
    level: Literal["token", "sequence", "geometric"] = "token"
    """sequence: the product of its tokens' ratios; geometric: their geometric mean"""
    low: NonNegativeFloat = 0.0
    """mask, reject: weights below it are dropped"""
    high: PositiveFloat = 2.0
    """truncate: the cap; mask, reject: weights above it are dropped"""
    alarm: PositiveFloat = 0.05
    """warn if a step's mean |Δ log-probability| is above this, or far above earlier steps"""

    @model_validator(mode="after")
    def _leaves_something(self) -> Correction:
        if self.mode in ("mask", "reject") and self.low >= self.high:
            raise ValueError(
                f"algorithm.correction.low={self.low} must be below algorithm.correction.high={self.high}"
            )
        return self


class Algorithm(Block):
    """What turns scores into a gradient."""

    name: str = "grpo"
    """the preset's name, for people to read"""
    adv_estimator: Annotated[str, Registered("advantage estimator", "toolwright.algorithms.advantages")] = (
        "grpo"
    )
    """what turns rewards into advantages"""
    loss: Annotated[str, Registered("loss", "toolwright.algorithms.losses", also=(PREFERENCES,))] = "ppo"
    """what turns advantages into a loss for each token"""
    aggregate: Annotated[str, Registered("aggregation", "toolwright.algorithms.aggregate", own=False)] = (
        "token-mean"
    )
    """how token losses become one number"""
    norm_tokens: PositiveInt | None = None
    """seq-mean-token-sum-norm: the constant; null: rollout.max_tokens × max_turns"""
    gamma: Share = 1.0
    """discount of later rewards"""
    lam: Share = 1.0
    """λ of generalised advantage estimation"""
    discount_per: Literal["token", "turn"] = "token"
    """where gamma and lam apply: at every token, or at the end of a turn"""
    step_rewards: bool = True
    """put a reward on the last token of the step that earned it; false: all at the end"""
    normalize_by_std: bool = True
    """`grpo`, `grpo_passk`: divide by the deviation"""
    clip_low: NonNegativeFloat = 0.2
    """clip of the ratio below 1"""
    clip_high: NonNegativeFloat = 0.2
    """clip of the ratio above 1"""
    clip_c: Annotated[float, Field(gt=1)] | None = 3.0
    """dual clip: bound of the ratio if the advantage is negative; null: no bound"""
    clip_value: PositiveFloat = 0.2
    """clip of the critic's value changes"""
    entropy_coef: float = 0.0
    """coefficient of the entropy bonus; with a target, its first value"""
    entropy_target: PositiveFloat | None = None
    """adapt the bonus to keep the mean entropy of a token at this value; null: fixed coefficient"""
    entropy_delta: PositiveFloat = 0.005
    """change of the adaptive coefficient in a step"""
    top_entropy_fraction: PositiveShare = 1.0
    """learn only from this share of the tokens, those of highest entropy"""
    params: dict[str, dict[str, Any]] = Field(default={})
    """further arguments by function: params.gigpo.step_weight=0.5"""
    kl: KL = KL()
    selection: SelectionConfig = SelectionConfig()
    correction: Correction = Correction()

    @property
    def preference(self) -> str | None:
        """The loss, where it learns from answers that the data compares and nothing is sampled."""
        return self.loss if self.loss in Registered("preference loss", PREFERENCES).names() else None

    @property
    def teacher(self) -> str | None:
        """The folder of the estimator's teacher."""
        return self.params.get(self.adv_estimator, {}).get("teacher")

    @model_validator(mode="after")
    def _weighs_what_is_replayed(self) -> Algorithm:
        if self.selection.replay and self.correction.mode in ("none", "reject"):
            raise ValueError(
                f"algorithm.selection.replay={self.selection.replay} learns from attempts of older policies, "
                f"which algorithm.correction.mode={self.correction.mode} does not weigh; set it to auto, "
                "truncate or mask"
            )
        return self

    @model_validator(mode="after")
    def _learns_one_way(self) -> Algorithm:
        if self.preference is None:
            return self
        stated = {
            "kl.where": self.kl.where != "none",
            "entropy_coef": self.entropy_coef != 0,
            "entropy_target": self.entropy_target is not None,
            "top_entropy_fraction": self.top_entropy_fraction != 1,
            "selection.dynamic_sampling": self.selection.dynamic_sampling,
            "selection.oversample": self.selection.oversample > 1,
            "selection.replay": bool(self.selection.replay),
        }
        for key in [key for key, is_set in stated.items() if is_set]:
            raise ValueError(
                f"algorithm.{key} is for sampled attempts, but algorithm.loss={self.preference} learns from "
                "the data's own answers; leave one of them out"
            )
        return self


class OptimizerConfig(Block):
    lr: PositiveFloat | Auto = 1e-3
    """learning rate; auto: depends on the number of parameters, and on whether an adapter is trained"""
    betas: tuple[BelowOne, BelowOne] = (0.9, 0.99)
    """betas of AdamW"""
    weight_decay: NonNegativeFloat = 0.0
    """weight decay of AdamW"""
    warmup_steps: NonNegativeInt = 0
    """updates over which the rate rises to lr"""
    decay: Literal["constant", "linear", "cosine"] = "constant"
    """how the rate falls until the end"""
    min_lr_ratio: Share = 0.0
    """where decay ends, as a share of lr"""
    max_grad_norm: PositiveFloat = 1.0
    """clip of the gradient's norm"""


class Update(Block):
    """How one step's trajectories become optimiser updates: epochs × minibatches of them."""

    epochs: PositiveInt = 1
    """passes over a step's trajectories"""
    minibatches: PositiveInt = 1
    """updates in one such pass"""
    micro_tokens: PositiveInt | None = None
    """tokens in one forward pass of a rank, padding included; null: as many as memory holds, on a CPU at most
    16,384"""
    optimizer_state: Literal["auto", "float32", "int8", "host"] = "auto"
    """precision of the two moments of AdamW; host: sharded state and weights stay in main memory between
    uses; auto: float32, or int8 if memory is short"""
    policy: OptimizerConfig = OptimizerConfig(lr="auto")
    critic: OptimizerConfig = OptimizerConfig(lr="auto")
    critic_warmup: NonNegativeInt = 0
    """number of first steps in which only the critic learns"""
