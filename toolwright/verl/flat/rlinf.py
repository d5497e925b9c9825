"""RLinf's YAML for language models: search, code and mathematics. Policies of robots are refused."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from toolwright.verl.flat import FlatTable
from toolwright.verl.translation import Translation

ACTOR, ROLLOUT = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout."
TASK = "runner.task_type"
TEXT_ONLY = "models here read and write text, and a robot's policy does not"
TASKS = {
    "embodied": TEXT_ONLY,
    "embodied_eval": TEXT_ONLY,
    "offline": TEXT_ONLY,
    "sft": "RLinf's supervised runs are of models that see or act; `toolwright sft` takes conversations",
    "reasoning_eval": "evaluate with `toolwright eval task=file task.held_out=FILE model.path=FOLDER`",
    "coding_online_rl": "its prompts come from an editor's users; docs/any-agent.md says how an agent that "
    "exists is trained",
}
ADVANTAGES = {"grpo": "grpo", "grpo_dynamic": "grpo", "gae": "gae", "reinpp": "reinforce_plus_plus"}
AVERAGED = ["group_level", "agent_level", "turn_level"]  # an attempt's tokens, then attempts
PARSERS = {"searchr1-qwen": "search", "rstar2-qwen": "hermes", "qwen2.5": "hermes"}
# Scorers, and how each differs from RLinf's.
REWARDS = {
    "searchr1": ("em", ""),
    "math": ("math", "a wrong answer earns 0, where RLinf takes 1 off; a group's advantages are the same"),
    "rstar2": ("math", "answers are compared by math-verify alone"),
}
UNLIMITED = 100_000  # a top_k above every vocabulary, as RLinf's files write it


def _special(values: Mapping[str, Any], result: Translation) -> None:
    kind = values.get(TASK, "reasoning")
    if kind != "reasoning":
        reason = TASKS.get(str(kind), f"it is one of reasoning, {', '.join(TASKS)}")
        result.refuse(reason, TASK)
        for key in (key for key in values if key != TASK):
            result.note("of a run that is refused", key)
        result.set("actor_rollout_ref.model.path", values.get("rollout.model.model_path", ""), TASK)
        result.read(*values)
        return
    if TASK in values:
        result.note("nothing to set: every run here is one", TASK)
    for part in PARTS:
        part(values, result)


def _run(values: Mapping[str, Any], result: Translation) -> None:
    steps, resume = values.get("runner.max_steps"), values.get("runner.resume_dir")
    if isinstance(steps, int) and steps > 0:
        result.set("trainer.total_training_steps", steps, "runner.max_steps")
    elif "runner.max_steps" in values:
        result.note("runner.max_epochs says it", "runner.max_steps")
    folder, name = values.get("runner.output_dir"), values.get("runner.experiment_name")
    if folder and name:
        result.set("trainer.default_local_dir", f"{folder}/{name}", "runner.output_dir")
    mode = "auto" if resume == "auto" else "resume_path" if resume else "disable"
    result.set("trainer.resume_mode", mode, "runner.resume_dir")
    if mode == "resume_path":
        result.set("trainer.resume_from_path", resume, "runner.resume_dir")
    result.set("trainer.val_before_train", False, "runner.val_check_interval")
    placed = [key for key in values if key.startswith("cluster.component_placement")]
    if placed:
        result.set("trainer.n_gpus_per_node", _devices(values, placed), *placed)
    result.read(*placed)


def _devices(values: Mapping[str, Any], placed: list[str]) -> int | str:
    """GPUs of a node by the highest number that a component has; `all`: those of the machine."""
    found = [int(number) for key in placed for number in re.findall(r"\d+", str(values[key]))]
    if not found or any(str(values[key]) == "all" for key in placed):
        return "all"
    return -(-(max(found) + 1) // int(values.get("cluster.num_nodes", 1)))


def _algorithm(values: Mapping[str, Any], result: Translation) -> None:
    kind, baseline = "algorithm.adv_type", "algorithm.use_reinpp_baseline"
    name = ADVANTAGES.get(str(result.whole[kind]))
    if name is None:
        result.refuse(f"advantages of language models are {', '.join(ADVANTAGES)}", kind)
    elif name == "reinforce_plus_plus" and values.get(baseline):
        result.set("algorithm.adv_estimator", f"{name}_baseline", kind, baseline)
    else:
        result.set("algorithm.adv_estimator", name, kind)
    whitened = "algorithm.normalize_advantages"
    if name == "gae" and values.get(whitened) is False:
        result.near("GAE's advantages are normalised over the step", whitened)
    elif name == "grpo" and values.get(whitened):
        result.near("a group's advantages are not normalised again", whitened)
    elif whitened in values:
        result.note("as it is here", whitened)


def _reference(values: Mapping[str, Any], result: Translation) -> None:
    """KL to the reference: in the loss, or in the reward of REINFORCE++."""
    penalty = "algorithm.kl_penalty_type"
    in_loss = (f"{ACTOR}use_kl_loss", f"{ACTOR}kl_loss_coef", f"{ACTOR}kl_loss_type")
    in_reward = ("algorithm.use_kl_in_reward", "algorithm.kl_ctrl.kl_coef", "algorithm.kl_penalty")
    for beta, keys in (("algorithm.kl_beta", in_loss), ("algorithm.reinpp_kl_beta", in_reward)):
        where, place, kind = keys
        if values.get(beta):
            result.set(where, True, beta)
            result.set(place, values[beta], beta)
            if penalty in values:
                result.set(kind, values[penalty], penalty)
        elif beta in values:
            result.note("no reference is asked for there, as it is here", beta)


def _mean(values: Mapping[str, Any], result: Translation) -> None:
    """The mean over losses. RLinf averages each micro-batch, unless all tokens count alike."""
    scales, mean = "algorithm.loss_scales", "algorithm.loss_agg_func"
    alike = "algorithm.use_valid_token_scale"
    size, packed = "algorithm.training_batch_size_per_gpu", "runner.enable_dynamic_batch_size"
    chosen, sources = result.whole[mean], (mean, alike)
    if values.get(scales):
        if list(values[scales]) != AVERAGED:
            result.refuse(f"all of {', '.join(AVERAGED)}, or none", scales)
        chosen, sources = "seq-mean-token-mean", (scales, mean)
        result.near(
            "the mean of an attempt's tokens, then of attempts, which RLinf comes to where a micro-batch has "
            "one turn",
            *sources,
        )
    elif chosen == "token-mean" and not values.get(alike):
        if values.get(size, 1) == 1 and not values.get(packed):
            chosen, sources = "seq-mean-token-mean", (mean, size)
        else:
            result.near("the mean over a minibatch's tokens, where RLinf takes each micro-batch's", *sources)
    result.set(f"{ACTOR}loss_agg_mode", chosen, *sources)


def _losses(values: Mapping[str, Any], result: Translation) -> None:
    for side in ("algorithm.clip_ratio_low", "algorithm.clip_ratio_high"):
        key = side if values.get(side) is not None else "algorithm.ratio_clip_eps"
        if values.get(key) is not None:
            result.set(f"{ACTOR}{side.partition('.')[2]}", values[key], key)
        elif side in values:
            result.note("algorithm.ratio_clip_eps says it", side)
    if values.get("algorithm.clip_ratio_c") is None:
        result.set(f"{ACTOR}clip_ratio_c", None, "algorithm.clip_ratio_c=null")
    parts, batch = values.get("algorithm.n_minibatches", 1), values.get("data.rollout_batch_size")
    if batch is not None:
        sources = ("algorithm.n_minibatches", "data.rollout_batch_size")
        result.set(f"{ACTOR}ppo_mini_batch_size", max(1, batch // parts), *sources)
    fixed, cap = "algorithm.importance_sampling_fix", "algorithm.importance_sampling_clip"
    if values.get(fixed):
        weighed = "algorithm.rollout_correction.rollout_is"
        result.set(weighed, "token", fixed)
        result.set(f"{weighed}_threshold", result.whole[cap], cap)


def _sampling(values: Mapping[str, Any], result: Translation) -> None:
    block = "algorithm.sampling_params."
    top_k, whole, stop = f"{block}top_k", "runner.seq_length", f"{block}stop"
    if top_k in values:
        limit = -1 if int(values[top_k]) >= UNLIMITED else values[top_k]
        result.set(f"{ROLLOUT}top_k", limit, top_k)
    prompt = values.get("data.max_prompt_length")
    if isinstance(values.get(whole), int) and isinstance(prompt, int):
        result.set("data.max_response_length", values[whole] - prompt, whole, "data.max_prompt_length")
    if any("</answer>" in str(one) for one in values.get(stop) or ()):
        result.set("toolwright.rollout.stop", ["</answer>"], f"{stop}, with the tags of calls")
    elif stop in values:
        result.set("toolwright.rollout.stop", values[stop] or [], stop)


def _data(values: Mapping[str, Any], result: Translation) -> None:
    skip, truth = "data.filter_prompt_by_length", "data.answer_key"
    result.set("data.filter_overlong_prompts", bool(values.get(skip)), skip)
    result.set("data.truncation", "right", skip)
    result.set("toolwright.task.params.answer", result.whole[truth], truth)


def _agent(values: Mapping[str, Any], result: Translation) -> None:
    """The loop: search with what a response has room for, or calls of tools as JSON."""
    parser, cut, most = "toolcall_parser", "tool_response_truncate_side", "max_tool_response_length"
    names = {name: f"agentloop.{name}" for name in (parser, cut, most, "max_turns")}
    if names[parser] not in values:
        return
    called = PARSERS.get(str(values[names[parser]]))
    if called is None:
        result.refuse(f"calls are read as {', '.join(PARSERS)}", names[parser])
    elif called == "search":
        result.set(f"{ROLLOUT}enable_search", True, names[parser])
        result.set(f"{ROLLOUT}max_turns", result.whole[names["max_turns"]], names["max_turns"])
        whole, prompt = values.get("runner.seq_length"), values.get("data.max_prompt_length")
        if isinstance(whole, int) and isinstance(prompt, int):
            result.set(f"{ROLLOUT}max_obs_length", whole - prompt, "runner.seq_length")
        for name in (most, cut):
            if names[name] in values:
                result.note("RLinf's search does not read it either", names[name])
    else:
        _turns(result, called, names[parser])
        if result.whole[names[cut]] != "middle":
            result.near("head and tail of a longer answer stay", names[cut])
        elif names[cut] in values:
            result.note("as it is here", names[cut])
    result.read(*names.values())


def _turns(result: Translation, called: str, parser: str) -> None:
    """Turns and calls of an agent with tools, with RLinf's limits where none is set."""
    multi = f"{ROLLOUT}multi_turn."
    result.set(f"{multi}enable", True, parser)
    result.set(f"{multi}format", called, parser)
    limits = ("max_user_turns", "max_assistant_turns", "max_parallel_calls", "max_tool_response_length")
    for name in limits:
        result.set(f"{multi}{name}", result.whole[f"agentloop.{name}"], f"agentloop.{name}")
        result.read(f"agentloop.{name}")


