"""Exports: the best workflow as a file that says what the interpreter says, and needs no Toolwright."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.serve.conftest import serving
from tests.workflow.programs import operators_of
from toolwright import providers
from toolwright.cli import main
from toolwright.failures import UserError
from toolwright.providers import ChatReply
from toolwright.providers.settings import ChatSettings
from toolwright.trajectory import Task
from toolwright.workflow.export.program import as_langgraph, as_python
from toolwright.workflow.interpreter import WorkflowInterpreter
from toolwright.workflow.portfolio import Portfolio
from toolwright.workflow.program import Workflow, single_call
from toolwright.workflow.record import records
from toolwright.workflow.simulate import SimulatedChat, SimulatedRunner, World

from .word_model import word_model

PORTFOLIO = Portfolio.load().workflows
CODE = [name for name, workflow in PORTFOLIO.items() if "CustomCodeGenerate" in operators_of(workflow)]
PLAIN = [name for name in PORTFOLIO if name not in CODE]


class SteadyChat(SimulatedChat):
    """Says the same to the same words, whatever the seed."""

    async def complete(self, messages: list[dict[str, Any]], **settings: Any) -> ChatReply:
        return await super().complete(messages, **{**settings, "seed": 5})


def interpreted(chat: Any, workflow: Workflow, tasks: Sequence[Task]) -> list[str | None]:
    async def go() -> list[str | None]:
        own = WorkflowInterpreter(chat, runner=SimulatedRunner(), temperature=0.0, max_tokens=16)
        return [(await own.run(workflow, task)).answer for task in tasks]

    return asyncio.run(go())


def loaded(text: str, world: World) -> types.ModuleType:
    """The exported file as a module, its model being the simulated one."""
    module = types.ModuleType("exported")
    exec(compile(text, "exported.py", "exec"), module.__dict__)
    chat = SteadyChat(world)

    async def ask(prompt: str) -> str:
        said = await chat.complete([{"content": prompt}], temperature=0.0, max_tokens=2048)
        return said.text

    module.__dict__["ask"] = ask
    return module


def given(task: Task) -> dict[str, Any]:
    more = task.extra_info
    tests = {"entry_point": more["entry_point"], "tests": more["public_tests"]} if more else {}
    return {"problem": task.prompt[0]["content"], **tests}


@pytest.mark.parametrize(
    "name", ["ensemble of two kinds", "vote of 3 programs", "program, then check", *CODE]
)
def test_the_python_file_says_what_the_interpreter_says(name: str) -> None:
    world = World(3, code=name in CODE)
    tasks = world.tasks(4)
    module = loaded(as_python(PORTFOLIO[name], model="m"), world)

    async def go() -> list[str]:
        return [await module.solve(**given(task)) for task in tasks]

    assert asyncio.run(go()) == interpreted(SteadyChat(world), PORTFOLIO[name], tasks)


@pytest.mark.parametrize("name", ["ensemble of two kinds", "think, then program", "review and revise", *CODE])
def test_the_langgraph_says_what_the_interpreter_says(name: str) -> None:
    pytest.importorskip("langgraph", reason="LangGraph is not installed")
    world = World(3, code=name in CODE)
    tasks = world.tasks(4)
    graph = loaded(as_langgraph(PORTFOLIO[name], model="m"), world).build()

    async def go() -> list[str]:
        return [(await graph.ainvoke(given(task)))["answer"] for task in tasks]

    assert asyncio.run(go()) == interpreted(SteadyChat(world), PORTFOLIO[name], tasks)


@pytest.mark.parametrize("name", PLAIN)
def test_every_workflow_of_the_portfolio_can_be_exported(name: str) -> None:
    for write in (as_python, as_langgraph):
        text = write(PORTFOLIO[name], model="m")
        compile(text, "exported.py", "exec")
        assert "toolwright" not in text.replace("`toolwright workflow search`", "")


def test_a_tool_of_this_installation_stays_here() -> None:
    with pytest.raises(UserError, match="cannot be exported"):
        as_python(single_call("tool.calculator"), model="m")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    words = ["search.tasks=10", "search.held_out=2", "search.runs=60", "search.select=portfolio"]
    assert main(["workflow", "search", *words, f"run.dir={folder}", "run.name=one"]) == 0
    return folder / "one"


def test_the_command_writes_each_form(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for form, file in (("python", "simulated_python.py"), ("langgraph", "simulated_langgraph.py")):
        assert main(["workflow", "export", str(run), "--as", form]) == 0
        assert (run / "export" / file).is_file()
    assert main(["workflow", "export", str(run), "--as", "aflow", "--out", str(run / "round_1")]) == 0
    assert "class Workflow" in (run / "round_1/graph.py").read_text()
    assert capsys.readouterr().out.splitlines()[-1] == str(run / "round_1")
    assert main(["workflow", "export", str(run), "--data", "gsm8k"]) == 2
    assert "holds no search of 'gsm8k'" in capsys.readouterr().err
    (record,) = records(run).values()
    assert record.select == "portfolio"


@pytest.mark.xdist_group("serve")
def test_the_file_runs_with_the_openai_package_against_our_own_server(tmp_path: Path) -> None:
    """A model of random weights, greedily: it says nothing of use, and the same to both."""
    pytest.importorskip("openai")
    model = word_model(tmp_path / "model", ["1 2 3 + a b c the answer is"], width=32)
    workflow = PORTFOLIO["ensemble, then format"]
    with serving(model, "--context", "2048") as served:
        settings = ChatSettings(provider="openai", model=served.name, base_url=f"{served.url}/v1", price=0.0)
        task = Task("t", [{"role": "user", "content": "1+2?"}])

        async def go() -> str | None:
            chat = providers.open_chat(settings)
            try:
                own = WorkflowInterpreter(chat, temperature=0.0, max_tokens=16)
                return (await own.run(workflow, task)).answer
            finally:
                await providers.close(chat)

        wanted = asyncio.run(go())
        file = tmp_path / "best.py"
        file.write_text(as_python(workflow, model=served.name, temperature=0.0, max_tokens=16))
        where = {"OPENAI_BASE_URL": f"{served.url}/v1", "OPENAI_API_KEY": "none"}
        made = subprocess.run(
            [sys.executable, "-I", str(file), "1+2?"],
            env={**os.environ, **where},
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert made.returncode == 0, made.stderr
    assert made.stdout == f"{wanted}\n"
