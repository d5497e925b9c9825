"""Keys of what is learned and how: the algorithm, and how its gradient becomes updates."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from toolwright.config.block import Auto, Block
from toolwright.config.names import Registered

PREFERENCES = "toolwright.algorithms.preferences"


class KL(Block):
    """The pull towards the reference: in the reward, in the loss, or nowhere."""

    where: Literal["none", "reward", "loss"] = "none"
    estimator: Annotated[str, Registered("KL estimator", "toolwright.algorithms.kl")] = Field(
        default="k3",
        description="k1, abs, k2, k3; with + the gradient is the KL's in a first update, unbiased: in all",
    )
    coef: float = Field(default=0.001, ge=0)
    target: PositiveFloat | None = Field(
        default=None, description="adapt the coefficient to this KL; null: fixed"
    )
    horizon: PositiveInt = Field(default=10_000, description="trajectories over which it adapts")

    @model_validator(mode="after")
    def _adapts_something(self) -> KL:
        if self.target is not None and self.where == "none":
            raise ValueError(f"algorithm.kl.target={self.target} has no effect if algorithm.kl.where=none")
        return self


class SelectionConfig(Block):
    """Which groups and trajectories are learned from."""

    dynamic_sampling: bool | Literal["reward"] = Field(
        default=False,
        description="DAPO: re-sample groups whose attempts are all equally right; reward: equally rewarded, "
        "before overlong penalties",
    )
    max_rounds: PositiveInt = Field(default=4, description="the most rounds of sampling in a step")
    oversample: PositiveInt = Field(
        default=1,
        description="GRPO-RoC: sample this many times as many attempts, keep the cleanest right ones; 1: off",
    )
    replay: int = Field(
        default=0,
        ge=0,
        description="ARPO: keep a rare success at this many tasks, to fill groups of failures; 0: off",
    )


class Correction(Block):
    """Importance weights for the gap between sampling and training probabilities."""

    mode: Literal["auto", "none", "truncate", "mask", "reject"] = Field(
        default="auto",
        description="auto: truncate, unless the engine computes exactly as the learner does; "
        "reject: drop whole sequences, weigh the others 1",
    )
    level: Literal["token", "sequence", "geometric"] = Field(
        default="token", description="sequence: the product of its tokens' ratios; geometric: their mean"
    )
    low: float = Field(default=0.0, ge=0, description="mask, reject: weights below it are dropped")
    high: PositiveFloat = Field(
        default=2.0, description="truncate: the cap; mask, reject: weights above it are dropped"
    )
    alarm: PositiveFloat = Field(
        default=0.05,
        description="warn of a step whose mean |Δ log-probability| is above it, or far above earlier ones",
    )

    @model_validator(mode="after")
    def _leaves_something(self) -> Correction:
        if self.mode in ("mask", "reject") and self.low >= self.high:
            raise ValueError(
                f"algorithm.correction.low={self.low} must be below algorithm.correction.high={self.high}"
            )
        return self


class Algorithm(Block):
    """What turns scores into a gradient."""

    name: str = Field(default="grpo", description="the preset's name, for reading")
    adv_estimator: Annotated[str, Registered("advantage estimator", "toolwright.algorithms.advantages")] = (
        Field(default="grpo", description="what turns rewards into advantages")
    )
    loss: Annotated[str, Registered("loss", "toolwright.algorithms.losses", also=(PREFERENCES,))] = Field(
        default="ppo", description="what turns advantages into a loss for each token"
    )
    aggregate: Annotated[str, Registered("aggregation", "toolwright.algorithms.aggregate")] = Field(
        default="token-mean", description="how token losses become one number"
    )
    norm_tokens: PositiveInt | None = Field(
        default=None,
        description="seq-mean-token-sum-norm: the constant; null: rollout.max_tokens × max_turns",
    )
    gamma: float = Field(default=1.0, ge=0, le=1)
    lam: float = Field(default=1.0, ge=0, le=1)
    discount_per: Literal["token", "turn"] = Field(
        default="token", description="where gamma and lam apply: at every token, or where a turn ends"
    )
    step_rewards: bool = Field(
        default=True,
        description="a reward lies on the last token of the step that earned it; false: all at the end",
    )
    normalize_by_std: bool = True
    clip_low: float = Field(default=0.2, ge=0)
    clip_high: float = Field(default=0.2, ge=0)
    clip_c: Annotated[float, Field(gt=1)] | None = Field(
        default=3.0,
        description="dual clip: bound of the ratio where the advantage is negative; null: no bound",
    )
    clip_value: PositiveFloat = Field(default=0.2, description="clip of the critic's change")
    entropy_coef: float = Field(
        default=0.0, description="weight of the entropy bonus; its first value if there is a target"
    )
    entropy_target: PositiveFloat | None = Field(
        default=None, description="adapt the bonus to hold the mean entropy of a token here; null: fixed"
    )
    entropy_delta: PositiveFloat = Field(
        default=0.005, description="how far the adaptive coefficient moves in a step"
    )
    top_entropy_fraction: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="learn only from this fraction of the tokens, those with the highest entropy",
    )
    params: dict[str, dict[str, Any]] = Field(
        default={}, description="further arguments by function: params.gigpo.step_weight=0.5"
    )
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
    lr: PositiveFloat | Auto = Field(
        default=1e-3, description="auto: by the number of parameters, and whether an adapter is learned"
    )
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = Field(default=0.0, ge=0)
    warmup_steps: int = Field(default=0, ge=0)
    decay: Literal["constant", "linear", "cosine"] = "constant"
    min_lr_ratio: float = Field(default=0.0, ge=0, le=1, description="where decay ends, as a fraction of lr")
    max_grad_norm: PositiveFloat = 1.0


class Update(Block):
    """How one step's trajectories become optimiser updates: epochs × minibatches of them."""

    epochs: PositiveInt = 1
    minibatches: PositiveInt = 1
    micro_tokens: PositiveInt | None = Field(
        default=None,
        description="tokens in one forward pass of a rank, padding counted; null: as many as memory holds, "
        "on a CPU at most 16,384",
    )
    optimizer_state: Literal["auto", "float32", "int8", "host"] = Field(
        default="auto",
        description="precision of the two moments of AdamW; host: sharded state and weights stay in main "
        "memory between uses; auto: float32, or int8 if memory is short",
    )
    policy: OptimizerConfig = OptimizerConfig(lr="auto")
    critic: OptimizerConfig = OptimizerConfig(lr="auto")
    critic_warmup: int = Field(default=0, ge=0, description="first steps in which only the critic learns")
