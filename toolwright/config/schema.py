"""The typed configuration: every key, its type, its default and what it is for. Imports without torch."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, model_validator

NonNegative = Field(ge=0)


class Block(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class Run(Block):
    """Where a run lives and what makes it reproducible."""

    name: str | None = Field(
        None, description="folder under `dir`; made from algorithm, task and time if null"
    )
    dir: str = Field("runs", description="where run folders are kept")
    seed: int = Field(0, description="every random choice of the run follows from it")
    resume: bool = Field(False, description="go on with the run of this name from its last checkpoint")
    threads: int | None = Field(None, ge=1, description="CPU threads for torch; null: one a physical core")


class TaskSet(Block):
    """What is attempted: a built-in task by name, or files of tasks."""

    name: str = Field("arithmetic", description="a built-in task, `file`, or path.py:name")
    params: dict[str, Any] = Field({}, description="settings of that task, its difficulty among them")
    train: str | None = Field(None, description="`file`: Parquet or JSON lines with the training tasks")
    held_out: str | None = Field(None, description="`file`: the tasks of evaluation")
    train_size: PositiveInt | None = Field(None, description="use this many training tasks; null: all")
    held_out_size: PositiveInt = Field(128, description="use this many held-out tasks")
    shuffle: bool = Field(True, description="a new order of tasks each epoch")
    max_prompt_tokens: PositiveInt = Field(512, description="the longest prompt allowed")
    long_prompts: Literal["skip", "error"] = Field("skip", description="what to do with a longer one")


class Model(Block):
    """The policy: a Hugging Face folder, or a fresh decoder of this shape."""

    path: str | None = Field(
        None, description="a Hugging Face folder; null: random weights of the shape below"
    )
    layers: PositiveInt = 3
    width: PositiveInt = 96
    heads: PositiveInt = 4
    kv_heads: PositiveInt = 4
    ffn: PositiveInt = 256
    tied: bool = Field(True, description="share the embedding with the output layer")
    context: PositiveInt = Field(256, description="the longest sequence, prompt and all turns together")
    dtype: Literal["float32", "bfloat16"] = "float32"
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1, …")

    @model_validator(mode="after")
    def _shape(self) -> Model:
        if self.path is None and self.width % (2 * self.heads):
            raise ValueError(f"width={self.width} must be a multiple of 2 × heads={2 * self.heads}")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads={self.heads} must be a multiple of kv_heads={self.kv_heads}")
        return self


class Engine(Block):
    """What generates tokens."""

    name: str = Field("native", description="a registered engine")
    slots: PositiveInt = Field(64, description="sequences generated side by side")
    timeout_s: PositiveFloat = Field(600.0, description="the longest one generation may take")


class Rollout(Block):
    """How a step's trajectories are sampled: prompts × samples of them."""

    prompts: PositiveInt = Field(16, description="tasks a step")
    samples: PositiveInt = Field(8, description="attempts at each task")
    agent: str = Field("single_turn", description="a registered agent, or path.py:name")
    temperature: float = Field(1.0, ge=0, description="0 takes the likeliest token")
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0, description="0: no limit")
    max_tokens: PositiveInt = Field(32, description="new tokens a turn")
    stop: list[str] = Field([], description="strings that end a turn")
    max_turns: PositiveInt = Field(8, description="turns an attempt may take")
    timeout_s: PositiveFloat = Field(300.0, description="the longest one attempt may take")
    retries: int = Field(2, ge=0, description="how often an attempt lost to infrastructure is sampled again")


class Reward(Block):
    """What an attempt is worth."""

    function: str | None = Field(
        None, description="a registered scorer, path.py:name or package.module:name; null: the task's own"
    )
    timeout_s: PositiveFloat = Field(30.0, description="the longest one score may take")
    overlong_buffer: int = Field(
        0, ge=0, description="DAPO: the last tokens before the limit, over which a penalty grows"
    )
    overlong_penalty: float = Field(1.0, ge=0, description="DAPO: that penalty in full")


class KL(Block):
    """The pull towards the reference: in the reward, in the loss, or nowhere."""

    where: Literal["none", "reward", "loss"] = "none"
    estimator: str = Field("k3", description="k1, abs, k2, k3, or one of them with + for its own gradient")
    coef: float = Field(0.001, ge=0)
    target: PositiveFloat | None = Field(None, description="adapt the coefficient to this KL; null: fixed")
    horizon: PositiveInt = Field(10_000, description="trajectories over which it adapts")


class Selection(Block):
    """Which groups and trajectories are learned from."""

    dynamic_sampling: bool = Field(False, description="DAPO: re-sample groups whose rewards are all equal")
    max_rounds: PositiveInt = Field(4, description="rounds of sampling a step at the most")
    resample_on_correct: bool = Field(
        False, description="GRPO-RoC: sample more, keep the cleanest of the right"
    )
    oversample: PositiveInt = Field(2, description="GRPO-RoC: attempts sampled for each one kept")


