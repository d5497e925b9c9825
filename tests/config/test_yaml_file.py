"""A configuration written to a file reads back equal, and a run goes on from its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolwright.config import Config, SupervisedConfig, from_yaml, to_yaml
from toolwright.config.compose import Source, resolve
from toolwright.failures import UserError

Write = Callable[[str, str], Path]
texts = st.text(st.characters(blacklist_categories=["Cs", "Cc"]), max_size=12)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts, lambda inner: st.lists(inner, max_size=3)
)


def config(*words: str, **source: Any) -> Any:
    return resolve(Source(**source), words).config


@settings(max_examples=30, deadline=None)
@given(name=texts, params=st.dictionaries(texts, values, max_size=3), lr=st.floats(1e-12, 1e3))
def test_a_round_trip_changes_nothing(
    tmp_path_factory: Any, name: str, params: dict[str, Any], lr: float
) -> None:
    made = Config.model_validate(
        {"run": {"name": name}, "task": {"params": params}, "update": {"policy": {"lr": lr}}}
    )
    file = tmp_path_factory.getbasetemp() / "config.yaml"
    file.write_text(to_yaml(made), encoding="utf-8")
    assert from_yaml(file) == made


def test_the_other_schema_round_trips_too(write: Write) -> None:
    assert from_yaml(write("config.yaml", to_yaml(SupervisedConfig(steps=3))), SupervisedConfig).steps == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rollout: {sampels: 4}", "rollout.sampels=4 (file config.yaml): unknown key"),
        ("rollout: [", "config.yaml, line 2: not valid YAML"),
        ("just text", "config.yaml should hold keys and values"),
    ],
)
def test_a_yaml_file_is_validated(write: Write, text: str, said: str) -> None:
    write("config.yaml", text + "\n")
    with pytest.raises(UserError) as caught:
        from_yaml("config.yaml")
    assert str(caught.value).startswith(said)


@pytest.fixture
def old(write: Write) -> Config:
    made: Config = config(
        "model=small", "rollout.samples=3", "run.name=old", "task.params.note='\\${not} a key'"
    )
    write("runs/old/config.yaml", to_yaml(made))
    return made


def test_resuming_starts_from_the_runs_own_configuration(old: Config) -> None:
    again = config("run.name=old", "run.resume=true", "train.steps=7")
    expected = old.model_dump(mode="json")
    expected["run"]["resume"] = True
    expected["train"]["steps"] = 7
    assert again.model_dump(mode="json") == expected


def test_evaluating_a_run_takes_its_configuration_and_what_it_learned(
    old: Config, folder: Path, complaint: Callable[..., str]
) -> None:
    words = ["run.name=old", "run.resume=true"]
    assert "runs/old has no model/ yet" in complaint(*words, command="eval")
    (folder / "runs/old/model").mkdir()
    assert config(*words, command="eval").model == old.model.model_copy(update={"path": "runs/old/model"})
    assert resolve(Source("eval"), words).origin("model.path") == "run runs/old"
    assert config(*words, "model.path=other", command="eval").model.path == "other"


def test_the_origins_of_a_resumed_run(old: Config) -> None:
    made = resolve(Source(), ["run.name=old", "run.resume=true", "model=tiny"])
    assert made.origin("rollout.samples") == "file runs/old/config.yaml"
    assert made.origin("model.layers") == "preset model/tiny"
    assert made.origin("run.resume") == "command line"


def test_the_same_command_with_resume_added_is_the_same_run(old: Config) -> None:
    again = config(
        "model=small",
        "rollout.samples=3",
        "run.name=old",
        "task.params.note='${run.seed}'",
        "run.resume=true",
    )
    assert again.model_copy(update={"run": old.run, "task": old.task}) == old


def test_a_run_folder_that_was_moved_is_resumed_where_it_is(old: Config, folder: Path) -> None:
    (folder / "runs").rename(folder / "elsewhere")
    assert config("run.dir=elsewhere", "run.name=old", "run.resume=true").run.dir == "elsewhere"


def test_resuming_a_missing_run_is_an_error(old: Config, complaint: Callable[..., str]) -> None:
    assert complaint("run.resume=true").endswith("needs run.name, the run to resume; in runs there are: old")
    assert "runs/odl does not exist; did you mean 'old'?" in complaint("run.resume=true", "run.name=odl")


def test_a_run_of_another_command_cannot_be_resumed(write: Write, complaint: Callable[..., str]) -> None:
    write("runs/warm/config.yaml", to_yaml(SupervisedConfig()))
    said = complaint("run.resume=true", "run.name=warm")
    assert said == "runs/warm is a run of `sft`; `train` cannot resume it"


@pytest.mark.parametrize(
    ("stated", "oversample"),
    [
        ("{resample_on_correct: false, oversample: 2}", 1),
        ("{resample_on_correct: true, oversample: 4}", 4),
        ("{resample_on_correct: true}", 2),
        ("{oversample: 3}", 3),
    ],
)
def test_a_configuration_of_before_says_the_same_in_the_keys_of_today(
    write: Write, stated: str, oversample: int
) -> None:
    made = from_yaml(write("config.yaml", f"algorithm: {{selection: {stated}}}\n"))
    assert made.algorithm.selection.oversample == oversample


def test_a_former_key_on_the_command_line_names_its_replacement() -> None:
    with pytest.raises(UserError) as caught:
        resolve(Source(), ["algorithm.selection.resample_on_correct=true"])
    assert str(caught.value) == (
        "algorithm.selection.resample_on_correct=true: use algorithm.selection.oversample=2"
    )
