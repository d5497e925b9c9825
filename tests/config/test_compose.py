"""Schema, presets, files and the command line become one configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from toolwright.config.compose import PRESETS, Source, composer, preset_folders, resolve
from toolwright.config.schema import Config, SupervisedConfig

Write = Callable[[str, str], Path]


def config(*words: str, **source: Any) -> Any:
    return resolve(Source(**source), words).config


def presets(command: str) -> dict[str, list[str]]:
    with composer(Source(command)) as composing:
        return {group: list(names) for group, names in composing.vocabulary().groups.items()}


def combinations(command: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Few combinations in which every preset occurs."""
    groups = presets(command)
    for number in range(max(map(len, groups.values()))):
        yield command, {group: names[number % len(names)] for group, names in groups.items()}


@pytest.mark.parametrize(("command", "chosen"), [*combinations("train"), *combinations("sft")])
def test_every_preset_resolves(command: str, chosen: dict[str, str]) -> None:
    words = [f"{group}={preset}" for group, preset in chosen.items()]
    if chosen["task"] == "file":
        words.append("task.train=tasks.jsonl")
    assert config(*words, command=command)


def test_every_preset_file_belongs_to_a_group() -> None:
    known = {f"{group}/{name}" for group, names in presets("train").items() for name in names}
    known |= {"train", "sft", "rm", "demo", "demo_warm_start", "smollm2_sums", "workflow", "quick", "deep"}
    known |= {"mbpp_tests"}
    recipes = ("gsm8k_python", "hotpotqa_search")
    known |= {f"{name}{half}" for name in recipes for half in ("", "_start")}
    files = [file.relative_to(folder) for folder in preset_folders() for file in folder.rglob("*.yaml")]
    assert {str(file.with_suffix("")) for file in files} == known


def test_a_plugins_presets_lie_with_the_plugin() -> None:
    assert not [file for file in PRESETS.rglob("*.yaml") if "workflow" in file.read_text(encoding="utf-8")]
    assert config(command="workflow").search.select == "guided"


def test_each_command_has_its_schema() -> None:
    assert type(config()) is Config
    assert type(config(command="eval")) is Config
    assert type(config(command="sft")) is SupervisedConfig


def test_unset_keys_have_the_defaults_of_the_schema() -> None:
    assert config().checkpoint == Config().checkpoint


def test_a_preset_and_a_key_of_it_on_top() -> None:
    both = config("algorithm=grpo", "algorithm.adv_estimator=rloo")
    assert (both.algorithm.name, both.algorithm.adv_estimator) == ("grpo", "rloo")


def test_the_order_of_words_does_not_matter() -> None:
    words = ["algorithm=grpo", "algorithm.adv_estimator=rloo", "model=small", "model.layers=2"]
    assert config(*words) == config(*reversed(words))


def test_open_dictionaries_take_new_keys_with_or_without_a_plus() -> None:
    made = config("task.params.a=3", "+task.params.b.c=4", "++algorithm.params.gigpo.step_weight=0.5")
    assert made.task.params["a"] == 3
    assert made.task.params["b"] == {"c": 4}
    assert made.algorithm.params["gigpo"] == {"step_weight": 0.5}


def test_an_open_dictionary_may_be_given_whole() -> None:
    assert config("task.params={terms: 3, deep: {er: [1, 2]}}").task.params["deep"] == {"er": [1, 2]}


def test_a_list_of_words_is_blocks_of_an_open_dictionary_and_a_list_beneath_one() -> None:
    assert set(config("tools=[calculator,python]").tools) == {"calculator", "python"}
    assert config("task=gymnasium", "task.params.actions=[up,down]").task.params["actions"] == ["up", "down"]


@pytest.mark.parametrize("given", ["tools={}", "tools=[]"])
def test_an_empty_dictionary_takes_the_place_of_what_presets_say(given: str) -> None:
    assert set(config("task=gsm8k").tools) == {"python"}
    assert config("task=gsm8k", given).tools == {}
    assert config("task=gsm8k", given, "tools.calculator={}").tools == {"calculator": {}}


def test_a_list_of_words_takes_the_place_of_what_presets_say_and_a_dictionary_is_merged() -> None:
    assert set(config("task=gsm8k", "tools=[calculator]").tools) == {"calculator"}
    assert set(config("task=gsm8k", "tools={calculator: {}}").tools) == {"python", "calculator"}


def test_an_empty_dictionary_is_given_to_every_job_of_a_sweep() -> None:
    with composer(Source("train")) as composing:
        parsed = composing.parse(["task=gsm8k", "tools={}", "train.steps=1,2"], sweep=True)
        made = [composing.resolve(composing.parse(job)).config for job in composing.jobs(parsed)]
    assert [(job.train.steps, job.tools) for job in made] == [(1, {}), (2, {})]


def test_a_name_with_a_colon_is_the_users_own() -> None:
    made = config("algorithm.adv_estimator=mine.py:estimate", "rollout.agent=package.agents:Mine")
    assert made.algorithm.adv_estimator == "mine.py:estimate"
    assert made.rollout.agent == "package.agents:Mine"


def test_where_only_text_can_stand_it_is_taken_as_typed() -> None:
    typed = {
        "run.name": "1_000",
        "run.dir": "true",
        "task.train": "~/tasks.jsonl",
        "task.held_out": "naïve (2)=3",
        "model.path": "1e3",
        "model.device": "cuda:1",
    }
    made = config(*(f"{key}={text}" for key, text in typed.items())).model_dump()
    assert {key: made[key.split(".")[0]][key.split(".")[1]] for key in typed} == typed


def test_null_is_still_null_where_text_is_optional() -> None:
    assert config("run.name=null").run.name is None


def test_one_key_may_refer_to_another() -> None:
    assert config("run.name=${algorithm.name}-${run.seed}", "run.seed=3").run.name.endswith("-3")


def test_a_tilde_removes_what_a_preset_sets() -> None:
    assert config("~model.layers", "model=small").model.layers == Config().model.layers


def test_a_users_file_builds_on_ours(write: Write) -> None:
    write("conf/mine.yaml", "defaults: [train, override model: small, _self_]\nrollout: {prompts: 4}\n")
    made = config("rollout.samples=2", config_dir="conf", config_name="mine")
    assert (made.rollout.prompts, made.rollout.samples, made.model.width) == (4, 2, 128)


def test_a_users_preset_joins_the_group(write: Write) -> None:
    write("conf/algorithm/mix.yaml", "name: mix\nclip_high: 0.3\n")
    assert config("algorithm=mix", config_dir="conf").algorithm.clip_high == 0.3


def test_hydras_own_search_path_counts(write: Write, folder: Path) -> None:
    write("more/model/wide.yaml", "width: 256\n")
    assert config(f"hydra.searchpath=[file://{folder}/more]", "model=wide").model.width == 256


def test_sft_takes_task_presets_and_leaves_out_what_only_train_has(write: Write) -> None:
    write("conf/task/both.yaml", "# @package _global_\ntask: {held_out_size: 7}\nrollout: {max_turns: 2}\n")
    assert config("task=both", command="sft", config_dir="conf").task.held_out_size == 7
    assert config("task=both", command="train", config_dir="conf").rollout.max_turns == 2


def test_composing_leaves_nothing_behind(folder: Path) -> None:
    config("algorithm=grpo")
    assert list(folder.iterdir()) == []
