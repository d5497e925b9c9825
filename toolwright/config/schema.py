"""The typed configuration: every key, its type, its default and what it is for. Imports without torch."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from toolwright.config.agent_program import AgentProgram
from toolwright.config.block import Auto, BelowOne, Block, PositiveShare
from toolwright.config.learning import Algorithm, OptimizerConfig, Update
from toolwright.config.names import Registered
from toolwright.config.places import Runtime
from toolwright.registry import short_name


class RunConfig(Block):
    """Where a run lives and what makes it reproducible."""

    name: str | None = None
    """the run's folder in `dir`; null: made from algorithm, task and time"""
    dir: str = "runs"
    """where run folders are kept"""
    seed: int = 0
    """seed of every random choice of the run"""
    resume: bool = False
    """resume the run of this name from its last checkpoint"""
    threads: PositiveInt | None = None
    """CPU threads for torch; null: one for a tiny model or a model on a GPU, otherwise every core"""


class TaskConfig(Block):
    """What is attempted: a built-in task by name, or files of tasks."""

    name: Annotated[str, Registered("task", "toolwright.tasks.builtin")] = "arithmetic"
    """a built-in task, `file`, or path.py:name"""
    params: dict[str, Any] = Field(default={})
    """settings of that task, such as its difficulty"""
    train: str | list[str] | None = None
    """`file`: Parquet or JSON lines with the training tasks; a list for several files"""
    held_out: str | list[str] | None = None
    """`file`: the tasks for evaluation"""
    train_size: PositiveInt | None = None
    """use this many training tasks; null: all"""
    held_out_size: PositiveInt = 128
    """use this many held-out tasks"""
    order: Literal["shuffled", "as_listed", "difficulty"] = "shuffled"
    """shuffled: in a new order each epoch; difficulty: most often tasks that succeed only sometimes"""
    max_prompt_tokens: PositiveInt | Auto = "auto"
    """the longest prompt allowed, tool descriptions included; auto: leaves room for an answer"""
    long_prompts: Literal["skip", "error", "left", "right", "middle"] = "skip"
    """what to do with longer prompts; left, right, middle: the part to cut off"""


FRESH = ("tie_word_embeddings", "qk_norm")  # what model.config may say where there is no folder


class LoRA(Block):
    """An adapter that is learned in place of the weights themselves."""

    rank: PositiveInt | None = None
    """rank of the adapter; null: train all weights"""
    alpha: PositiveFloat = 32.0
    """the output of the adapter is scaled by alpha / rank"""
    targets: str | list[str] = "all-linear"
    """the matrices with an adapter, by the hub's names: [q_proj,v_proj]"""
    path: str | None = None
    """an adapter folder in peft's format to continue from"""


STORED: dict[str, Literal["bfloat16", "int8"]] = {"bfloat16_weights": "bfloat16", "int8_weights": "int8"}


class Model(Block):
    """The policy: a Hugging Face folder, or a fresh decoder of this shape."""

    path: str | None = None
    """a Hugging Face folder, or an adapter's; null: random weights of the shape below"""
    fast: Literal["auto", "yes", "no"] = "auto"
    """run with our own layers (Llama, Mistral, Qwen) or with the model's own forward; auto: our own if they
    fit"""
    lora: LoRA = LoRA()
    layers: PositiveInt = 3
    """without a path: layers"""
    width: PositiveInt = 96
    """without a path: width of the hidden states"""
    heads: PositiveInt = 4
    """without a path: attention heads"""
    kv_heads: PositiveInt = 4
    """without a path: key-value heads"""
    ffn: PositiveInt = 256
    """without a path: width of the feed-forward"""
    config: dict[str, Any] = Field(default={})
    """replaces values of config.json: config.max_position_embeddings=32768; without a path:
    tie_word_embeddings and qk_norm, both true by default"""
    context: PositiveInt | Auto = "auto"
    """the longest sequence, prompt and all turns included; auto: what prompts and turns need, up to what
    model and memory allow"""
    dtype: Literal["auto", "float32", "bfloat16", "bfloat16_weights", "int8_weights"] = "auto"
    """precision of matrix products; the last two also store weights in it: bfloat16_weights rounds updates at
    random, int8_weights is for the base of an adapter; auto: depends on device, model and memory"""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, …"""
    gradient_checkpointing: Literal["auto", "ffn"] | bool = "auto"
    """recompute activations in the backward pass to save memory: ffn costs a sixth more work, true (whole
    layers) a third; auto: as little as memory allows"""

    @model_validator(mode="after")
    def _shape(self) -> Model:
        strange = [] if self.path else [name for name in self.config if name not in FRESH]
        if strange:
            raise ValueError(
                f"model.config.{strange[0]}: a new decoder takes only {' and '.join(FRESH)}; other settings "
                "need a folder in model.path"
            )
        if self.path is None and self.width % (2 * self.heads):
            raise ValueError(f"model.width={self.width} must be a multiple of 2 × model.heads={self.heads}")
        if self.heads % self.kv_heads:
            raise ValueError(f"model.heads={self.heads} must be a multiple of model.kv_heads={self.kv_heads}")
        adapter = "rank" if self.lora.rank else "path" if self.lora.path else None
        if adapter and self.path is None:
            raise ValueError(
                f"model.lora.{adapter}={getattr(self.lora, adapter)} needs a model to adapt; set model.path "
                "as well"
            )
        return self

    @property
    def stored(self) -> Literal["float32", "bfloat16", "int8"]:
        """The precision in which matrices are stored."""
        return STORED.get(self.dtype, "float32")

    @property
    def recomputes(self) -> Literal[False, "ffn", True]:
        """What is computed again on the way back."""
        return False if self.gradient_checkpointing == "auto" else self.gradient_checkpointing


class EngineConfig(Block):
    """What generates tokens."""

    name: Annotated[str, Registered("engine", "toolwright.engines")] = "native"
    """a registered engine"""
    slots: PositiveInt = 128
    """sequences generated at once"""
    timeout_s: PositiveFloat = 600.0
    """time limit for a turn, for the start, and for new weights"""
    url: str | None = None
    """`http`: the server's address, http://host:port"""
    tensor_parallel_size: PositiveInt = 1
    """`vllm`: GPUs that share one model"""
    params: dict[str, Any] = Field(default={})
    """`vllm`: further arguments of its engine; `http`: api_key_env, model, retries; `native`: page_tokens,
    cache_tokens"""


