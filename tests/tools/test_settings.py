"""The three ways to configure tools, verl's files among them, and the sandbox that is started for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from toolwright.config.compose import Source, resolve
from toolwright.config.schema import Config
from toolwright.config.yaml_file import from_yaml
from toolwright.failures import UserError
from toolwright.tools.settings import served, settings_of
from toolwright.tools.toolbox import Toolbox

JUDGE = {
    "host_addr": "localhost",
    "host_port": 8088,
    "batch_size": 4,
    "concurrency": 2,
    "batch_timeout_seconds": 30.0,
    "enable_jupyter": False,
}
TREE: dict[str, Any] = {"tools": {"code_judge": JUDGE}}


def write(path: Path, tree: Any) -> str:
    path.write_text(json.dumps(tree))  # JSON is YAML
    return str(path)


def test_tools_can_be_configured_inline(tmp_path: Path) -> None:
    assert settings_of(Config.model_validate(TREE)) == {"code_judge": JUDGE}
    assert Toolbox(settings_of(Config.model_validate(TREE))).names == ["code_judge"]


def test_the_config_path_names_a_tool_file(tmp_path: Path) -> None:
    file = write(tmp_path / "tools.yaml", TREE)
    assert settings_of(Config(tool_config_path=file)) == {"code_judge": JUDGE}


def test_tool_config_path_of_version_0_1_is_translated(tmp_path: Path) -> None:
    file = write(tmp_path / "tools.yaml", TREE)
    old = tmp_path / "config.yaml"
    write(old, {"rollout": {"tool_config_path": file, "samples": 4}, "tool_config_path": None})
    assert settings_of(from_yaml(old)) == {"code_judge": JUDGE}
    write(old, {"rollout": {"tool_config_path": file}, "tool_config_path": "other.yaml"})
    with pytest.raises(UserError, match=r"rollout.tool_config_path no longer exists; put its tools"):
        from_yaml(old)
    with pytest.raises(UserError, match=r"unknown key; did you mean tool_config_path\?"):
        resolve(Source(), [f"rollout.tool_config_path={file}"])


def test_a_plain_dictionary_and_omegaconfs() -> None:
    assert settings_of(TREE) == {"code_judge": JUDGE}
    assert settings_of(OmegaConf.create(TREE)) == {"code_judge": JUDGE}
    assert Toolbox(OmegaConf.create(TREE["tools"])).names == ["code_judge"]  # type: ignore[arg-type]


def test_the_command_line() -> None:
    words = ["tools.python.url=http://x:1", "tools.calculator={}"]
    config = resolve(Source(), words).config
    assert isinstance(config, Config)
    assert settings_of(config) == {"python": {"url": "http://x:1"}, "calculator": {}}


def test_the_two_places_of_tools_add_up_and_must_agree(tmp_path: Path) -> None:
    file = write(tmp_path / "tools.yaml", TREE)
    both = Config.model_validate(
        {"tools": {"calculator": None, "code_judge": JUDGE}, "tool_config_path": file}
    )
    assert settings_of(both) == {"calculator": {}, "code_judge": JUDGE}
    differ = Config.model_validate({"tools": {"code_judge": {"host_port": 1}}, "tool_config_path": file})
    with pytest.raises(
        UserError, match="'code_judge' is set in two ways that differ: tools and tool_config_path="
    ):
        settings_of(differ)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "no such configuration file"),
        ("tools: [", "not valid YAML"),
        ("other: 1", "expected a block `tools:`"),
        ("tools: 3", "expected tools by name"),
        ("tools: [{class_name: verl.tools.geo3k_tool.Geo3kTool}]", "without an equivalent here"),
        (
            "tools: [{class_name: a.SearchTool, config: {topp: 1}}]",
            "config.topp: not a setting of SearchTool",
        ),
    ],
)
def test_a_malformed_tool_file_is_an_error(tmp_path: Path, content: str | None, told: str) -> None:
    file = tmp_path / "tools.yaml"
    if content is not None:
        file.write_text(content)
    with pytest.raises(UserError) as caught:
        settings_of(Config(tool_config_path=str(file)))
    assert told in str(caught.value)


def test_files_are_found_beside_the_file_that_names_them(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text('def f(x: int) -> int:\n    """Doubles."""\n    return 2 * x\n')
    (tmp_path / "docs.jsonl").write_text('{"contents": "a"}\n')
    file = write(
        tmp_path / "tools.yaml", {"tools": {"f": {"path": "mine.py:f"}, "search": {"corpus": "docs.jsonl"}}}
    )
    settings = settings_of(Config(tool_config_path=file))
    assert settings["f"]["path"] == f"{tmp_path}/mine.py:f"
    assert settings["search"]["corpus"] == f"{tmp_path}/docs.jsonl"


def test_verls_files_are_read(tmp_path: Path) -> None:
    mcp = write(tmp_path / "mcp.json", {"mcpServers": {"files": {"url": "http://x/mcp", "auth_token": "t"}}})
    schema = {"type": "function", "function": {"name": "jupyter_code", "description": "Runs a cell."}}
    tools = [
        {
            "class_name": "verl.tools.sandbox_fusion_tools.SandboxFusionTool",
            "config": {"sandbox_fusion_url": "http://x/run_code", "num_workers": 10, "default_timeout": 30},
        },
        {
            "class_name": "recipe.rstar2_agent.src.tools.code_judge_tool.SimJupyterTool",
            "config": {"host_port": 8088, "request_processor_batch_size": 8},
            "tool_schema": schema,
        },
        {
            "class_name": "verl.tools.search_tool.SearchTool",
            "config": {"retrieval_service_url": "http://x/retrieve", "topk": 5, "type": "native"},
        },
        {
            "class_name": "verl.tools.mcp_search_tool.MCPSearchTool",
            "config": {"type": "mcp"},
            "mcp": {"mcp_servers_config_path": mcp, "tool_selected_list": ["find"]},
        },
    ]
    settings = settings_of(Config(tool_config_path=write(tmp_path / "tools.yaml", {"tools": tools})))
    assert settings == {
        "python": {"path": "python", "url": "http://x", "concurrency": 10, "timeout_s": 30},
        "jupyter_code": {
            "path": "code_judge",
            "enable_jupyter": True,
            "host_port": 8088,
            "batch_size": 8,
            "description": "Runs a cell.",
        },
        "search": {"path": "search", "url": "http://x/retrieve", "topk": 5},
        "files": {
            "path": "mcp",
            "url": "http://x/mcp",
            "headers": {"authorization": "Bearer t"},
            "only": ["find"],
        },
    }
    assert Toolbox(settings).names == ["python", "jupyter_code", "search", "files"]


def test_a_server_that_is_named_is_left_to_its_owner() -> None:
    with served({"code_judge": JUDGE, "calculator": {}, "search": {"url": "http://x"}}) as settings:
        assert settings == {"code_judge": JUDGE, "calculator": {}, "search": {"url": "http://x"}}
