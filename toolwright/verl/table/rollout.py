"""`actor_rollout_ref.rollout.*`: the engine, sampling and its lengths. Tools have a file of their own."""

from __future__ import annotations

from collections.abc import Iterator

from toolwright.verl.asked import VerlConfig
from toolwright.verl.machine import lacks
from toolwright.verl.row import (
    Changed,
    KeyRow,
    Note,
    Outcome,
    TranslatedSetting,
    TranslationProblem,
    always,
    part,
    refused,
    same,
    unused,
)

ROLLOUT = "actor_rollout_ref.rollout."
NAME, TOP_K, GREEDY = f"{ROLLOUT}name", f"{ROLLOUT}top_k", f"{ROLLOUT}do_sample"
PROMPT, RESPONSE, LONGEST = f"{ROLLOUT}prompt_length", f"{ROLLOUT}response_length", f"{ROLLOUT}max_model_len"
JUDGED = f"{ROLLOUT}val_kwargs."
SPLIT, MEMORY = f"{ROLLOUT}tensor_model_parallel_size", f"{ROLLOUT}gpu_memory_utilization"
# Forks name their rollouts after the engine beneath; `hf` generates with the trained model, as ours does.
ENGINES = {"hf": "native", "vllm_with_search": "vllm", "vllm_with_tool": "vllm", "sglang_async": "sglang"}


def engine(asked: VerlConfig) -> Iterator[Outcome]:
    said = asked[NAME]
    if said is None:
        yield TranslatedSetting("engine.name", "native", (NAME,))
        return
    name = ENGINES.get(said, said)
    missing = None if name in asked.machine.engines else lacks(name) or "it is not on this machine"
    if missing and asked.fit:
        yield Changed(f"{NAME} {said} → native: {missing}")
        name = "native"
    elif missing:
        yield TranslationProblem(
            f"{asked.shown(NAME)}: {missing}; leave it out for the native engine, or let --fit choose that"
        )
    yield TranslatedSetting("engine.name", name, (NAME,))


def of_vllm(asked: VerlConfig) -> Iterator[Outcome]:
    """What only vLLM's engine has, where it is the one that is used."""
    name = ENGINES.get(asked[NAME], asked[NAME])
    if name != "vllm" or name not in asked.machine.engines:
        for key, instead in (
            (MEMORY, "takes what its slots need: `engine.slots`"),
            (SPLIT, "has one device"),
        ):
            if asked.says(key):
                yield Note(f"{asked.shown(key)}: not used; the native engine {instead}")
        return
    if asked.says(SPLIT):
        most = max(asked.machine.devices, 1)
        split = min(asked.number(SPLIT), most) if asked.fit else asked.number(SPLIT)
        yield TranslatedSetting("engine.tensor_parallel_size", split, (SPLIT,))
    if asked.says(MEMORY):
        yield TranslatedSetting("engine.params.gpu_memory_utilization", float(asked[MEMORY]), (MEMORY,))


def sampling(asked: VerlConfig) -> Iterator[Outcome]:
    temperature = asked[f"{ROLLOUT}temperature"] if asked[GREEDY] else 0.0
    yield TranslatedSetting("rollout.temperature", float(temperature), (f"{ROLLOUT}temperature", GREEDY))
    yield TranslatedSetting("rollout.top_k", _limit(asked[TOP_K]), (TOP_K,))


def lengths(asked: VerlConfig) -> Iterator[Outcome]:
    prompt, response = asked.number(PROMPT), asked.number(RESPONSE)
    yield TranslatedSetting("rollout.max_tokens", response, (RESPONSE,))
    longest = asked[LONGEST]
    whole = prompt + response
    yield TranslatedSetting(
        "model.context", min(longest, whole) if longest else whole, (PROMPT, RESPONSE, LONGEST)
    )


def evaluation(asked: VerlConfig) -> Iterator[Outcome]:
    drawn = asked[f"{JUDGED}do_sample"]
    temperature = asked[f"{JUDGED}temperature"] if drawn else 0.0
    yield TranslatedSetting(
        "eval.temperature", float(temperature), (f"{JUDGED}temperature", f"{JUDGED}do_sample")
    )
    yield TranslatedSetting("eval.samples", asked[f"{JUDGED}n"], (f"{JUDGED}n",))
    for name in ("top_p", "top_k"):
        key = f"{JUDGED}{name}"
        if temperature and asked[key] != asked[f"{ROLLOUT}{name}"]:
            yield Note(f"{asked.shown(key)}: evaluation has the {name} of training")


def _limit(top_k: int) -> int:
    return max(int(top_k), 0)


ENGINE = "the engine decides; a matter of memory and speed"
ONE_DEVICE = "one device for now; a matter of speed"

