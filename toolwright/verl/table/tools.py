"""Tools and search: `multi_turn.*`, `agent.*`, and the `tool_config.*` and `enable_search` of forks.

Which loop attempts a task is chosen as the tool-enabled verl chooses: search, else tools, else a single turn.
"""

from __future__ import annotations

from pathlib import Path

import yaml

from toolwright.failures import UserError
from toolwright.tasks.interaction import read_interactions
from toolwright.tools.settings import settings_of
from toolwright.verl.config import VerlConfig
from toolwright.verl.table.data import WORLD, makes_tasks, of_search_r1
from toolwright.verl.translation import Translation

ROLLOUT = "actor_rollout_ref.rollout."
RESPONSE = f"{ROLLOUT}response_length"
SEARCH, SEARCH_URL, SEARCH_TOPK = f"{ROLLOUT}enable_search", f"{ROLLOUT}search_url", f"{ROLLOUT}search_topk"
TURNS, SEEN = f"{ROLLOUT}max_turns", f"{ROLLOUT}max_obs_length"
TOOL = f"{ROLLOUT}tool_config."
MULTI = f"{ROLLOUT}multi_turn."
LOOP = f"{ROLLOUT}agent.default_agent_loop"
TOOLS_FILE = (f"{MULTI}tool_config_path", "data.tool_config_path")
MOST_TURNS = (f"{MULTI}max_assistant_turns", f"{MULTI}max_turns")
ANSWERED = f"{MULTI}max_user_turns"
URL, TOPK, SEARCHES = "retriever.url", "retriever.topk", "max_turns"  # Search-R1's
LOOKED_UP = "env.search.search_url"  # verl-agent's
MASKED = "actor_rollout_ref.actor.state_masking"

AGENT, SEARCHER, TALKER = "tool_use", "search", "interaction"
USERS = f"{MULTI}interaction_config_path"
LOOPS = f"{ROLLOUT}agent.agent_loop_config_path"
OWN_LOOP = "write a loop of your own as `rollout.agent=path.py:name` (docs/agents.md)"
# The loops of verl's own that an agents' file may list under names of the user's.
LOOP_CLASSES = {"SingleTurnAgentLoop": "single_turn_agent", "ToolAgentLoop": "tool_agent"}
LOOP_CLASSES |= {"RStar2AgentLoop": "tool_agent"}
FORMATS = {"hermes": "hermes", "qwen": "hermes", "qwen25": "hermes", "qwen3_coder": "qwen3_coder"}
FORMATS |= {"llama3_json": "llama3", "llama3": "llama3", "rstar2_agent_hermes": "hermes"}


def searches(verl: VerlConfig) -> bool:
    return bool(verl[SEARCH]) or searches_as_search_r1(verl) or verl[WORLD] == "search"


def searches_as_search_r1(verl: VerlConfig) -> bool:
    return verl.is_set(URL, TOPK, SEARCHES, "do_search") and bool(verl["do_search"])


def calls_code(verl: VerlConfig) -> bool:
    return not searches(verl) and bool(verl[f"{TOOL}enabled"])


def loop(verl: VerlConfig) -> str:
    """The loop that attempts a task: verl's name of it, by way of the file that lists loops."""
    return _listed(verl).get(str(verl[LOOP]), str(verl[LOOP]))


def _listed(verl: VerlConfig) -> dict[str, str]:
    """The loops of a file that are verl's own, by the name that the file gives them."""
    path = verl[LOOPS]
    if path is None or not Path(str(path)).expanduser().is_file():
        return {}
    entries = yaml.safe_load(Path(str(path)).expanduser().read_text(encoding="utf-8"))
    found = {}
    for entry in entries if isinstance(entries, list) else []:
        target = str(entry.get("_target_", "")).rpartition(".")[2] if isinstance(entry, dict) else ""
        if target not in LOOP_CLASSES:
            named = target or entry
            raise UserError(f"{verl.as_typed(LOOPS)} lists {named}, a loop of verl's form; {OWN_LOOP}")
        found[str(entry.get("name"))] = LOOP_CLASSES[target]
    return found


def calls_tools(verl: VerlConfig) -> bool:
    """verl's own way: tools from a file, called as the chat template of the model says."""
    enabled = verl[f"{MULTI}enable"] or loop(verl) == "tool_agent"
    return not searches(verl) and not calls_code(verl) and bool(enabled)


def several_turns(verl: VerlConfig) -> bool:
    return searches(verl) or calls_code(verl) or calls_tools(verl)


def shares_a_response(verl: VerlConfig) -> bool:
    """Return True if turns and tool results share the response length. In Search-R1 each turn has it."""
    return several_turns(verl) and not searches_as_search_r1(verl) and verl[WORLD] is None


def agent(verl: VerlConfig, to: Translation) -> None:
    if verl[LOOPS] is not None and verl.lacks(str(verl[LOOPS])):
        to.refuse(f"it lists loops of verl's form; {OWN_LOOP}", LOOPS)
    elif verl[LOOPS] is not None:
        to.note("the loops that it lists are known here by name", LOOPS)
    if loop(verl) not in LOOP_CLASSES.values():
        to.refuse(f"{OWN_LOOP}", LOOP)
    if makes_tasks(verl):
        return
    switches = (SEARCH, f"{TOOL}enabled", f"{MULTI}enable")
    sources = next((key for key in switches if verl[key]), URL if searches_as_search_r1(verl) else LOOP)
    sources = WORLD if verl[WORLD] == "search" else sources
    chosen = SEARCHER if searches(verl) else AGENT if several_turns(verl) else "single_turn"
    if calls_tools(verl) and verl[USERS] is not None:
        to.set("rollout.agent", TALKER, USERS, sources)
    else:
        to.set("rollout.agent", chosen, sources)
    if searches(verl) and verl[f"{TOOL}enabled"]:
        to.note(f"{SEARCH} goes before {TOOL}enabled: the search rollout is used, without the tool server")


