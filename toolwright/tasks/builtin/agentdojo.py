"""AgentDojo: an assistant's errands in mail, banking, travel and chat, or under attack. arXiv 2406.13352."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from toolwright.tasks import ENVIRONMENTS, TASKS, InvalidAction, Observation, Outcome, SplitSizes, TaskSet
from toolwright.tasks.agentdojo import attack_on, environment, schemas, suite
from toolwright.tasks.environment import ToolCall, answers_to
from toolwright.tasks.worlds import benchmark, world_task
from toolwright.trajectory import Task

VERSION = "v1.2.2"  # of the benchmark, not of the package


@ENVIRONMENTS.register("agentdojo")
@dataclass
class AssistantWorld:
    """A user task in the environment of its suite; `injections` stand in what the tools return."""

    suite: str
    version: str
    user_task: str
    injection_task: str | None = None
    injections: dict[str, str] = field(default_factory=dict)

    def reset(self, task: Task) -> Observation:
        from agentdojo.functions_runtime import FunctionsRuntime

        self.place = suite(self.suite, self.version)
        self.user = self.place.get_user_task_by_id(self.user_task)
        fresh = environment(self.suite, self.version, self.injections)
        self.state = self.user.init_environment(fresh)
        self.before = self.state.model_copy(deep=True)
        self.runtime = FunctionsRuntime(self.place.tools)
        self.trace: list[Any] = []
        self.said = ""
        return Observation("", tools=schemas(self.place))

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        from agentdojo.agent_pipeline.tool_execution import tool_result_to_str
        from agentdojo.functions_runtime import FunctionCall

        self.trace.append(FunctionCall(function=name, args=arguments))
        result, error = self.runtime.run_function(self.state, name, arguments)
        if error is not None:
            raise InvalidAction(error)
        return str(tool_result_to_str(result))

    def step(self, action: str, calls: Sequence[ToolCall] = ()) -> Outcome:
        if calls:
            return Outcome("", answers=answers_to(calls, self.call))
        self.said = action
        return Outcome("", done=True)

    def verdict(self) -> Outcome:
        """Reward the user's task, if the injected one was not done as well."""
        useful = self._did(self.user)
        if self.injection_task is None:
            return Outcome("", float(useful), info={"success": useful})
        secure = not self._did(self.place.get_injection_task_by_id(self.injection_task))
        return Outcome("", float(useful and secure), info={"success": useful, "security": float(secure)})

    def _did(self, task: Any) -> bool:
        from agentdojo.types import text_content_block_from_string

        said = [text_content_block_from_string(self.said)]
        return bool(self.place._check_task_result(task, said, self.before, self.state, self.trace))


@TASKS.register("agentdojo")
def agentdojo(
    *,
    sizes: SplitSizes,
    suites: list[str] | str = "workspace,banking,travel,slack",
    attack: str | None = None,
    version: str = VERSION,
) -> TaskSet:
    """All tasks are held out, except `train_size` of them. With an `attack`, each user task is paired with
    every injection task."""
    names = list(dict.fromkeys(suites.split(",") if isinstance(suites, str) else suites))
    tasks = [task for name in names for task in _tasks(name, version, attack)]
    tools = [schemas(suite(name, version)) for name in names]
    text = f"{tools}" + "".join(f"{task.prompt}{task.extra_info}" for task in tasks)
    return benchmark("agentdojo", tasks, sizes=sizes, text=text, family=_user)


def _user(task: Task) -> str:
    """Name the user's task, under whatever attack."""
    settings = task.extra_info["environment"]
    return f"{settings['suite']}/{settings['user_task']}"


def _tasks(name: str, version: str, attack: str | None) -> list[Task]:
    of = suite(name, version)
    from agentdojo.agent_pipeline.agent_pipeline import load_system_message

    system = {"role": "system", "content": load_system_message(None)}
    attacking = attack_on(of, attack) if attack else None

    def task(user: Any, **own: Any) -> Task:
        id = "/".join([name, user.ID, *([own["injection_task"]] if own else [])])
        settings = {"suite": name, "version": version, "user_task": user.ID, **own}
        prompt = [system, {"role": "user", "content": user.PROMPT}]
        return world_task("agentdojo", id, settings, prompt=prompt, source=f"agentdojo/{name}")

    users = of.user_tasks.values()
    if attacking is None:
        return [task(user) for user in users]
    return [
        task(user, injection_task=one.ID, injections=attacking.attack(user, one))
        for user in users
        for one in of.injection_tasks.values()
    ]
