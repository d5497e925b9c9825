"""AgentDojo: user tasks in its own environments, judged by its own checks, with and without an attack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from toolwright.config import schema
from toolwright.failures import UserError
from toolwright.observe.evaluation import EvaluationResult
from toolwright.tasks import load
from toolwright.trajectory import Task

from .functions import NOTHING, Turn, attempted

pytest.importorskip("agentdojo", reason="needs pip install 'toolwright[agentdojo]'")
pytest.importorskip("agentdojo.task_suite", reason="needs pip install 'toolwright[agentdojo]'")

from toolwright.tasks.agentdojo import environment, suite


def tasks_of(*suites: str, **params: Any) -> list[Task]:
    config = schema.TaskConfig(
        name="agentdojo", held_out_size=5000, params={"suites": list(suites), **params}
    )
    return list(load(config, seed=0, learns=False).held_out)


def plan(task: Task, which: str) -> Sequence[Turn]:
    """The calls of the ground truth of the user's task or the injected one, and its answer."""
    settings = task.extra_info["environment"]
    place = settings["suite"], settings["version"]
    own = suite(*place)
    user = own.get_user_task_by_id(settings["user_task"])
    goal = user if which == "user_task" else own.get_injection_task_by_id(settings[which])
    state = user.init_environment(environment(*place, settings.get("injections", {})))
    calls: list[Turn] = [[(one.function, dict(one.args))] for one in goal.ground_truth(state)]
    return [*calls, goal.GROUND_TRUTH_OUTPUT or "Done."]


@pytest.mark.parametrize("name", ["banking", "slack"])
def test_the_calls_of_the_ground_truth_earn_full_marks(name: str) -> None:
    found = attempted(tasks_of(name), lambda task: plan(task, "user_task"))
    assert [t.failure for t in found if t.failure] == []
    assert [t.task.id for t in found if t.reward != 1.0] == []


def test_the_same_holds_where_to_read_the_environment_takes_longer() -> None:
    tasks = [*tasks_of("workspace")[:6], *tasks_of("travel")[:6]]
    found = attempted(tasks, lambda task: plan(task, "user_task"))
    assert {t.reward for t in found} == {1.0}
    assert all(t.counts["tool_calls"] >= 1 for t in found)


def test_to_do_nothing_or_something_else_is_useless() -> None:
    tasks = tasks_of("slack")
    assert sum(t.reward or 0.0 for t in attempted(tasks, lambda task: NOTHING)) == 0
    found = attempted(tasks, lambda task: [[("get_channels", {}), ("fly", {"to": "Mars"})], "Done."])
    assert sum(t.reward or 0.0 for t in found) == 0
    assert {t.counts["tool_errors"] for t in found} == {1}
    assert "there is no tool 'fly'" in found[0].segments[2].text


def test_under_attack_utility_and_security_are_two_measures() -> None:
    tasks = tasks_of("banking", attack="important_instructions")[:24]
    assert all("INFORMATION" in str(task.extra_info["environment"]["injections"]) for task in tasks)
    good = EvaluationResult.of(attempted(tasks, lambda task: plan(task, "user_task")))
    assert good.estimate("accuracy").value == 1.0
    assert good.estimate("security").value > 0.9, "a few injected tasks are what some users want anyway"
    fooled = attempted(tasks, lambda task: plan(task, "injection_task"))
    assert EvaluationResult.of(fooled).estimate("security").value == 0.0
    assert {t.reward for t in fooled} == {0.0}
    assert {t.reward_parts["security"] for t in fooled} == {0.0}
    idle = EvaluationResult.of(attempted(tasks, lambda task: NOTHING))
    assert idle.estimate("accuracy").value < 0.5, "the benchmark accepts it for five tasks of banking"
    assert idle.estimate("security").value == 1.0
    assert "security" in idle.names
    assert "held_out/security_low" in idle.metrics(whole=True)


def test_an_attempt_begins_with_a_fresh_environment() -> None:
    task = next(t for t in tasks_of("banking") if t.id.endswith("user_task_0"))
    again = [Task(f"{task.id} {n}", task.prompt, extra_info=task.extra_info) for n in range(3)]
    assert [t.reward for t in attempted(again, lambda task: plan(task, "user_task"))] == [1.0] * 3


def test_no_user_task_is_both_learned_from_and_held_out() -> None:
    params = {"suites": "slack", "attack": "direct"}
    tasks = load(
        schema.TaskConfig(name="agentdojo", train_size=12, held_out_size=5000, params=params), seed=0
    )
    users = [{task.id.rpartition("/")[0] for task in split} for split in (tasks.train, tasks.held_out)]
    assert (len(tasks.train), len(tasks.held_out)) == (12, 18 * 5)
    assert not users[0] & users[1]


@pytest.mark.parametrize(
    ("suites", "params", "why"),
    [
        (["bankng"], {}, r"no suite 'bankng'; did you mean 'banking'\?"),
        (["banking"], {"attack": "importnt_instructions"}, "did you mean 'important_instructions'"),
        (["banking"], {"attack": "manual"}, "no attack 'manual' here"),
        (["banking"], {"version": "v9"}, "no version 'v9'"),
    ],
)
def test_unknown_names_are_errors_in_words(suites: list[str], params: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError, match=why):
        tasks_of(*suites, **params)