class RolloutConfig(Block):
    """How a step's trajectories are sampled: prompts × samples of them."""

    prompts: PositiveInt = 16
    """tasks in a step"""
    samples: PositiveInt = 8
    """attempts at each task"""
    agent: Annotated[str | AgentProgram, Registered("agent", "toolwright.agents")] = "auto"
    """a registered agent, or path.py:name; auto: depends on what a task offers; your own program:
    agent.command='python my_agent.py', agent.function or agent.url"""
    temperature: NonNegativeFloat = 1.0
    """0 always takes the likeliest token"""
    top_p: PositiveShare = 1.0
    """1: no limit"""
    top_k: NonNegativeInt = 0
    """0: no limit"""
    max_tokens: PositiveInt | Auto = "auto"
    """new tokens in a turn; auto: 256, or what the longest prompt leaves"""
    stop: list[str] = Field(default=[])
    """strings that end a turn"""
    max_turns: PositiveInt = 8
    """turns an attempt may take"""
    max_total_tokens: PositiveInt | None = None
    """tokens of an attempt, prompt and answers included; null: model.context"""
    timeout_s: PositiveFloat = 300.0
    """time limit for an attempt"""
    environment_timeout_s: PositiveFloat = 30.0
    """time limit for one answer of an environment"""
    retries: NonNegativeInt = 2
    """how often an attempt is sampled again after an infrastructure failure"""
    retry_pause_s: NonNegativeFloat = 1.0
    """pause before a retry, doubled each time, because a server may be restarting"""
    call_format: Annotated[str, Registered("call format", "toolwright.agents.formats")] = "auto"
    """how calls are written; auto: as in the chat template, otherwise tags"""
    call_params: dict[str, Any] = Field(default={})
    """settings of that format: call_params.call=search for <search>; near_misses=explain, map or ignore: what
    to do with calls by other names or in other formats; result_characters: limit for a tool's result;
    response_tokens: limit for an attempt after its prompt"""
    tool_prompt: str | None = None
    """text about tools in the system message; {tools} stands for the call format's own text; null: only
    that"""
    max_calls: PositiveInt = 8
    """calls in one turn; they run at the same time"""
    tool_tokens: PositiveInt = 1024
    """tokens of a tool's result; a longer one keeps its head and tail"""
    tool_timeout_s: PositiveFloat = 30.0
    """time limit for one call"""
    template: dict[str, Any] = Field(default={})
    """further arguments of the chat template: template.enable_thinking=false"""

    @property
    def agent_name(self) -> str:
        """The name of a registered agent, or a reference; of a program, the agent that runs it."""
        return self.agent.kind if isinstance(self.agent, AgentProgram) else self.agent


