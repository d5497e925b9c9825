"""`actor_rollout_ref.rollout.*`: the engine, sampling and its lengths. Tools have a file of their own."""

from __future__ import annotations

from toolwright.verl.config import VerlConfig, missing_for
from toolwright.verl.table.data import IMAGES, attempts, makes_tasks, samples_key
from toolwright.verl.table.tools import shares_a_response
from toolwright.verl.translation import Translation

ROLLOUT = "actor_rollout_ref.rollout."
NAME, TOP_K, GREEDY = f"{ROLLOUT}name", f"{ROLLOUT}top_k", f"{ROLLOUT}do_sample"
PROMPT, RESPONSE, LONGEST = f"{ROLLOUT}prompt_length", f"{ROLLOUT}response_length", f"{ROLLOUT}max_model_len"
TURN = f"{ROLLOUT}single_turn_response_length"
TURNS = "env.max_steps"
JUDGED = f"{ROLLOUT}val_kwargs."
HEAT, COUNT = f"{ROLLOUT}val_temperature", f"{ROLLOUT}n_val"  # of DeepScaleR's forks
SPLIT, MEMORY = f"{ROLLOUT}tensor_model_parallel_size", f"{ROLLOUT}gpu_memory_utilization"
# Forks name their rollouts after the engine beneath; `hf` generates with the trained model, as ours does.
ENGINES = {"hf": "native", "vllm_with_search": "vllm", "vllm_with_tool": "vllm", "sglang_async": "sglang"}


def engine(verl: VerlConfig, to: Translation) -> None:
    verl_name = verl[NAME]
    if verl_name is None:
        to.set("engine.name", "native", NAME)
        return
    name = ENGINES.get(verl_name, verl_name)
    missing = None if name in verl.machine.engines else missing_for(name) or "it is not on this machine"
    if missing and verl.fit:
        instead = "vllm" if "vllm" in verl.machine.engines else "native"
        to.changes.append(f"{verl.name_of(NAME)} {verl_name} → {instead}: {missing}")
        name = instead
    elif missing:
        to.refuse(f"{missing}; leave it out for the native engine, or let --fit choose that", NAME)
    if name == "vllm" and verl.is_set(IMAGES) and verl[IMAGES]:
        to.near("the native engine, as vLLM is not given images here", NAME)
        name = "native"
    to.set("engine.name", name, NAME)


def of_vllm(verl: VerlConfig, to: Translation) -> None:
    """Settings of the vLLM engine alone. They are noted if another engine is used."""
    name = ENGINES.get(verl[NAME], verl[NAME])
    if name != "vllm" or name not in verl.machine.engines:
        for key, instead in (
            (MEMORY, "takes what its sequences need: `engine.slots`, `engine.params.cache_tokens`"),
            (SPLIT, "has one device"),
        ):
            if verl.is_set(key):
                to.note(f"not used; the native engine {instead}", key)
        return
    if verl.is_set(SPLIT):
        most = max(verl.machine.devices, 1)
        split = min(verl.number(SPLIT), most) if verl.fit else verl.number(SPLIT)
        to.set("engine.tensor_parallel_size", split, SPLIT)
    if verl.is_set(MEMORY):
        to.set("engine.params.gpu_memory_utilization", float(verl[MEMORY]), MEMORY)


def sampling(verl: VerlConfig, to: Translation) -> None:
    temperature = verl[f"{ROLLOUT}temperature"] if verl[GREEDY] else 0.0
    to.set("rollout.temperature", float(temperature), f"{ROLLOUT}temperature", GREEDY)
    to.set("rollout.top_p", float(verl[f"{ROLLOUT}top_p"]), f"{ROLLOUT}top_p")
    to.set("rollout.top_k", _limit(verl[TOP_K]), TOP_K)


def lengths(verl: VerlConfig, to: Translation) -> None:
    prompt, response = verl.number(PROMPT), verl.number(RESPONSE)
    turn = TURN if verl.is_set(TURN) else RESPONSE
    to.set("rollout.max_tokens", verl.number(turn), turn)
    if verl.family == "RAGEN":  # all turns of an attempt are one sequence there too
        to.set("model.context", verl.number(LONGEST), LONGEST)
        return
    if makes_tasks(verl):  # the lengths are of one turn, and all turns of an attempt are one sequence here
        whole = prompt + verl.number(TURNS) * verl.number(turn)
        to.set("model.context", whole, PROMPT, turn, TURNS)
        return
    if shares_a_response(verl):
        to.set("rollout.call_params.response_tokens", response, RESPONSE)
    whole = min(filter(None, (verl[LONGEST], prompt + response)))
    to.set("model.context", whole, PROMPT, RESPONSE, LONGEST)


def evaluation(verl: VerlConfig, to: Translation) -> None:
    """verl's agent loops go by the temperature, whose default is 0; `do_sample` counts where it is set."""
    drawn = f"{JUDGED}do_sample"
    greedy = verl.is_set(drawn) and not verl[drawn]
    heat, count = verl.first(f"{JUDGED}temperature", HEAT), verl.first(f"{JUDGED}n", COUNT)
    temperature = 0.0 if greedy else verl[heat]
    to.set("eval.temperature", float(temperature), heat, drawn)
    to.set("eval.samples", verl[count], count)
    if temperature:
        to.set("eval.sampling.top_p", float(verl[f"{JUDGED}top_p"]), f"{JUDGED}top_p")
        to.set("eval.sampling.top_k", _limit(verl[f"{JUDGED}top_k"]), f"{JUDGED}top_k")


def samples(verl: VerlConfig, to: Translation) -> None:
    to.set("rollout.samples", attempts(verl), samples_key(verl))


def _limit(top_k: int) -> int:
    return max(int(top_k), 0)