ROWS: list[KeyRow] = [
    part(
        NAME,
        "engine.name",
        "`vllm`, `sglang` where Toolwright and this machine have them, else an error, or `native` with "
        "`--fit`; `hf` and unset → `native`",
        engine,
    ),
    same(f"{ROLLOUT}n", "rollout.samples", "attempts at each prompt"),
    part(f"{ROLLOUT}temperature", "rollout.temperature", "", sampling),
    part(GREEDY, "rollout.temperature", "false → 0, from which nothing can be learned: an error", sampling),
    part(TOP_K, "rollout.top_k", "−1 → 0: no limit", sampling),
    same(f"{ROLLOUT}top_p", "rollout.top_p", convert=float),
    part(PROMPT, "model.context", "prompt + response", lengths),
    part(
        RESPONSE,
        ("rollout.max_tokens", "model.context"),
        "of a turn; the context bounds all turns and tool results together, as verl counts",
        lengths,
    ),
    part(LONGEST, "model.context", "where it is shorter than prompt + response", lengths),
    part(f"{JUDGED}temperature", "eval.temperature", "", evaluation),
    part(f"{JUDGED}do_sample", "eval.temperature", "false → 0", evaluation),
    part(f"{JUDGED}n", "eval.samples", "", evaluation),
    part(f"{JUDGED}top_p", "rollout.top_p", "evaluation has that of training", evaluation),
    part(f"{JUDGED}top_k", "rollout.top_k", "evaluation has that of training", evaluation),
    same(f"{ROLLOUT}max_num_seqs", "engine.slots", "where it is set", unset="ours"),
    always(
        f"{ROLLOUT}calculate_log_probs", "sampled log-probabilities are always kept, and the gap is measured"
    ),
    always(f"{ROLLOUT}mode", "attempts advance each by itself"),
    always(f"{ROLLOUT}logprobs_mode", "log-probabilities are those at the sampling temperature"),
    always(f"{ROLLOUT}skip_tokenizer_init", "tokens in, tokens out"),
    always(
        f"{ROLLOUT}enable_prefix_caching", "a group's prompt is computed once, and an attempt keeps its cache"
    ),
    always(f"{ROLLOUT}load_format", "colocated engines share the learner's tensors"),
    unused(f"{ROLLOUT}seed", "the noise of a token follows from `run.seed`"),
    always(f"{ROLLOUT}full_determinism", "on a CPU a run repeats bit for bit"),
    refused(f"{ROLLOUT}ignore_eos", "an attempt ends where the model ends it"),
    refused(f"{ROLLOUT}use_fire_sampling", "there is no FIRE sampling"),
    refused(f"{ROLLOUT}over_sample_rate", "every attempt asked for is waited for", harmless=(0.0,)),
    refused(f"{ROLLOUT}quantization", "the engine has the learner's weights"),
    refused(f"{ROLLOUT}quantization_config_file", "the engine has the learner's weights"),
    refused(f"{ROLLOUT}qat", "there is no training for quantised weights"),
    refused(f"{ROLLOUT}mtp", "there is no multi-token prediction"),
    refused(f"{ROLLOUT}enable_rollout_routing_replay", "there are no mixtures of experts"),
    unused(f"{ROLLOUT}moe_load_balance_metrics_interval", "there are no mixtures of experts"),
    refused(f"{ROLLOUT}chat_scheduler", "write an agent of your own: `rollout.agent=path.py:name`"),
    part(MEMORY, "engine.params", "`vllm`; the native engine takes what its slots need", of_vllm),
    part(SPLIT, "engine.tensor_parallel_size", "`vllm`; the native engine has one device", of_vllm),
    *(
        unused(f"{ROLLOUT}{key}", ENGINE)
        for key in (
            "enforce_eager",
            "cudagraph_capture_sizes",
            "free_cache_engine",
            "enable_sleep_mode",
            "max_num_batched_tokens",
            "enable_chunked_prefill",
            "scheduling_policy",
            "layered_summon",
            "disable_log_stats",
            "multi_stage_wake_up",
            "engine_kwargs.*",
            "update_weights_bucket_megabytes",
            "checkpoint_engine.*",
        )
    ),
    *(
        unused(f"{ROLLOUT}{key}", ONE_DEVICE)
        for key in (
            "nnodes",
            "n_gpus_per_node",
            "data_parallel_size",
            "expert_parallel_size",
            "pipeline_model_parallel_size",
            "disaggregation.*",
        )
    ),
    unused(f"{ROLLOUT}trace.*", "the run folder keeps every attempt: `toolwright view RUN`"),
    unused(f"{ROLLOUT}prometheus.*", "metrics are in the run folder"),
    refused(f"{ROLLOUT}skip_rollout", "attempts are always sampled"),
    unused(f"{ROLLOUT}skip_dump_dir", "the run folder keeps every attempt"),
    unused(f"{ROLLOUT}skip_use_default_dir", "the run folder keeps every attempt"),
]
