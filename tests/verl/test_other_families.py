"""RLinf's and RAGEN's YAML files: read with what they build on, refused in words, and run for three steps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import tiny
from tests.json_server import json_server
from tests.verl.conftest import BARE
from tests.verl.test_tools_called import caller
from toolwright.models import huggingface
from toolwright.record import load
from toolwright.tasks import rows
from toolwright.verl.command import main_module
from toolwright.verl.flat.ragen import RAGEN
from toolwright.verl.flat.rlinf import RLINF
from toolwright.verl.table import row_of
from toolwright.verl.translate import translate

SEARCH: dict[str, Any] = {
    "defaults": ["shard@actor.fsdp_config", {"override hydra/job_logging": "stdout"}],
    "hydra": {"output_subdir": None},
    "cluster": {"num_nodes": 1, "component_placement": {"actor,rollout,reward": "all"}},
    "runner": {
        "task_type": "reasoning",
        "max_steps": 3,
        "seq_length": 1950,
        "experiment_name": "wiki",
        "val_check_interval": -1,
    },
    "algorithm": {
        "group_size": 4,
        "n_minibatches": 2,
        "adv_type": "grpo",
        "loss_agg_func": "token-mean",
        "recompute_logprobs": True,
        "sampling_params": {
            "temperature": 5.0,  # every token is about as likely, and so is a call
            "max_new_tokens": "${subtract:${runner.seq_length}, ${data.max_prompt_length}}",
        },
    },
    "data": {"rollout_batch_size": 4, "max_prompt_length": 1800, "answer_key": "solutions"},
    "agentloop": {"toolcall_parser": "searchr1-qwen", "max_turns": 2},
    "tools": {"search": {"topk": 1}},
    "rollout": {"rollout_backend": "sglang", "return_logprobs": "${not:${algorithm.recompute_logprobs}}"},
    "reward": {"reward_type": "searchr1"},
    "actor": {"training_backend": "fsdp", "seed": "${data.seed}"},
}
SOKOBAN: dict[str, Any] = {
    "defaults": ["ppo_trainer", "envs"],
    "model_path": "replaced",
    "ppo_mini_batch_size": 4,
    "actor_rollout_ref": {
        "model": {"path": "${model_path}"},
        "actor": {"ppo_mini_batch_size": "${ppo_mini_batch_size}", "use_ref": True},
        "rollout": {"max_model_len": 900, "response_length": 4, "rollout_filter_ratio": 1},
    },
    "data": {"max_prompt_length": None, "train_batch_size": None},
    "algorithm": {"adv_estimator": "grpo"},
    "agent_proxy": {"max_turn": 2, "max_actions_per_turn": 2, "reward_normalization": {"method": "mean_std"}},
    "es_manager": {
        "format_penalty": -0.1,
        "train": {"env_groups": 2, "group_size": 4, "env_configs": {"tags": ["Rooms"], "n_groups": [2]}},
        "val": {"env_groups": 2, "group_size": 1, "env_configs": {"tags": ["Rooms"], "n_groups": [2]}},
    },
    "trainer": {"total_training_steps": 3, "n_gpus_per_node": 1, "test_freq": -1, "val_before_train": False},
}
ROOMS = {"env_type": "sokoban", "max_actions_per_traj": 3, "env_config": {"num_boxes": 1}}
ENVS = {"custom_envs": {"Rooms": ROOMS}}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "tiny-model"
    huggingface.save(tiny.decoder(context=2048), folder)
    tiny.characters().save(folder)
    return folder


def answer(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """A retriever as RLinf's search asks one, and a code-judge as its rStar2 does."""
    if path == "/retrieve":
        found = [[{"contents": f"title\nabout {query}", "url": "a"}] for query in body["queries"]]
        return {"result": found}
    ran = {"run_success": True, "success": True, "stdout": "42", "stderr": "", "cost": 0.1}
    return {"results": [ran for _ in body["submissions"]]}


@pytest.fixture
def port() -> Iterator[str]:
    with json_server(answer) as url:
        yield url.rpartition(":")[2]


def write(folder: Path, **trees: dict[str, Any]) -> list[str]:
    for name, tree in trees.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(tree))
    return [f"--config-path={folder}", "--config-name=run"]


def steps_of(run: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]


