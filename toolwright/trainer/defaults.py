"""Values for settings that are `auto`: lengths, precision and learning rates, by model, prompts and
memory."""

from __future__ import annotations

from dataclasses import dataclass

from toolwright.config import rates, schema
from toolwright.failures import UserError
from toolwright.learner.budget import ON_A_CPU
from toolwright.trainer import building, memory
from toolwright.trainer.building import needs_role
from toolwright.trainer.economy import economised

ANSWER = 256  # tokens of a turn: enough for some thought and a call
LEAST_ANSWER = 32  # a prompt that leaves less is one that is too long


@dataclass(frozen=True)
class DecidedConfig:
    config: schema.Config  # no size in it is `auto`
    lines: tuple[str, ...]  # what was decided, each with the key that changes it
    remedy: str  # where every prompt is longer than task.max_prompt_tokens


def depends_on_prompts(config: schema.Config) -> bool:
    """Return True if `decide` has to know the longest prompt."""
    return "auto" in (config.model.context, config.rollout.max_tokens)


def decide(
    config: schema.Config, *, prompt: int, turns: int, learns: bool = True, demonstration: int | None = None
) -> DecidedConfig:
    """Replace every `auto`. `prompt` and `demonstration` are the tokens of the longest one; `demonstration`
    is None if the run learns from no demonstrations. `turns` is the most turns that an attempt may take."""
    stated, max_tokens, most = config.model.context, config.rollout.max_tokens, config.task.max_prompt_tokens
    prompt = prompt if most == "auto" else min(prompt, most)
    context, why, remedy = _context(config, prompt, turns, learns, demonstration or 0)
    lines = [why] if why else []
    whole = min(filter(None, (context, config.rollout.max_total_tokens)))
    answer = _answer(prompt, whole) if max_tokens == "auto" else max_tokens
    if max_tokens == "auto":
        lines.append(f"answers of up to {answer:,} tokens a turn (rollout.max_tokens)")
    # Who states both lengths may want no more than a word; else there is to be room for an answer.
    longest = max(1, whole - (1 if "auto" not in (stated, max_tokens) else answer))
    longest = longest if most == "auto" else min(most, longest)
    config = config.changed(
        {"model.context": context, "rollout.max_tokens": answer, "task.max_prompt_tokens": longest}
    )
    config, saved = economised(config, learns=learns)
    lines += saved
    device = building.pick_device(config.model.device).type
    if learns and device == "cpu" and config.update.micro_tokens is None and _counts_memory(config):
        tokens = memory.micro_tokens(config)
        if tokens < ON_A_CPU:
            config = config.changed({"update.micro_tokens": tokens})
            lines.append(f"micro-batches of {tokens:,} tokens, for want of memory (update.micro_tokens)")
    lines.append(f"{config.model.dtype} on {device} (model.dtype)")
    if learns:
        config, more = with_rates(config, supervised=demonstration is not None)
        lines += more
    return DecidedConfig(config, tuple(lines), remedy)


def with_rates(config: schema.Config, *, supervised: bool = False) -> tuple[schema.Config, list[str]]:
    """Set learning rates by the size of the model. Also returns lines that explain them."""
    model, adapted = memory.planned(config.model), building.adapts(config.model)
    idle = model.shape.idle_parameters  # experts that a token does not use
    count = model.parameters - idle
    size = f"{count / 1e6:,.3g}M" if count < 1e9 else f"{count / 1e9:,.3g}B"
    size += " active parameters" if idle else " parameters"
    lines: list[str | None] = []
    for role, key, learned, of_whom in (
        ("policy", "optimizer.lr", "sft", "") if supervised else ("policy", "update.policy.lr", "policy", ""),
        ("critic", "update.critic.lr", "critic", "the critic's "),
    ):
        optimizer, usual = getattr(config.update, role), rates.usual(learned, count, adapted=adapted)
        if optimizer.lr == "auto":
            config = config.changed({f"update.{role}.lr": usual})
            line: str | None = (
                f"{of_whom}learning rate {usual:g}, for {'an adapter of ' * adapted}{size} ({key})"
            )
        else:
            line = rates.warning(key, optimizer.lr, usual, count) if config.model.path else None
        if role == "policy" or needs_role(config.algorithm, "critic"):
            lines.append(line)
    return config, [line for line in lines if line]


