"""Reads verl's tool files: a list of classes with their configuration becomes the matching tools here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolwright.failures import UserError

Settings = dict[str, dict[str, Any]]

# verl's key: ours. None has no meaning here; a key that is not listed is an error.
_SANDBOX = {
    "sandbox_fusion_url": "url",
    "num_workers": "concurrency",
    "default_timeout": "timeout_s",
    "memory_limit_mb": "memory_mb",
    "enable_global_rate_limit": None,
    "rate_limit": None,
    "default_language": None,
    "type": None,
}
_SEARCH = {
    "retrieval_service_url": "url",
    "num_workers": "concurrency",
    "timeout": "timeout_s",
    "topk": "topk",
    "rate_limit": None,
    "type": None,
}
_JUDGE = {
    "host_addr": "host_addr",
    "host_port": "host_port",
    "request_processor_batch_size": "batch_size",
    "request_processor_concurrency": "concurrency",
    "request_processor_batch_timeout_seconds": "batch_timeout_seconds",
    "tool_connection_limit": None,
    "tool_connection_force_close": None,
    "tool_connection_enable_cleanup_closed": None,
    "tool_connection_timeout": None,
    "type": None,
}
# By the last part of `class_name`, since recipes keep copies of these under names of their own.
_CLASSES: dict[str, tuple[str, dict[str, str | None], dict[str, Any]]] = {
    "SandboxFusionTool": ("python", _SANDBOX, {}),
    "SearchTool": ("search", _SEARCH, {}),
    "Gsm8kTool": ("gsm8k_answer", {"type": None}, {}),
    "CodeJudgeTool": ("code_judge", _JUDGE, {}),
    "PythonTool": ("code_judge", _JUDGE, {}),
    "SimJupyterTool": ("code_judge", _JUDGE, {"enable_jupyter": True}),
}


def settings_from(entries: list[Any], where: str) -> Settings:
    """The list under `tools:` of a verl file."""
    settings: Settings = {}
    for number, entry in enumerate(entries):
        place = f"{where}[{number}]"
        if not isinstance(entry, Mapping) or not isinstance(entry.get("class_name"), str):
            raise UserError(f"{place}: expected an entry with class_name, as verl's tool files have them")
        read = _mcp if (entry.get("config") or {}).get("type") == "mcp" else _by_class
        for label, own in read(entry, place).items():
            if label in settings:
                raise UserError(f"{place}: a second tool called {label!r}")
            settings[label] = own
    return settings


def _by_class(entry: Mapping[str, Any], place: str) -> Settings:
    name = entry["class_name"].rpartition(".")[2]
    if name not in _CLASSES:
        raise UserError(
            f"{place}: {entry['class_name']} is a tool of verl's own kind, without an equivalent here; "
            f"write it as a typed function and name it by tools.NAME.path=file.py:function "
            f"(understood are {', '.join(sorted(_CLASSES))}, and MCP servers)"
        )
    path, keys, fixed = _CLASSES[name]
    function = (entry.get("tool_schema") or {}).get("function") or {}
    if path == "search" and "query_list" in (function.get("parameters") or {}).get("properties", {}):
        path = "search_queries"
    own: dict[str, Any] = {"path": path, **fixed}
    for key, value in (entry.get("config") or {}).items():
        if key not in keys:
            raise UserError(
                f"{place}.config.{key}: not a setting of {name}; it has {', '.join(sorted(keys))}"
            )
        if keys[key] is not None:
            own[str(keys[key])] = value
    if path == "python" and "url" in own:
        own["url"] = str(own["url"]).rstrip("/").removesuffix("/run_code")
    if function.get("description"):
        own["description"] = function["description"]
    return {str(function.get("name") or path): own}


def _mcp(entry: Mapping[str, Any], place: str) -> Settings:
    """`mcp: {mcp_servers_config_path, tool_selected_list}`: one entry for each server in that file."""
    own = entry.get("mcp") or {}
    path = own.get("mcp_servers_config_path")
    if not path:
        raise UserError(f"{place}.mcp.mcp_servers_config_path is missing: the file that lists MCP servers")
    try:
        servers = json.loads(Path(path).expanduser().read_text(encoding="utf-8"))["mcpServers"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{place}.mcp.mcp_servers_config_path={path}: no file of mcpServers: {error}"
        ) from None
    settings: Settings = {}
    for name, server in servers.items():
        kept = {key: server[key] for key in ("command", "args", "env", "url", "headers") if key in server}
        if server.get("auth_token"):
            kept["headers"] = {**kept.get("headers", {}), "authorization": f"Bearer {server['auth_token']}"}
        if own.get("tool_selected_list"):
            kept["only"] = list(own["tool_selected_list"])
        settings[str(name)] = {"path": "mcp", **kept}
    return settings
