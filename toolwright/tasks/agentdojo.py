"""AgentDojo's suites of user tasks, and the attacks that put other orders into what their tools return."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

from toolwright.failures import UserError, extra, nearest


@functools.cache
def suite(name: str, version: str) -> Any:
    """A suite of the benchmark's version, such as v1.2.2."""
    with extra("agentdojo", needed_by="task 'agentdojo'"):
        from agentdojo.task_suite.load_suites import get_suites
    known = get_suites(version)
    if not known:
        raise UserError(f"task.params.version: AgentDojo has no version {version!r}; v1.2.2 is one")
    if name not in known:
        raise UserError(f"task.params.suites: AgentDojo has no suite {name!r}; {nearest(name, known)}")
    return known[name]


def schemas(of: Any) -> list[dict[str, Any]]:
    """The tools of a suite in OpenAI's form."""
    return [
        {
            "type": "function",
            "function": {
                "name": one.name,
                "description": one.description,
                "parameters": one.parameters.model_json_schema(),
            },
        }
        for one in of.tools
    ]


def attack_on(of: Any, name: str) -> Any:
    """An attack of the package. `attack(user_task, injection_task)` returns the text for each place."""
    import agentdojo.attacks  # noqa: F401 - registers them
    from agentdojo.agent_pipeline.ground_truth_pipeline import GroundTruthPipeline
    from agentdojo.attacks.attack_registry import ATTACKS

    # The manual one asks at the keyboard, and those that only want the task to fail inject no task.
    known = [own for own, kind in ATTACKS.items() if own != "manual" and not kind.is_dos_attack]
    if name not in known:
        raise UserError(f"task.params.attack: AgentDojo has no attack {name!r} here; {nearest(name, known)}")
    target = GroundTruthPipeline(None)
    target.name = "local"  # some attacks address the model by name: "Local model"
    return ATTACKS[name](of, target)


def environment(name: str, version: str, injections: Mapping[str, str]) -> Any:
    """A fresh environment of a suite, with the injections in it."""
    return _loaded(name, version, json.dumps(injections, sort_keys=True)).model_copy(deep=True)


@functools.lru_cache(maxsize=64)
def _loaded(name: str, version: str, injections: str) -> Any:
    """Attempts at one task copy what was read once: to read the file takes 0.2 s, a copy a millisecond."""
    return suite(name, version).load_and_inject_default_environment(json.loads(injections))