class Correction(Block):
    """Importance weights for the gap between sampling and training probabilities."""

    mode: Literal["none", "truncate", "mask"] = "none"
    level: Literal["token", "sequence"] = "token"
    low: float = Field(0.0, ge=0, description="mask: weights below it are dropped")
    high: PositiveFloat = Field(2.0, description="truncate: the cap; mask: weights above it are dropped")


class Algorithm(Block):
    """What turns scores into a gradient."""

    name: str = Field("grpo", description="the preset's name, for reading")
    adv_estimator: str = "grpo"
    loss: str = "ppo"
    aggregate: str = Field("token-mean", description="how token losses become one number")
    norm_tokens: PositiveInt | None = Field(
        None, description="seq-mean-token-sum-norm: the constant; null: rollout.max_tokens × max_turns"
    )
    gamma: float = Field(1.0, ge=0, le=1)
    lam: float = Field(1.0, ge=0, le=1)
    normalize_by_std: bool = True
    clip_low: float = Field(0.2, ge=0)
    clip_high: float = Field(0.2, ge=0)
    clip_c: float = Field(
        3.0, gt=1, description="dual clip: bound of the ratio where the advantage is negative"
    )
    clip_value: PositiveFloat = Field(0.2, description="clip of the critic's change")
    entropy_coef: float = 0.0
    params: dict[str, dict[str, Any]] = Field(
        {}, description="further arguments by function: params.gigpo.step_weight=0.5"
    )
    kl: KL = KL()
    selection: Selection = Selection()
    correction: Correction = Correction()


class Optimizer(Block):
    lr: PositiveFloat = 1e-3
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = Field(0.0, ge=0)
    warmup_steps: int = Field(0, ge=0)
    decay: Literal["constant", "linear", "cosine"] = "constant"
    min_lr_ratio: float = Field(0.0, ge=0, le=1, description="where decay ends, as a part of lr")
    max_grad_norm: PositiveFloat = 1.0


class Update(Block):
    """How one step's trajectories become optimiser updates: epochs × minibatches of them."""

    epochs: PositiveInt = 1
    minibatches: PositiveInt = 1
    micro_tokens: PositiveInt = Field(16_384, description="tokens in one forward pass, padding counted")
    policy: Optimizer = Optimizer()
    critic: Optimizer = Optimizer(lr=3e-3)
    critic_warmup: int = Field(0, ge=0, description="first steps in which only the critic learns")


class Evaluation(Block):
    every: int = Field(10, ge=0, description="steps between evaluations; 0: only at the start and the end")
    samples: PositiveInt = 1
    temperature: float = Field(0.0, ge=0)


class Checkpoint(Block):
    every: int = Field(0, ge=0, description="steps between checkpoints; 0: only at the end")
    keep: PositiveInt = Field(2, description="older ones are removed")


class Runtime(Block):
    name: Literal["local"] = "local"


class Train(Block):
    steps: PositiveInt = 100
    max_skips: PositiveInt = Field(5, description="non-finite updates in a row before the run stops")


class Config(Block):
    """The whole configuration of `train` and `eval`."""

    run: Run = Run()
    train: Train = Train()
    task: TaskSet = TaskSet()
    model: Model = Model()
    engine: Engine = Engine()
    rollout: Rollout = Rollout()
    reward: Reward = Reward()
    algorithm: Algorithm = Algorithm()
    update: Update = Update()
    eval: Evaluation = Evaluation()
    checkpoint: Checkpoint = Checkpoint()
    runtime: Runtime = Runtime()

    @model_validator(mode="after")
    def _combinations(self) -> Config:
        if self.rollout.prompts * self.rollout.samples < self.update.minibatches:
            raise ValueError(
                f"update.minibatches={self.update.minibatches} is more than the "
                f"{self.rollout.prompts} × {self.rollout.samples} trajectories of a step"
            )
        if self.task.name == "file" and self.task.train is None:
            raise ValueError("task.name=file needs task.train, a Parquet or JSON lines file")
        if self.rollout.max_tokens >= self.model.context and self.model.path is None:
            raise ValueError(
                f"rollout.max_tokens={self.rollout.max_tokens} leaves no room for a prompt in "
                f"model.context={self.model.context}"
            )
        return self


class SupervisedConfig(Block):
    """The whole configuration of `sft`."""

    run: Run = Run()
    task: TaskSet = TaskSet()
    model: Model = Model()
    steps: PositiveInt = 200
    batch: PositiveInt = Field(32, description="conversations a step")
    micro_tokens: PositiveInt = 16_384
    optimizer: Optimizer = Optimizer(lr=3e-3, warmup_steps=10, decay="cosine", weight_decay=0.01)
    demonstrations: str | None = Field(
        None, description="Parquet or JSON lines with `messages`; null: the task's own demonstrations"
    )
    eval_max_tokens: PositiveInt = Field(
        32, description="new tokens when held-out tasks are tried at the end"
    )