def served(model: schema.Model, engine: schema.EngineConfig) -> tuple[schema.Model, str]:
    """Configure a model that only answers: as much of its context as memory holds for every slot."""
    stated, context = model.context, building.context_of(model)
    if context is not None:
        model = model.changed({"context": context})
    alone = schema.Config(model=model, engine=engine, task=schema.TaskConfig(held_out_size=engine.slots))
    alone, _ = economised(alone, learns=False)
    if stated == "auto" and context is not None:
        context = memory.longest_context(alone, context, learns=False, every_slot=True)
        alone = alone.changed({"model.context": context})
    model = alone.model
    device = building.pick_device(model.device).type
    return model, f"context {context:,} tokens (--context), {model.dtype} on {device} (--dtype)"


def _context(
    config: schema.Config, prompt: int, turns: int, learns: bool, demonstration: int
) -> tuple[int, str | None, str]:
    """Return the longest sequence, a line that explains it, and a remedy if it is too short."""
    stated, max_tokens, total = (
        config.model.context,
        config.rollout.max_tokens,
        config.rollout.max_total_tokens,
    )
    has = building.context_of(config.model.changed({"context": "auto"}))
    model = config.model.path
    if has is not None and max_tokens != "auto" and max_tokens >= has:
        raise UserError(
            f"rollout.max_tokens={max_tokens} leaves no room for a prompt in the {has:,} tokens that {model} "
            "has; lower it, or take a model with a longer context"
        )
    longer = f"{model} has no more than {has} tokens: take a model with a longer context, shorten the prompts"
    if stated != "auto":
        if has is None or stated <= has:
            raised = "raise task.max_prompt_tokens, model.context or rollout.max_total_tokens"
            return stated, None, raised
        return has, f"model.context={stated:,} is more than {model} has: it is {has:,} tokens", longer
    room = min(filter(None, (has, total)), default=None)
    answer = _answer(prompt, room) if max_tokens == "auto" else max_tokens
    between = min(config.rollout.tool_tokens, answer) if turns > 1 else 0
    needed = max(prompt + turns * answer + (turns - 1) * between, demonstration)
    sum_of = f"longest prompt {prompt:,} + " + (
        f"{turns} turns × {answer:,} + {turns - 1} × {between:,} between them"
        if turns > 1
        else f"answer {answer:,}"
    )
    if needed == demonstration:
        sum_of = f"the longest example has {demonstration:,}"
    if total is not None and total < needed:
        needed, sum_of = total, f"rollout.max_total_tokens={total}"
    context = min(needed, has or needed)
    why = f"context {context:,} tokens{', all that the model has' if context < needed else ''}: {sum_of}"
    held = context
    if _counts_memory(config):
        frugal, _ = economised(config.changed({"model.context": context}), learns=learns)
        held = memory.longest_context(frugal, context, learns=learns)
    if held == context:
        raised = "raise task.max_prompt_tokens" + (" or rollout.max_total_tokens" if total else "")
        return context, f"{why} (model.context)", longer if context == has else raised
    slots = f"engine.slots={config.engine.slots}"
    return (
        held,
        f"context {held:,} tokens, for want of memory beside {slots}: {sum_of} (model.context, engine.slots)",
        f"memory has room for {held} tokens of context beside {slots}: lower engine.slots",
    )


def _answer(prompt: int, whole: int | None) -> int:
    """Return the tokens of a turn, given the tokens of prompts and answers together."""
    if whole is None:
        return ANSWER
    room = whole - prompt
    return min(ANSWER, room if room >= LEAST_ANSWER else max(1, whole // 4))


def _counts_memory(config: schema.Config) -> bool:
    """Return True if the run is in this process. The memory of a cluster's nodes is not known here."""
    return config.runtime.name == "local"
