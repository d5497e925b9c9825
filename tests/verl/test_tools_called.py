"""Lines with tools, search and environments, run for three steps: what they offer is called.

The policy is a tiny model in whose vocabulary the whole call is one token, so that it calls now and then.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import tiny
from tests.json_server import json_server
from tests.verl.conftest import tasks
from tests.verl.test_end_to_end import retrieved
from toolwright.models import huggingface
from toolwright.record import load
from toolwright.verl.command import main_module

pytestmark = pytest.mark.slow

ROLLOUT = "actor_rollout_ref.rollout"
MULTI = f"{ROLLOUT}.multi_turn"
SMALL = [
    *("data.max_response_length=150", "data.max_prompt_length=1800", "data.train_batch_size=4"),
    *(f"{ROLLOUT}.n=4", "actor_rollout_ref.actor.ppo_mini_batch_size=2", "trainer.n_gpus_per_node=1"),
    *("trainer.total_training_steps=3", "trainer.test_freq=-1", "toolwright.run.threads=1"),
    f"{ROLLOUT}.temperature=5",  # every token is about as likely, and so is a call
]
TOOL_FILE = [f"{MULTI}.enable=True", f"{MULTI}.max_assistant_turns=3"]
# verl's tools: the settings of each, and a call of it.
TOOLS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "Gsm8kTool": ("gsm8k_tool", {}, {"name": "calc_gsm8k_reward", "arguments": {"answer": "3"}}),
    "SandboxFusionTool": (
        "sandbox_fusion_tools",
        {"sandbox_fusion_url": "{url}/run_code"},
        {"name": "code_interpreter", "arguments": {"code": "6*7"}},
    ),
    "SearchTool": (
        "search_tool",
        {"retrieval_service_url": "{url}/retrieve"},
        {"name": "search", "arguments": {"query_list": ["a b"]}},
    ),
}
SEARCH_R1 = [
    "max_turns=2",
    "data.max_start_length=200",
    f"{ROLLOUT}.n_agent=4",
    "retriever.url={url}/retrieve",
]
VERL_AGENT = [
    *("env.max_steps=3", "env.rollout.n=4", "env.seed=1", "algorithm.adv_estimator=gigpo"),
    *("actor_rollout_ref.actor.ppo_mini_batch_size=64", "algorithm.gamma=0.95"),
]
# A line's words, and what the policy says to call.
LINES: dict[str, tuple[list[str], str]] = {
    "code by a tool server": (
        [f"{ROLLOUT}.tool_config.enabled=true", f"{ROLLOUT}.tool_config.server_url={{url}}"],
        "<tool>6*7</tool>",
    ),
    "Search-R1": (SEARCH_R1, "<search>a b</search>"),
    "Search-R1, PPO, paid for its form": (
        [*SEARCH_R1, "algorithm.adv_estimator=gae", "reward_model.structure_format_score=0.2"],
        "<search>a b</search>",
    ),
    "rStar2": (
        [
            *("--config-name=rstar2_agent_trainer", f"{MULTI}.tool_config_path={{file}}"),
            *("augmentation.do_down_sampling=True", "augmentation.down_sampling_config.down_sample_to_n=2"),
        ],
        f"<tool_call>\n{json.dumps(TOOLS['SandboxFusionTool'][2])}\n</tool_call>",
    ),
    "verl-agent, search": (
        [*VERL_AGENT, "env.env_name=search", "env.search.search_url={url}/retrieve"],
        "<search>a b</search>",
    ),
    **{
        name: (
            [*TOOL_FILE, f"{MULTI}.tool_config_path={{file}}"],
            f"<tool_call>\n{json.dumps(call)}\n</tool_call>",
        )
        for name, (_, _, call) in TOOLS.items()
    },
}


class ToolServer:
    """Runs code at any path but `/retrieve`, which looks up what it is asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.url = ""

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(path)
        if path == "/retrieve":
            return retrieved(path, body)
        output = str(eval(body["code"]))
        return {"output": output, "status": "Success", "run_result": {"stdout": output}}


@pytest.fixture
def server() -> Iterator[ToolServer]:
    made = ToolServer()
    with json_server(made.answer) as made.url:
        yield made


def caller(folder: Path, call: str) -> Path:
    tokenizer = tiny.characters()
    tokenizer.backend.add_tokens([call])
    huggingface.save(tiny.decoder(context=2048, vocab=tokenizer.backend.get_vocab_size()), folder)
    tokenizer.save(folder)
    return folder


def tools_file(path: Path, url: str, name: str) -> None:
    """A file of verl's form with one tool."""
    module, settings, call = TOOLS[name]
    kinds = {
        key: "array" if isinstance(value, list) else "string" for key, value in call["arguments"].items()
    }
    parameters = {"type": "object", "properties": {key: {"type": kind} for key, kind in kinds.items()}}
    function = {"name": call["name"], "description": "a tool", "parameters": parameters}
    entry = {
        "class_name": f"verl.tools.{module}.{name}",
        "config": {key: value.format(url=url) for key, value in settings.items()},
        "tool_schema": {"type": "function", "function": function},
    }
    path.write_text(yaml.safe_dump({"tools": [entry]}))


@pytest.mark.parametrize("name", LINES)
def test_tools_are_called_in_a_run(name: str, tmp_path: Path, server: ToolServer) -> None:
    words, call = LINES[name]
    url, out = server.url, tmp_path / "run"
    tools_file(tmp_path / "tools.yaml", url, name if name in TOOLS else "SandboxFusionTool")
    words = [word.format(url=url, file=tmp_path / "tools.yaml") for word in words]
    line = [
        *SMALL,
        "algorithm.adv_estimator=grpo",
        *words,
        f"data.train_files={tasks(tmp_path / 't.parquet')}",
    ]
    line += [
        f"actor_rollout_ref.model.path={caller(tmp_path / 'model', call)}",
        f"trainer.default_local_dir={out}",
    ]
    assert main_module(["verl.trainer.main_ppo", *line, "--fit"]) == 0
    steps = [json.loads(text) for text in (out / "metrics.jsonl").read_text().splitlines()]
    assert steps[-1]["step"] == 3
    attempts = [one for file in sorted((out / "rollouts").glob("*.parquet")) for one in load(file)]
    answered = [one for one in attempts if any(segment.source == "tool" for segment in one.segments)]
    assert answered
    assert all(one.failure is None for one in attempts)
    assert bool(server.asked) is (name != "Gsm8kTool")