class Reward(Block):
    """What an attempt is worth."""

    function: Annotated[str | None, Registered("scorer", "toolwright.rewards.builtin")] = None
    """a registered scorer, path.py:name or package.module:name; null: the task's own"""
    parts: dict[str, float] = Field(default={})
    """a weighted sum instead: weights by scorer, `task` for the task's own; other names need
    params.NAME.function"""
    params: dict[str, dict[str, Any]] = Field(default={})
    """settings by scorer: params.gsm8k.strict=true"""
    timeout_s: PositiveFloat = 30.0
    """time limit for one score"""
    workers: PositiveInt | None = None
    """processes that score in parallel; null: 1 for a function by path, otherwise one for each core, at most
    8"""
    sandbox_url: str | None = None
    """the sandbox that runs code against tests; null: the tools' sandbox, or one that the run starts"""
    truncated: Literal["auto", "keep", "penalise", "mask"] = "auto"
    """an attempt that ran out of tokens keeps its score, is penalised, or is not learned from; auto: penalise
    if there is an overlong_buffer, otherwise keep"""
    overlong_buffer: BelowOne = 0.0
    """penalise: the last part of the token limit, over which the penalty grows"""
    overlong_penalty: NonNegativeFloat = 1.0
    """penalise: the full penalty"""

    @property
    def penalises(self) -> bool:
        return self.truncated == "penalise" or (self.truncated == "auto" and self.overlong_buffer > 0)

    @model_validator(mode="after")
    def _one_sum(self) -> Reward:
        if self.function is not None and self.parts:
            raise ValueError("reward.function and reward.parts exclude each other; set one of them")
        known = Registered("scorer", "toolwright.rewards.builtin")
        for name in self.parts:
            function = self.params.get(name, {}).get("function", name)
            if not isinstance(function, str) or (":" in name and function == name):
                raise ValueError(
                    f"reward.parts.{name}: give the part a name of your own, and its function as "
                    "reward.params.NAME.function=path.py:name"
                )
            problem = None if function == "task" else known.problem(function)
            if problem:
                where = f"reward.parts.{name}" if function == name else f"reward.params.{name}.function"
                raise ValueError(f"{where}: {problem}")
        return self


class Evaluation(Block):
    every: NonNegativeInt = 10
    """steps between evaluations; 0: only after the last"""
    at_start: bool = True
    """evaluate before the first step as well"""
    samples: PositiveInt = 1
    """attempts at each held-out task"""
    temperature: NonNegativeFloat = 0.0
    """0 always takes the likeliest token"""
    sampling: dict[Literal["top_p", "top_k"], float] = Field(default={})
    """top_p and top_k of evaluation, instead of rollout's"""


class Checkpoint(Block):
    every: NonNegativeInt = 0
    """steps between checkpoints; 0: no checkpoints by step"""
    minutes: NonNegativeFloat = 10.0
    """also write a checkpoint after the first step that ends this long after the last one; 0: no checkpoints
    by time"""
    keep: PositiveInt = 2
    """how many checkpoints to keep; older ones are removed"""
    keep_attempts: PositiveInt | None = None
    """number of last steps whose attempts stay in rollouts/; null: all"""


class Train(Block):
    steps: PositiveInt = 100
    """steps of sampling and learning"""
    max_skips: PositiveInt = 5
    """non-finite updates in a row before the run stops"""


def _known_trackers(value: Any) -> Any:
    """A name or a list of names stands for trackers without settings."""
    names = [value] if isinstance(value, str) else value
    if isinstance(names, list) and all(isinstance(name, str) for name in names):
        value = {name: {} for name in names}
    known = Registered("tracker", "toolwright.observe.trackers")
    for name, settings in value.items() if isinstance(value, dict) else ():
        own = isinstance(settings, dict) and "path" in settings
        if not own and (problem := known.problem(str(name))):
            raise ValueError(f"trackers.{name}: {problem}")
    return value


Trackers = Annotated[dict[str, Any], BeforeValidator(_known_trackers)]


class CommandConfig(Block):
    """The whole configuration of a command that writes a run folder."""

    run: RunConfig = RunConfig()

    @classmethod
    def name_for(cls, composed: Any) -> str:
        """Name a run of a sweep after what it does, such as `grpo-sums`.

        `composed` is Hydra's tree, which is not validated yet.
        """
        raise NotImplementedError


