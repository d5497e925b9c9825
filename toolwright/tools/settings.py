"""The tool settings of a run, verl's tool files among them; a sandbox is started if none is named."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolwright.failures import UserError
from toolwright.tools import TOOLS

if TYPE_CHECKING:
    from toolwright.config import schema

log = logging.getLogger(__name__)

Settings = dict[str, dict[str, Any]]

# Any of these says where a sandbox server is.
_URL_KEYS = ("url", "urls", "host_addr", "host_port")


def settings_of(config: schema.Config | Mapping[str, Any]) -> Settings:
    """Merges inline `tools` and the file of `tool_config_path`."""
    tree = config if isinstance(config, Mapping) else config.model_dump(include=_TOOL_KEYS)
    tree = _container(tree)
    ways = {"tools": _absolute(plain(tree.get("tools"), "tools"), Path.cwd())}
    if path := tree.get("tool_config_path"):
        ways[f"tool_config_path={path}"] = _from_file("tool_config_path", str(path))
    merged: Settings = {}
    origin: dict[str, str] = {}
    for way, settings in ways.items():
        for label, own in settings.items():
            if label in merged and merged[label] != own:
                raise UserError(f"tool {label!r} is set in two ways that differ: {origin[label]} and {way}")
            merged[label], origin[label] = own, way
    return merged


_TOOL_KEYS: Any = {"tools", "tool_config_path"}


def plain(tools: Any, where: str) -> Settings:
    """A block of tools as ordinary dictionaries; `python:` with nothing after it has no settings."""
    block = _container(tools)
    if isinstance(block, list):
        return settings_from(block, where)
    if not isinstance(block, Mapping):
        raise UserError(f"{where}: expected tools by name with their settings, found {block!r:.100}")
    settings: Settings = {}
    for label, own in block.items():
        values = _container(own)
        if not isinstance(values, Mapping):
            raise UserError(f"{where}.{label}: expected a block of settings, found {values!r:.100}")
        settings[str(label)] = {str(key): value for key, value in values.items()}
    return settings


@contextmanager
def served(
    settings: Mapping[str, Mapping[str, Any]], *, died: Callable[[str], None] = log.warning
) -> Iterator[Settings]:
    """The settings with a URL for each tool that needs a sandbox.

    If none is named, a sandbox is started for the block, and again if it dies; then `died` is called.
    """
    whole = {label: dict(own) for label, own in settings.items()}
    without_server = [label for label, own in whole.items() if _needs_sandbox(label, own)]
    if not without_server:
        yield whole
        return
    from toolwright.sandbox.local import lasting_server

    with lasting_server(died=died) as url:
        for label in without_server:
            whole[label]["url"] = url
        yield whole


def sandbox_in(settings: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The URL of the sandbox of these tools, for a scorer that needs one too.

    A server that may not be ours is not taken, nor one with a token, which belongs to the tool.
    """
    for label, own in settings.items():
        path = own.get("path") or label
        known = ":" not in path and path in TOOLS.names()
        if known and "sandbox" in TOOLS.get(path).needs and own.get("url") and not own.get("token"):
            if getattr(TOOLS.get(path).target, "any_make", False) and not own.get("enable_jupyter"):
                continue
            return str(own["url"])
    return None


def _needs_sandbox(label: str, own: Mapping[str, Any]) -> bool:
    path = own.get("path") or label
    if ":" not in path and path not in TOOLS.names():
        return False  # the toolbox reports the error
    return "sandbox" in TOOLS.get(path).needs and not any(own.get(key) for key in _URL_KEYS)


def _from_file(key: str, path: str) -> Settings:
    from toolwright.config.yaml_file import read_yaml

    file = Path(path).expanduser()
    try:
        tree = read_yaml(file)
    except UserError as error:
        raise UserError(f"{key}={path}: {error}") from None
    if "tools" not in tree:
        raise UserError(f"{key}={path}: expected a block `tools:`")
    return _absolute(plain(tree["tools"], f"{path}: tools"), file.resolve().parent)


def _absolute(settings: Settings, folder: Path) -> Settings:
    """Makes file names absolute, relative to the file that names them, so that workers find them."""
    for label, own in settings.items():
        where, colon, name = str(own.get("path") or "").rpartition(":")
        if colon and where.endswith(".py"):
            own["path"] = f"{_near(where, folder)}:{name}"
        for key in _files_of(own.get("path") or label):
            if own.get(key):
                own[key] = str(_near(own[key], folder))
    return settings


def _near(file: str, folder: Path) -> Path:
    here = Path(file).expanduser()
    there = folder / here
    return (there if there.exists() else here).resolve()


def _files_of(path: str) -> tuple[str, ...]:
    """The settings of a built-in tool that name files. A user's tool is not imported for this."""
    if ":" in path or path not in TOOLS.names():
        return ()
    return tuple(getattr(TOOLS.get(path).target, "files", ()))


def _container(value: Any) -> Any:
    """OmegaConf's containers as plain ones. Imports `omegaconf` only if the value is one."""
    if type(value).__module__.startswith("omegaconf"):
        from omegaconf import OmegaConf

        return OmegaConf.to_container(value, resolve=True)
    return {} if value is None else value


# verl's key: ours. None has no meaning here; a key that is not listed is an error.
_SANDBOX = {
    "sandbox_fusion_url": "url",
    "num_workers": "concurrency",
    "default_timeout": "timeout_s",
    "memory_limit_mb": "memory_mb",
    **dict.fromkeys(("enable_global_rate_limit", "rate_limit", "default_language", "type")),
}
_SEARCH = {
    "retrieval_service_url": "url",
    "num_workers": "concurrency",
    "timeout": "timeout_s",
    "topk": "topk",
    **dict.fromkeys(("rate_limit", "type")),
}
_JUDGE = {
    "host_addr": "host_addr",
    "host_port": "host_port",
    "request_processor_batch_size": "batch_size",
    "request_processor_concurrency": "concurrency",
    "request_processor_batch_timeout_seconds": "batch_timeout_seconds",
    **dict.fromkeys(f"tool_connection_{name}" for name in ("limit", "force_close", "timeout")),
    **dict.fromkeys(("tool_connection_enable_cleanup_closed", "type")),
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
        read = _mcp_servers if (entry.get("config") or {}).get("type") == "mcp" else _by_class
        for label, own in read(entry, place).items():
            if label in settings:
                raise UserError(f"{place}: a second tool called {label!r}")
            settings[label] = own
    return settings


def _by_class(entry: Mapping[str, Any], place: str) -> Settings:
    name = entry["class_name"].rpartition(".")[2]
    if name not in _CLASSES:
        raise UserError(
            f"{place}: {entry['class_name']} is a tool of verl without an equivalent here; write it as a "
            "typed function and name it with tools.NAME.path=file.py:function (Toolwright understands "
            f"{', '.join(sorted(_CLASSES))}, and MCP servers)"
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


def _mcp_servers(entry: Mapping[str, Any], place: str) -> Settings:
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
