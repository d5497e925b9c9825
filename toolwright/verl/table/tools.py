"""Tools and search: `multi_turn.*`, `agent.*`, and the `tool_config.*` and `enable_search` of forks.

Which loop attempts a task is chosen as the tool-enabled verl chooses: search, else tools, else a single turn.
"""

from __future__ import annotations

from collections.abc import Iterator

from toolwright.verl.asked import VerlConfig
from toolwright.verl.row import (
    KeyRow,
    Note,
    Outcome,
    TranslatedSetting,
    TranslationProblem,
    always,
    part,
    refused,
    unused,
)

ROLLOUT = "actor_rollout_ref.rollout."
SEARCH, SEARCH_URL, SEARCH_TOPK = f"{ROLLOUT}enable_search", f"{ROLLOUT}search_url", f"{ROLLOUT}search_topk"
TURNS, SEEN = f"{ROLLOUT}max_turns", f"{ROLLOUT}max_obs_length"
TOOL = f"{ROLLOUT}tool_config."
MULTI = f"{ROLLOUT}multi_turn."
LOOP = f"{ROLLOUT}agent.default_agent_loop"
TOOLS_FILE = (f"{MULTI}tool_config_path", "data.tool_config_path")
MOST_TURNS = (f"{MULTI}max_assistant_turns", f"{MULTI}max_turns")

AGENT, SEARCHER = "tool_use", "search"
# What `<tool>code</tool>` in the answer calls, and how its server is reached: verl's key, and ours.
PYTHON = {
    "server_url": "tools.python.url",
    "max_retries": "tools.python.max_retries",
    "timeout": "tools.python.timeout_s",
    "max_workers": "tools.python.concurrency",
    "request_interval": "tools.python.request_interval",
}
FORMATS = {"hermes": "hermes", "qwen3_coder": "qwen3_coder", "llama3_json": "llama3"}


def searches(asked: VerlConfig) -> bool:
    return bool(asked[SEARCH])


def calls_code(asked: VerlConfig) -> bool:
    return not searches(asked) and bool(asked[f"{TOOL}enabled"])


def calls_tools(asked: VerlConfig) -> bool:
    """verl's own way: tools from a file, called as the chat template of the model says."""
    wanted = asked[f"{MULTI}enable"] or asked[LOOP] == "tool_agent"
    return not searches(asked) and not calls_code(asked) and bool(wanted)


def several_turns(asked: VerlConfig) -> bool:
    return searches(asked) or calls_code(asked) or calls_tools(asked)


def agent(asked: VerlConfig) -> Iterator[Outcome]:
    if asked[LOOP] not in ("single_turn_agent", "tool_agent"):
        yield TranslationProblem(
            f"{asked.shown(LOOP)}: write a loop of your own as `rollout.agent=path.py:name`"
        )
    because = next((key for key in (SEARCH, f"{TOOL}enabled", f"{MULTI}enable") if asked[key]), LOOP)
    chosen = SEARCHER if searches(asked) else AGENT if several_turns(asked) else "single_turn"
    yield TranslatedSetting("rollout.agent", chosen, (because,))
    if searches(asked) and asked[f"{TOOL}enabled"]:
        yield Note(f"{SEARCH} goes before {TOOL}enabled: the search rollout is used, without the tool server")


def search(asked: VerlConfig) -> Iterator[Outcome]:
    if not searches(asked):
        return
    if asked[SEARCH_URL] is None:
        yield TranslationProblem(f"{SEARCH}=true needs {SEARCH_URL}, the retrieval server")
    yield TranslatedSetting("tools.search.url", asked[SEARCH_URL], (SEARCH_URL,))
    yield TranslatedSetting("tools.search.topk", asked[SEARCH_TOPK], (SEARCH_TOPK,))
    if asked[TURNS] is not None:
        yield TranslatedSetting("rollout.max_turns", asked.number(TURNS), (TURNS,))
    if asked[SEEN] is not None:
        yield TranslatedSetting("rollout.tool_tokens", asked.number(SEEN), (SEEN,))


def code(asked: VerlConfig) -> Iterator[Outcome]:
    if not calls_code(asked):
        return
    for name, ours in PYTHON.items():
        yield TranslatedSetting(ours, asked[f"{TOOL}{name}"], (f"{TOOL}{name}",))
    # verl counts the calls, we count the turns: the last one answers.
    yield TranslatedSetting(
        "rollout.max_turns", asked.number(f"{TOOL}max_tool_turns") + 1, (f"{TOOL}max_tool_turns",)
    )
    yield TranslatedSetting("rollout.tool_timeout_s", asked[f"{TOOL}timeout"], (f"{TOOL}timeout",))
    yield TranslatedSetting("rollout.call_format", "tags", (f"{TOOL}enabled",))


