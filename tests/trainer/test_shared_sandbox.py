"""A run whose tools run code has one sandbox: its scorer runs programs against tests in the same one."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from toolwright.tools.settings import sandbox_in
from toolwright.trainer.preparation import prepare
from toolwright.trainer.roles import start_roles
from toolwright.trajectory import Segment, Task, Trajectory

from .runs import configured

TRUTH = {"tests": ["assert double(2) == 4"]}


def attempt(program: str) -> Trajectory:
    task = Task("t", [{"role": "user", "content": "Double it."}], TRUTH, "mbpp")
    said = Segment("policy", [1], [0.0], f"```python\n{program}\n```")
    return Trajectory(task, "g", segments=[Segment("prompt", [], text="Double it."), said])


def sandboxes() -> int:
    """Servers that this process has started, by whichever of its threads."""
    found = 0
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # a thread or a process that has just ended
            for pid in (task / "children").read_text().split():
                found += b"toolwright.cli.sandbox" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return found


def test_the_scorer_uses_the_tools_server() -> None:
    own = ("tools={python: {}}", "reward.function=mbpp", "reward.timeout_s=600")
    before = sandboxes()
    room = ("rollout.agent=auto", "model.context=2048", "task.max_prompt_tokens=2000")
    roles = start_roles(prepare(configured(*own, *room)).role_config)
    try:
        right, wrong = attempt("def double(x):\n    return 2 * x"), attempt("def double(x):\n    return x")
        roles.loop.run(roles.rewards.score([right, wrong]))
        assert (right.reward, wrong.reward) == (1.0, 0.0), (right.failure, wrong.failure)
        assert sandboxes() == before + 1
    finally:
        roles.close()


def test_which_server_can_be_shared() -> None:
    assert sandbox_in({"calculator": {}, "python": {"url": "http://a:1"}}) == "http://a:1"
    assert sandbox_in({"mine": {"path": "python_session", "url": "http://a:1"}}) == "http://a:1"
    assert sandbox_in({"python": {"url": "http://a:1", "token": "secret"}}) is None
    assert sandbox_in({"code_judge": {"url": "http://a:1"}}) is None  # may be a code-judge server
    assert sandbox_in({"code_judge": {"url": "http://a:1", "enable_jupyter": True}}) == "http://a:1"
    assert sandbox_in({"search": {"url": "http://a:1"}, "my.py:tool": {"url": "http://a:1"}}) is None