def search(verl: VerlConfig, to: Translation) -> None:
    if not searches(verl):
        return
    if not verl[SEARCH]:
        _of_a_fork(verl, to)
        return
    if verl[SEARCH_URL] is None:
        to.refuse(f"{SEARCH}=true needs {SEARCH_URL}, the retrieval server")
    to.set("tools.search.url", verl[SEARCH_URL], SEARCH_URL)
    to.set("tools.search.topk", verl[SEARCH_TOPK], SEARCH_TOPK)
    if verl[TURNS] is not None:
        to.set("rollout.max_turns", verl.number(TURNS), TURNS)
    if verl[SEEN] is not None:
        to.set("rollout.tool_tokens", verl.number(SEEN), SEEN)


def _of_a_fork(verl: VerlConfig, to: Translation) -> None:
    """Search-R1 answers `max_turns` searches, and one more turn may answer the question. An answer ends the
    attempt, and what is said after it is cut off."""
    url, topk, turns, more = LOOKED_UP, "env.search.topk", "env.max_steps", 0
    if searches_as_search_r1(verl):
        url, topk, turns, more = URL, TOPK, SEARCHES, 1
    if verl[url] is None:
        to.refuse(f"{url} is not set: name the retrieval server")
    to.set("tools.search.url", verl[url], url)
    to.set("tools.search.topk", int(verl[topk]), topk)
    to.set("rollout.max_turns", (verl[turns] or 10) + more, turns)
    lets = f"where {'Search-R1' if more else 'verl-agent'} lets the policy try again"
    to.near(f"a turn that neither searches nor answers ends the attempt, {lets}", turns)
    if more:
        to.set("rollout.stop", ["</answer>"], turns)
    shown = "data.max_obs_length"
    if verl[shown] is not None:
        to.set("rollout.tool_tokens", verl.number(shown), shown)
        to.note("of a longer result its tail is shown too, not its head alone", shown)


def unmasked(verl: VerlConfig, to: Translation) -> None:
    """Search-R1 learns from the search engine's text unless a key masks it."""
    if not of_search_r1(verl) or verl[MASKED]:
        return
    to.near(f"what the search engine said is context and never learned from, as with {MASKED}=true", MASKED)


def code(verl: VerlConfig, to: Translation) -> None:
    if not calls_code(verl):
        return
    # verl counts the calls, we count the turns: the last one answers.
    to.set("rollout.max_turns", verl.number(f"{TOOL}max_tool_turns") + 1, f"{TOOL}max_tool_turns")
    to.set("rollout.tool_timeout_s", verl[f"{TOOL}timeout"], f"{TOOL}timeout")
    to.set("rollout.call_format", "tags", f"{TOOL}enabled")


def interaction(verl: VerlConfig, to: Translation) -> None:
    """A simulated user. A file that is here is read, so that a mistake in it is reported now."""
    if verl[USERS] is None or not calls_tools(verl):
        return
    path = str(verl[USERS])
    if not verl.lacks(path):
        read_interactions(Path(path))
    to.set("task.params.interactions", path, USERS)


def from_file(verl: VerlConfig, to: Translation) -> None:
    if not calls_tools(verl):
        return
    key = verl.first(*TOOLS_FILE)
    offered = any(name.startswith("toolwright.tools.") for name in verl.typed)
    if verl[key] is None and verl[USERS] is None and not offered:
        to.note(f"{MULTI}enable: no file names tools ({TOOLS_FILE[0]}), so an attempt has one turn")
    elif verl[key] is not None:
        _file(verl, to, key)
    limits = [(verl.number(name), name) for name in MOST_TURNS if verl[name] is not None]
    # A user's turn is an answer of the tools, and one more turn of the policy comes after the last.
    limits += [(verl.number(ANSWERED) + 1, ANSWERED)] if verl[ANSWERED] is not None else []
    # Without a limit the response length ends an attempt: a turn takes at least one token of it.
    limits = limits or [(verl.number(RESPONSE), RESPONSE)]
    to.set("rollout.max_turns", min(limits)[0], *tuple(name for _, name in limits))
    shown = f"{MULTI}max_tool_response_length"
    for limit in ("rollout.call_params.result_characters", "rollout.tool_tokens"):
        to.set(limit, verl.number(shown), shown)
    most = f"{MULTI}max_parallel_calls"
    to.set("rollout.max_calls", verl.number(most), most)
    form = verl[f"{MULTI}format"]
    if form not in FORMATS:
        to.refuse(f"{MULTI}format={form}: calls are read as {', '.join(sorted(FORMATS))}")
        return
    to.set("rollout.call_format", FORMATS[form], f"{MULTI}format")


def _file(verl: VerlConfig, to: Translation, key: str) -> None:
    """The tools' file. A file that is here is read, so that a mistake in it is reported now."""
    path = str(verl[key])
    if not verl.lacks(path):
        settings_of({"tool_config_path": path})
    to.set("tool_config_path", path, key)