def _tools(values: Mapping[str, Any], result: Translation) -> None:
    address, judge = "tools.search.server_addr", "tools.codejudge."
    if address in values:
        result.set(f"{ROLLOUT}search_url", f"http://{values[address]}/retrieve", address)
        result.near("documents are numbered with their titles, where RLinf gives their addresses", address)
    host, port, most = (f"{judge}{name}" for name in ("host_addr", "host_port", "concurrency_limit"))
    if host in values:
        place = f"http://{values[host]}:{values.get(port, 8000)}"
        result.set("toolwright.tools.code_judge.url", place, host, port)
        result.set("toolwright.tools.code_judge.name", "python_code_with_standard_io", host, port)
    if most in values:
        result.set("toolwright.tools.code_judge.concurrency", values[most], most)


def _reward(values: Mapping[str, Any], result: Translation) -> None:
    kind = "reward.reward_type"
    if kind in values:
        scorer, differs = REWARDS.get(str(values[kind]), ("", ""))
        if scorer:
            result.set("toolwright.reward.function", scorer, kind)
        else:
            own = "name a function of yours with toolwright.reward.function=path.py:name"
            result.refuse(f"rewards of RLinf's that are here: {', '.join(REWARDS)}; {own}", kind)
        if differs:
            result.near(differs, kind)


def _optimizer(values: Mapping[str, Any], result: Translation) -> None:
    for role, target in (("actor", ACTOR), ("critic", "critic.")):
        first, second = (f"{role}.optim.adam_beta{number}" for number in (1, 2))
        if first in values or second in values:
            betas = [values.get(first, 0.9), values.get(second, 0.999)]
            result.set(f"{target}optim.betas", betas, first, second)
    schedule = "actor.lr_sched."
    names = ("lr_warmup_fraction", "lr_decay_iters", "lr_warmup_iters")
    part, whole, steps = (f"{schedule}{name}" for name in names)
    warmup = "toolwright.update.policy.warmup_steps"
    if values.get(part) is not None and values.get(whole):
        result.set(warmup, int(values[part] * values[whole]), part, whole)
    elif values.get(steps):
        result.set(warmup, values[steps], steps)
    rates = (f"{schedule}max_lr", "actor.optim.lr")
    if len({float(values[key]) for key in rates if values.get(key) is not None}) > 1:
        result.refuse("the learning rate has one highest value", *rates)


PARTS = (_run, _algorithm, _reference, _losses, _mean, _sampling, _data, _agent, _tools, _reward, _optimizer)
RLINF = FlatTable("rlinf", _special, library="RLinf")
