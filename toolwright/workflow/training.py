"""Workflow and executor together: search for a workflow, train the model within it, and search again."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from toolwright.failures import TaskFailure, UserError
from toolwright.providers import close, open_chat
from toolwright.providers.settings import ChatSettings
from toolwright.sandbox.local import local_server
from toolwright.trajectory import Task
from toolwright.workflow import datasets
from toolwright.workflow.config import WorkflowConfig
from toolwright.workflow.interpreter import CodeSandbox, WorkflowInterpreter, toolbox_of
from toolwright.workflow.operators import operator
from toolwright.workflow.program import Workflow
from toolwright.workflow.record import records

WORKFLOW = "TOOLWRIGHT_WORKFLOW"  # the variable with the path of the workflow that `solve` runs
SANDBOX = "TOOLWRIGHT_WORKFLOW_SANDBOX"  # the variable with the address of the server its programs run on
NO_ANSWER = "no answer"  # of a workflow that failed: scored, and not dropped


async def solve(task: dict[str, Any], policy: dict[str, str]) -> str:
    """Run a workflow on a task, as the agent of a training: every call asks the policy that is trained. All
    its tokens are trained with the score of what the workflow answers."""
    workflow = Workflow.from_json(Path(os.environ[WORKFLOW]).read_text(encoding="utf-8"))
    settings = ChatSettings(
        provider="openai",
        model=policy["model"],
        base_url=policy["base_url"],
        api_key_env="OPENAI_API_KEY",
        price=0,  # type: ignore[arg-type]  # one number stands for both
        retries=0,
    )
    chat, runner = open_chat(settings), CodeSandbox(os.environ.get(SANDBOX))
    tools = toolbox_of(node.operator for node in workflow.live)
    own = Task(task["id"], task["prompt"], data_source=task["data_source"], extra_info=task["extra_info"])
    try:
        trace = await WorkflowInterpreter(chat, runner=runner, tools=tools).run(workflow, own)
    finally:
        await tools.close()
        await close(chat)
        await runner.close()
    if trace.blame == "infrastructure":
        raise TaskFailure(trace.failure)
    return trace.answer or NO_ANSWER


def alternate(
    folder: Path, config: WorkflowConfig, search: Sequence[str], train: Sequence[str], *, rounds: int
) -> Path:
    """Search with the model of `executor.chat.model`, train it within the best workflow on the tasks of the
    search's split, and so on; last comes a search with the trained model. Returns the last model's folder.
    What is there already is not made again."""
    chat = config.executor.chat
    if len(config.data) != 1 or chat.get("provider") != "engine" or "model" not in chat:
        raise UserError(
            "workflow train takes one data set, and a model folder: "
            "executor.chat.provider=engine executor.chat.model=FOLDER"
        )
    model = Path(str(chat["model"]))
    folder.mkdir(parents=True, exist_ok=True)
    tasks = _task_files(folder, config)
    said = []
    for number in range(rounds + 1):
        name, best = f"search_{number}", folder / f"workflow_{number}.json"
        words = [*search, f"executor.chat.model={model}", f"run.dir={folder}", f"run.name={name}"]
        resumed = ["run.resume=true"] if (folder / name).exists() else []
        _run(["workflow", "search", *words, *resumed])
        (record,) = records(folder / name).values()
        best.write_text(json.dumps(record.winner.program, ensure_ascii=False), encoding="utf-8")
        said.append(record.held_out)
        if number < rounds:
            name = f"train_{number}"
            resumed = ["run.resume=true"] if (folder / name).exists() else []
            agent = [
                f"rollout.agent.function={__name__}:solve",
                f"rollout.agent.env.{WORKFLOW}={best.absolute()}",
            ]
            where = [f"model.path={model}", f"run.dir={folder}", f"run.name={name}"]
            with _sandbox(record.winner.program) as address:
                here = [f"rollout.agent.env.{SANDBOX}={address}"] if address else []
                _run(["train", *tasks, *agent, *here, *train, *where, *resumed])
            model = folder / name / "model"
    for number, held_out in enumerate(said):
        told = ", ".join(f"{who} {100 * score:.1f} %" for who, score in held_out.items())
        print(f"after {number} trainings, unseen tasks: {told}")
    return model


@contextmanager
def _sandbox(program: dict[str, Any]) -> Iterator[str | None]:
    """The address of one server for all attempts of a training whose workflow runs programs. Without it,
    every attempt would start one."""
    workflow = Workflow.from_json(program)
    if any("sandbox" in operator(node.operator).needs for node in workflow.live):
        with local_server() as address:
            yield address
    else:
        yield None


def _run(command: list[str]) -> None:
    """Run a command. One that fails has said why, and its exit code becomes this command's."""
    from toolwright.cli import main

    if code := main(command):
        raise SystemExit(code)


def _task_files(folder: Path, config: WorkflowConfig) -> list[str]:
    """Write the tasks of both splits as files of tasks; returns the trainer's words for them."""
    search = config.search
    found = datasets.load(config.data[0], folder=Path(search.folder), seed=config.run.seed)
    judged = found.test[: max(1, search.held_out)]
    for split, tasks in (("train", found.validation), ("held_out", judged)):
        rows = [
            {
                "prompt": task.prompt,
                "data_source": task.data_source,
                "reward_model": {"ground_truth": task.ground_truth},
                "extra_info": task.extra_info,
            }
            for task in tasks
        ]
        lines = (json.dumps(row, ensure_ascii=False) for row in rows)
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    files = [f"task.{split}={folder.absolute() / split}.jsonl" for split in ("train", "held_out")]
    return ["task=file", *files, f"task.held_out_size={len(judged)}"]