def from_file(asked: VerlConfig) -> Iterator[Outcome]:
    if not calls_tools(asked):
        return
    key = asked.first(*TOOLS_FILE)
    if asked[key] is None:
        yield TranslationProblem(f"{MULTI}enable=true needs {TOOLS_FILE[0]}, the file with the tools")
    yield TranslatedSetting("rollout.tool_config_path", asked[key], (key,))
    turns = asked.first(*MOST_TURNS)
    if asked[turns] is not None:
        yield TranslatedSetting("rollout.max_turns", asked.number(turns), (turns,))
    shown = f"{MULTI}max_tool_response_length"
    yield TranslatedSetting("rollout.tool_tokens", asked.number(shown), (shown,))
    most = f"{MULTI}max_parallel_calls"
    yield TranslatedSetting("rollout.max_calls", asked.number(most), (most,))
    form = asked[f"{MULTI}format"]
    if form not in FORMATS:
        yield TranslationProblem(f"{MULTI}format={form}: calls are read as {', '.join(sorted(FORMATS))}")
        return
    yield TranslatedSetting("rollout.call_format", FORMATS[form], (f"{MULTI}format",))


WITH_TOOLS = "where `tool_config.enabled` and no search"
WITH_FILE = "where `multi_turn.enable`"

ROWS: list[KeyRow] = [
    part(SEARCH, "rollout.agent", f"`{SEARCHER}`, with the search tool; goes before tools", agent),
    part(SEARCH_URL, "tools.search.url", "where `enable_search`", search),
    part(SEARCH_TOPK, "tools.search.topk", "where `enable_search`", search),
    part(TURNS, "rollout.max_turns", "where `enable_search`", search),
    part(SEEN, "rollout.tool_tokens", "where `enable_search`", search),
    part(f"{TOOL}enabled", ("rollout.agent", "rollout.call_format"), f"`{AGENT}` and `tags`", agent),
    *(part(f"{TOOL}{name}", ours, WITH_TOOLS, code) for name, ours in PYTHON.items()),
    part(f"{TOOL}max_tool_turns", "rollout.max_turns", f"+ 1, for the turn that answers; {WITH_TOOLS}", code),
    unused(f"{TOOL}retry_delay", "pauses between tries begin at 0.1 s and double, with some chance in them"),
    part(f"{MULTI}enable", "rollout.agent", f"`{AGENT}`", agent),
    part(LOOP, "rollout.agent", f"`single_turn_agent` → `single_turn`, `tool_agent` → `{AGENT}`", agent),
    part(f"{MULTI}tool_config_path", "rollout.tool_config_path", WITH_FILE, from_file),
    part("data.tool_config_path", "rollout.tool_config_path", WITH_FILE, from_file),
    part(f"{MULTI}max_assistant_turns", "rollout.max_turns", WITH_FILE, from_file),
    part(f"{MULTI}max_turns", "rollout.max_turns", f"its older name; {WITH_FILE}", from_file),
    part(
        f"{MULTI}max_tool_response_length",
        "rollout.tool_tokens",
        f"as tokens, where verl counts characters: never less is shown; {WITH_FILE}",
        from_file,
    ),
    part(f"{MULTI}format", "rollout.call_format", f"{', '.join(FORMATS)}; {WITH_FILE}", from_file),
    part(f"{MULTI}max_parallel_calls", "rollout.max_calls", f"run at the same time; {WITH_FILE}", from_file),
    refused(
        f"{MULTI}tool_response_truncate_side", "head and tail of a tool's output are kept, the cut marked"
    ),
    refused(f"{MULTI}function_tool_path", "name a tool as `tools.NAME=path.py:function` instead"),
    refused("data.function_tool_path", "name a tool as `tools.NAME=path.py:function` instead"),
    refused(f"{MULTI}max_user_turns", "a user who answers is an environment: `rollout.agent=path.py:name`"),
    refused(
        f"{MULTI}interaction_config_path",
        "a user who answers is an environment: `rollout.agent=path.py:name`",
    ),
    refused(f"{MULTI}completion_callback", "write an agent of your own: `rollout.agent=path.py:name`"),
    always(f"{MULTI}use_inference_chat_template", "turns are appended, never rendered again"),
    always(
        f"{MULTI}tokenization_sanity_check_mode",
        "turns are appended, never tokenised again: nothing to check",
    ),
    always(
        f"{MULTI}enable_tokenization_sanity_check",
        "turns are appended, never tokenised again: nothing to check",
    ),
    refused(f"{MULTI}num_repeat_rollouts", "the number of attempts is `rollout.samples`"),
    unused(f"{ROLLOUT}agent.num_workers", "attempts run side by side in one event loop"),
    refused(
        f"{ROLLOUT}agent.agent_loop_config_path", "write a loop of your own as `rollout.agent=path.py:name`"
    ),
    refused(f"{ROLLOUT}agent.custom_async_server.*", "engines are registered in toolwright/engines"),
]