class Config(CommandConfig):
    """The whole configuration of `train` and `eval`."""

    train: Train = Train()
    task: TaskConfig = TaskConfig()
    model: Model = Model()
    engine: EngineConfig = EngineConfig()
    rollout: RolloutConfig = RolloutConfig()
    tools: dict[str, Any] = Field(default={})
    """tools that the policy can call, by name, with their settings"""
    tool_config_path: str | None = None
    """a YAML file with such a `tools` block"""
    reward: Reward = Reward()
    algorithm: Algorithm = Algorithm()
    update: Update = Update()
    eval: Evaluation = Evaluation()
    checkpoint: Checkpoint = Checkpoint()
    trackers: Trackers = Field(default={})
    """trackers that show the run: wandb, tensorboard, …, each with its settings"""
    runtime: Runtime = Runtime()

    @classmethod
    def name_for(cls, composed: Any) -> str:
        return f"{short_name(composed.algorithm.name)}-{short_name(composed.task.name)}"

    @model_validator(mode="after")
    def _combinations(self) -> Config:
        if self.rollout.prompts * self.rollout.samples < self.update.minibatches:
            raise ValueError(
                f"update.minibatches={self.update.minibatches} is more than the "
                f"{self.rollout.prompts} × {self.rollout.samples} trajectories of a step"
            )
        if self.task.name == "file" and self.task.train is None and self.task.held_out is None:
            raise ValueError(
                "task.name=file needs task.train, a Parquet or JSON lines file, or task.held_out for eval"
            )
        rounded = self.model.stored == "bfloat16" and not (self.model.lora.rank or self.model.lora.path)
        if rounded and self.update.optimizer_state == "float32":
            raise ValueError("model.dtype=bfloat16_weights needs update.optimizer_state=int8 or auto")
        if self.model.stored == "int8" and self.model.path is None:
            raise ValueError("model.dtype=int8_weights is for the base of an adapter; set model.path")
        answer, context = self.rollout.max_tokens, self.model.context
        if answer != "auto" and context != "auto" and answer >= context:
            raise ValueError(
                f"rollout.max_tokens={answer} leaves no room for a prompt in model.context={context}"
            )
        return self


class SolvedAttempts(Block):
    """Which attempts are demonstrations, where those are a run's or the model's own."""

    bar: float = 1.0
    """lowest score of a demonstration: the scorer's `acc`, or without it the score"""
    per_task: PositiveInt = 4
    """limit on demonstrations of one task, so that easy tasks do not crowd out the others"""
    calls: Literal["auto", "clean", "any"] = "auto"
    """clean: at least one tool call, and none that failed; auto: clean if there are tools"""
    prompt: Literal["recorded", "own"] = "recorded"
    """the prompt of a run's attempts: as it was, or with this rollout.tool_prompt"""
    tool_prompt: str | None = None
    """`sampled`: text about tools to sample with, such as examples; the demonstrations have
    rollout.tool_prompt instead; null: rollout.tool_prompt"""


SAMPLED = "sampled"  # in `demonstrations`: the model's own attempts


class DataConfig(CommandConfig):
    """The keys of the commands that learn from data alone: `sft` and `rm`."""

    task: TaskConfig = TaskConfig()
    model: Model = Model()
    steps: PositiveInt | Auto = "auto"
    """updates; auto: as many as `epochs` says, or 200"""
    epochs: PositiveFloat | None = None
    """instead of steps: how often each example is learned; steps × batch = epochs × examples, rounded up"""
    batch: PositiveInt = 32
    """conversations in a step"""
    micro_tokens: PositiveInt | None = None
    """tokens in one forward pass, padding included; null: like update.micro_tokens of `train`"""
    optimizer: OptimizerConfig = OptimizerConfig(
        lr="auto", warmup_steps=10, decay="cosine", weight_decay=0.01
    )
    checkpoint: Checkpoint = Checkpoint()
    trackers: Trackers = Field(default={})
    """as in `train`"""

    @model_validator(mode="after")
    def _one_length(self) -> DataConfig:
        if self.epochs is not None and self.steps != "auto":
            raise ValueError(
                f"steps={self.steps} and epochs={self.epochs:g} exclude each other; set one of them, or "
                "steps=auto beside epochs if steps comes from a preset or from the run that is resumed"
            )
        return self


class SupervisedConfig(DataConfig):
    """The whole configuration of `sft`."""

    demonstrations: str | None = None
    """a file of conversations (docs/data.md); a run folder: the attempts that it solved; `sampled`: the
    model's own solutions of training tasks; null: the task's own"""
    attempts: SolvedAttempts = SolvedAttempts()
    rollout: RolloutConfig = RolloutConfig()
    """how calls are written, and how tasks are tried"""
    engine: EngineConfig = EngineConfig()
    """what tries tasks; the native one alone"""
    reward: Reward = Reward()
    """as in `train`: who says what is solved"""
    tools: dict[str, Any] = Field(default={})
    """as in `train`: the tools that demonstrations call"""
    tool_config_path: str | None = None
    """a YAML file with such a `tools` block"""

    @classmethod
    def name_for(cls, composed: Any) -> str:
        return f"sft-{short_name(composed.task.name)}"


class RewardModelConfig(DataConfig):
    """The whole configuration of `rm`."""

    task: TaskConfig = TaskConfig(name="preferences")
    model: Model = Model()
    """what the reward model begins as; its head begins at 0"""
    batch: PositiveInt = 32
    """pairs in a step"""
    eval_every: NonNegativeInt = 50
    """steps between evaluations on held-out pairs; 0: before and after"""

    @classmethod
    def name_for(cls, composed: Any) -> str:
        return f"rm-{short_name(composed.task.name)}"