CALLS = {
    "search": ("<search>a b</search>", ["tools.search.server_addr=127.0.0.1:{port}"]),
    "code": (
        '<tool_call>\n{"name": "python_code_with_standard_io", "arguments": {"code": "6*7"}}\n</tool_call>',
        [
            *("agentloop.toolcall_parser=rstar2-qwen", "reward.reward_type=rstar2"),
            *("tools.codejudge.host_addr=127.0.0.1", "tools.codejudge.host_port={port}"),
        ],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", CALLS)
def test_a_file_of_rlinf_calls_its_tools(kind: str, tmp_path: Path, port: str) -> None:
    call, own = CALLS[kind]
    rows.write(tmp_path / "train.jsonl", [{"prompt": f"{n}+0=", "solutions": [str(n)]} for n in range(8)])
    words = write(tmp_path, run=SEARCH, shard={"strategy": "fsdp2"})
    words += [f"data.train_data_paths=[{tmp_path}/train.jsonl]", f"runner.output_dir={tmp_path}"]
    words += [f"rollout.model.model_path={caller(tmp_path / 'model', call)}", "data.seed=3"]
    words += [word.format(port=port) for word in own]
    assert main_module(["train.py", *words, "toolwright.run.threads=1", "--fit"]) == 0
    assert steps_of(tmp_path / "wiki")[-1] == 3
    attempts = [one for file in sorted((tmp_path / "wiki" / "rollouts").iterdir()) for one in load(file)]
    assert "+0=" in "".join(segment.text for segment in attempts[0].segments)
    said = [segment.text for one in attempts for segment in one.segments if segment.source == "tool"]
    assert any("42" in text for text in said) if kind == "code" else said
    assert all(one.failure is None for one in attempts)


@pytest.mark.slow
def test_a_file_of_ragen_trains_on_the_boxes(model: Path, tmp_path: Path) -> None:
    words = write(tmp_path, run=SOKOBAN, envs=ENVS)
    words += [f"model_path={model}", f"trainer.default_local_dir={tmp_path}/boxes", "--fit"]
    words += ["toolwright.task.train_size=8", "toolwright.run.threads=1"]
    assert main_module(["train.py", *words]) == 0
    assert steps_of(tmp_path / "boxes")[-1] == 3
    attempts = load(tmp_path / "boxes" / "rollouts" / "step_000003.parquet")
    assert len(attempts) == 8
    assert "environment" in {segment.source for segment in attempts[0].segments}


def test_every_key_of_a_file_is_in_one_of_the_lists(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = write(tmp_path, run=SEARCH, shard={"strategy": "fsdp2"})
    words += ["data.train_data_paths=[a.jsonl]", "rollout.model.model_path=m", "data.seed=1"]
    words += ["tools.search.server_addr=a:1", "runner.output_dir=out"]
    assert main_module(["train.py", *words, "--show", "--fit"]) == 0
    shown = capsys.readouterr().out
    assert "actor.fsdp_config.strategy=fsdp2: not used" in shown
    assert "rollout.return_logprobs=false" in shown
    assert "cluster.component_placement.actor,rollout,reward=all" in shown


@pytest.mark.parametrize(("name", "table"), [("rlinf", RLINF), ("ragen", RAGEN)])
def test_what_a_table_leads_to_is_a_key_of_verl(name: str, table: Any) -> None:
    assert [key for key in table.rows()["translated"].values() if row_of(key) is None] == []


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("runner.task_type=embodied", "a robot's policy does not"),
        ("runner.task_type=coding_online_rl", "docs/any-agent.md"),
        ("agentloop.toolcall_parser=own", "calls are read as searchr1-qwen"),
        ("agentloop.max_planner_turns=10", "several agents"),
        ("reward.reward_type=vqa", "toolwright.reward.function=path.py:name"),
        ("algorithm.adv_type=raw", "advantages of language models are grpo"),
        ("algorithm.loss_scales=[group_level]", "or none"),
        ("data.prompt_key=question", "--map prompt=COLUMN"),
        ("algorithm.nobodys=1", "not a known key of rlinf"),
    ],
)
def test_what_rlinf_has_and_we_have_not_is_refused_in_words(word: str, reason: str) -> None:
    base = ["runner.seq_length=300", "data.max_prompt_length=100", "data.train_data_paths=[a.jsonl]"]
    base += ["data.rollout_batch_size=4", "rollout.model.model_path=m"]
    problems = translate([*base, word], machine=BARE, fit=True, files_may_miss=True).problems
    assert [reason in problem for problem in problems] == [True]


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("es_manager.train.env_configs.tags=[FrozenLake]", "Gymnasium's own lake"),
        ("es_manager.train.env_configs.tags=[Bandit]", "write it as an environment of yours"),
        ("es_manager.train.env_configs.tags=[SimpleSokoban,Bandit]", "one environment is played"),
        ("agent_proxy.use_turn_scores=True", "added up at the end of an attempt"),
        ("algorithm.bi_level_gae=True", "one discount"),
    ],
)
def test_what_ragen_has_and_we_have_not_is_refused_in_words(word: str, reason: str) -> None:
    base = ["es_manager.train.env_groups=2", "es_manager.train.group_size=2", "trainer.total_epochs=1"]
    base += ["actor_rollout_ref.model.path=m", "actor_rollout_ref.actor.ppo_mini_batch_size=2"]
    problems = translate([*base, word], machine=BARE, fit=True, files_may_miss=True).problems
    assert [reason in problem for problem in problems] == [True]


def test_a_refused_module_says_what_its_keys_would_become(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["data.train_files=x.parquet", "actor_rollout_ref.model.path=m", "data.train_batch_size=8"]
    assert main_module(["recipe.flowrl.main_flowrl", *words, "--show", "--fit"]) == 2
    shown = capsys.readouterr()
    assert "data.train_batch_size" in shown.out
    assert "partition function" in shown.err
