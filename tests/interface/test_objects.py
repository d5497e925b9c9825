"""Python objects in place of names: what is taken, what is refused, and what cannot travel."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import toolwright as tw
from toolwright import registry
from toolwright.interface.request import UserRequest

from .runs import first_letter, letters, louder, small


def refused(*words: str, **own: Any) -> str:
    with pytest.raises(tw.UserError) as caught, UserRequest("train", words, **own) as request:
        request.config()
    return str(caught.value)


def words_of(**own: Any) -> list[str]:
    with UserRequest("train", (), **own) as request:
        return request.words


def test_a_function_of_a_module_is_named_by_its_module() -> None:
    assert words_of(reward=first_letter) == [f"reward.function={__package__}.runs:first_letter"]
    assert words_of(tools=[louder]) == [f"tools.louder.path={__package__}.runs:louder"]
    assert words_of(task=letters) == ["task=file", f"task.name={__package__}.runs:letters"]


def test_names_are_taken_as_on_the_command_line() -> None:
    assert words_of(reward="exact", tools=["python"], task="sums", estimator="rloo") == [
        "reward.function=exact",
        "algorithm.adv_estimator=rloo",
        "tools.python={}",
        "task=sums",
    ]
    assert words_of(model="a folder/it's mine") == ["model.path='a folder/it\\'s mine'"]


def test_the_model_is_the_folder_that_was_given() -> None:
    for folder in ("models/a,b", "it's [mine]", Path("plain/model")):
        with UserRequest("train", (), model=folder) as request:
            assert request.config().model.path == str(folder)


def test_an_object_of_this_process_is_held_for_as_long_as_it_is_used() -> None:
    request = UserRequest("train", (), reward=lambda solution_str: 1.0)
    (word,) = request.words
    reference = word.partition("=")[2]
    assert registry.load_object(reference)("") == 1.0
    request.close()
    with pytest.raises(tw.UserError, match="is defined in the Python script or notebook"):
        registry.load_object(reference)


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"reward": 3}, "reward=3: expected a function f(data_source, solution_str"),
        ({"estimator": []}, "estimator=[]: expected a function of (rewards, mask, group, …), found a list"),
        ({"tools": louder}, "tools=louder: expected a list, such as tools=[my_tool], found a function"),
        ({"tools": "python"}, "tools=python: expected a list, such as tools=[my_tool], found a str"),
        (
            {"tools": [7]},
            "tools=7: expected a function with a docstring, a class, or a tool's name, found an int",
        ),
        ({"tools": [louder, louder]}, "two tools are called 'louder'"),
        (
            {"task": {"train": []}},
            "expected a TaskSet, a list of Tasks, or a function that returns a TaskSet",
        ),
        (
            {"task": []},
            "a list of Tasks, or a function that returns a TaskSet; found a list",
        ),
        ({"environment": dict}, "environment=… needs task=…"),
        ({"model": 5}, "model=5: expected a folder, found an int"),
    ],
)
def test_an_argument_of_the_wrong_kind_is_refused_in_one_sentence(own: dict[str, Any], said: str) -> None:
    assert said in refused(**own)


def test_a_wrong_word_is_refused_as_on_the_command_line() -> None:
    assert "did you mean" in refused("rollout.sampels=4")
    assert "3 is a int" in refused(3)  # type: ignore[arg-type]
    assert "write a loop" in refused("--multirun", "run.seed=0,1")


def test_what_is_given_twice_is_refused() -> None:
    assert "reward.function" in refused("reward.function=exact", reward=first_letter)


class Judge:
    def __call__(self, solution_str: str) -> float:
        return 1.0


def nested() -> Any:
    def inside(solution_str: str) -> float:
        return 1.0

    return inside


@pytest.mark.parametrize(
    ("reward", "why"),
    [
        (lambda solution_str: 1.0, "it is a lambda"),
        (nested(), "it is defined inside a function"),
        (Judge(), "it is an object of the class Judge"),
    ],
)
def test_what_no_other_process_can_import_does_not_travel_to_ray(reward: Any, why: str) -> None:
    told = refused("runtime=ray", reward=reward)
    assert "cannot be sent to Ray's workers" in told
    assert why in told
    assert "define it at the top of a module" in told


def test_what_a_script_defines_does_not_travel_to_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(louder, "__module__", "__main__")
    told = refused("runtime=ray", tools=[louder])
    assert "tools=louder cannot be sent to Ray's workers: it is defined in a script or a notebook" in told


def test_tasks_are_made_here_so_they_need_not_travel() -> None:
    with UserRequest("train", ["runtime=ray"], task=letters(), reward=first_letter) as request:
        assert request.config().runtime.name == "ray"


def test_a_tool_without_a_docstring_is_refused(tmp_path: Path) -> None:
    def silent(text: str) -> str:
        return text

    with pytest.raises(tw.UserError, match="tool 'silent' has no docstring"):
        small(tmp_path, tools=[silent])


def test_a_task_function_that_returns_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(tw.UserError, match=r"built a list, not a toolwright\.tasks\.TaskSet"):
        small(tmp_path, task=lambda: [1, 2])


def test_a_reward_of_a_notebook_scores_the_attempts(tmp_path: Path) -> None:
    seen: list[str] = []

    def reward(solution_str: str, ground_truth: str) -> dict[str, float]:
        seen.append(solution_str)
        return {"score": len(solution_str) / 8, "letters": float(solution_str.isalpha())}

    (step, *_) = small(tmp_path, "train.steps=1", reward=reward)
    assert {attempt.response for attempt in step.attempts} <= set(seen)
    for attempt in step.attempts:
        assert attempt.reward == len(attempt.response) / 8
        assert set(attempt.reward_parts) == {"letters"}


def test_a_reward_that_hangs_costs_its_time_limit_and_says_so(tmp_path: Path) -> None:
    def slow(solution_str: str) -> float:
        time.sleep(30)
        return 0.0

    words = ("train.steps=1", "reward.timeout_s=0.05")
    with (
        pytest.raises(tw.UserError, match=r"slow did not return within reward\.timeout_s=0\.05 s"),
        small(tmp_path, *words, reward=slow) as trainer,
    ):
        trainer.run()


def test_a_reward_that_raises_is_no_score(tmp_path: Path) -> None:
    def broken(solution_str: str) -> float:
        raise ValueError("not today")

    with pytest.raises(tw.UserError, match="not today"), small(tmp_path, reward=broken) as trainer:
        trainer.run()


def test_the_policy_is_told_of_a_tool(tmp_path: Path) -> None:
    words = ("train.steps=1", "model.context=2048", "rollout.max_tokens=8", "task.max_prompt_tokens=1024")
    (step, *_) = small(tmp_path, *words, tools=[louder])
    assert "Say a text louder." in step.attempts[0].segments[0].text


def test_tasks_can_be_a_list(tmp_path: Path) -> None:
    trainer = small(tmp_path, "rollout.max_tokens=4", task=list(letters().train), reward=first_letter)
    (step, *_) = trainer
    assert {attempt.task.ground_truth for attempt in step.attempts} <= set("abcdefgh")


class Mirror:
    """The world answers what was said, and wants its own word back."""

    def __init__(self, word: str = "a") -> None:
        self.word = word

    def reset(self, task: tw.Task) -> tw.Observation:
        return tw.Observation(f"Say {self.word}.")

    def step(self, action: str) -> tw.Outcome:
        return tw.Outcome(action, reward=float(self.word in action), done=True)

    def close(self) -> None:
        pass


def test_tasks_are_attempted_in_an_environment_that_is_given(tmp_path: Path) -> None:
    tasks = [tw.Task(word, [], extra_info={"environment": {"word": word}}) for word in "abcd"]
    trainer = small(tmp_path, "rollout.max_tokens=4", task=tasks, environment=Mirror)
    for step in trainer:
        for attempt in step.attempts:
            word = attempt.task.extra_info["environment"]["word"]
            assert attempt.reward == float(word in attempt.steps[0].text.strip())


def test_an_estimator_of_ones_own_is_asked_every_step(tmp_path: Path) -> None:
    called: list[int] = []

    def plain(*, rewards: Any, mask: Any) -> Any:
        called.append(len(rewards))
        advantages = rewards.sum(-1, keepdim=True) * mask
        return advantages, advantages

    small(tmp_path, reward=first_letter, estimator=plain).run()
    assert called[-3:] == [8, 8, 8]


def test_a_run_with_objects_is_resumed_with_them(tmp_path: Path) -> None:
    def reward(solution_str: str) -> float:
        return float(len(solution_str))

    trainer = small(tmp_path, reward=reward)
    for _ in trainer:
        break
    trainer.close()
    resumed = ("run.name=run", "run.resume=true", f"run.dir={tmp_path}")
    with pytest.raises(tw.UserError, match=r"'python:reward' is defined in the Python script or notebook"):
        tw.Trainer(*resumed)
    assert [step.number for step in tw.Trainer(*resumed, reward=reward)] == [2, 3]
