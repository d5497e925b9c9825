"""AFlow's Python and its folder: read without being run, written back with the same meaning."""

from __future__ import annotations

import asyncio
import json
import textwrap
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from tests.workflow.programs import ensemble, walks
from tests.workflow.test_program import walked
from toolwright.failures import UserError
from toolwright.providers import ChatReply
from toolwright.tasks.datasets import task_rows
from toolwright.tasks.rows import read as rows_of
from toolwright.trajectory import Task
from toolwright.workflow.aflow.folder import Folder, FolderRound, RoundExperience
from toolwright.workflow.aflow.read import NotExpressible, prompts_of, read
from toolwright.workflow.aflow.write import write
from toolwright.workflow.apply import applied
from toolwright.workflow.canonical import snake
from toolwright.workflow.datasets import adapted
from toolwright.workflow.diagram import as_text
from toolwright.workflow.edits import parse
from toolwright.workflow.graph import PROBLEM, Node, Ref, WorkflowLimits
from toolwright.workflow.interpreter import CodeSandbox, Trace, WorkflowInterpreter
from toolwright.workflow.program import Workflow, single_call

HERE = Path(__file__).parent
PUBLISHED = {name: HERE / "aflow" / name for name in ("GSM8K", "HumanEval")}


def published(name: str) -> Workflow:
    return read(*((PUBLISHED[name] / f"{part}.txt").read_text() for part in ("graph", "prompt")))


def sample(name: str, file: str) -> list[Task]:
    found = task_rows(name, rows_of(HERE.parent / "tasks" / "raw" / file), split="test")
    return [
        adapted(
            Task(
                str(number),
                row["prompt"],
                row["reward_model"]["ground_truth"],
                row["data_source"],
                row["extra_info"],
            )
        )
        for number, row in enumerate(found)
    ]


COST = 'self.llm.get_usage_summary()["total_cost"]'


def graph(body: str, *, imports: str = "", init: str = "") -> str:
    """A graph.py around the body of `__call__`."""
    kinds = ("Custom", "Review", "Revise", "ScEnsemble", "MdEnsemble", "Test", "Programmer")
    made = "\n".join(f"        self.{snake(kind)} = operator.{kind}(self.llm)" for kind in kinds)
    return (
        f"import workspace.X.workflows.template.operator as operator\n{imports}\nclass Workflow:\n"
        f"    def __init__(self, name, llm_config, dataset):\n"
        f"        self.llm = create_llm_instance(llm_config)\n"
        f"{made}\n{init}\n    async def __call__(self, problem: str, entry_point: str):\n"
        + textwrap.indent(textwrap.dedent(body).strip(), "        ")
    )


def test_the_published_workflow_for_gsm8k_loads_and_round_trips() -> None:
    flow = published("GSM8K")
    assert not flow.problems()
    assert as_text(flow) == (
        "custom = Custom(problem) x5 with SOLVE_PROMPT\n"
        "sc_ensemble = ScEnsemble([custom.response], problem)\n"
        "programmer = Programmer(problem, sc_ensemble.response)\n"
        "choose = programmer.output if programmer.output else sc_ensemble.response\n"
        "-> choose.value"
    )
    assert flow.calls == 9
    assert read(*write(flow)).fingerprint == flow.fingerprint


def test_the_published_workflow_for_humaneval_loads_and_round_trips() -> None:
    flow = published("HumanEval")
    assert not flow.problems()
    assert flow.calls == 8
    assert flow.by_name["custom_code_generate"].repeat == 3
    written, prompts = write(flow, data_set="HumanEval", round=7)
    assert "import workspace.HumanEval.workflows.round_7.prompt as prompt_custom" in written
    compile(written, "graph.py", "exec")
    assert read(written, prompts).fingerprint == flow.fingerprint


def test_the_form_that_metagpt_has_is_read_as_well() -> None:
    source = """
from typing import Literal
import metagpt.ext.aflow.scripts.optimized.GSM8K.workflows.template.operator as operator
import metagpt.ext.aflow.scripts.optimized.GSM8K.workflows.round_1.prompt as prompt_custom
from metagpt.provider.llm_provider_registry import create_llm_instance
from metagpt.utils.cost_manager import CostManager

DatasetType = Literal["HumanEval", "MBPP", "GSM8K", "MATH", "HotpotQA", "DROP"]

class Workflow:
    def __init__(self, name: str, llm_config, dataset: DatasetType) -> None:
        self.name = name
        self.dataset = dataset
        self.llm = create_llm_instance(llm_config)
        self.llm.cost_manager = CostManager()
        self.custom = operator.Custom(self.llm)

    async def __call__(self, problem: str):
        solution = await self.custom(input=problem, instruction="")
        return solution['response'], self.llm.cost_manager.total_cost
"""
    assert read(source).fingerprint == single_call().fingerprint


class Pupil:
    """Answers GSM8K's and HumanEval's sample tasks as a model might: some samples wrong, mended when told."""

    name = "pupil"

    def __init__(self, task: Task) -> None:
        self.task, self.asked = task, 0

    async def complete(self, messages: list[dict[str, Any]], **how: Any) -> ChatReply:
        prompt = messages[-1]["content"]
        self.asked += 1
        return ChatReply(self._said(prompt), (), len(prompt) // 4, 20, 0.001)

    def _said(self, prompt: str) -> str:
        info = self.task.extra_info
        if "solve()" in prompt:
            if "It failed" not in prompt:
                return "```python\ndef solve():\n    return undefined\n```"
            return f"```python\ndef solve():\n    return {self.task.ground_truth}\n```"
        if "<solution_letter>" in prompt:
            return "<solution_letter>A</solution_letter>"
        if "entry_point" in info:
            body = info["solution"] if "fails a test" in prompt else "    return None\n"
            return f"```python\n{info['declaration']}{body}```"
        return f"#### {self.task.ground_truth}"


async def ran(flow: Workflow, task: Task) -> Trace:
    sandbox = CodeSandbox()
    try:
        return await WorkflowInterpreter(Pupil(task), runner=sandbox).run(flow, task)
    finally:
        await sandbox.close()


def test_the_published_workflow_for_gsm8k_runs_its_program_in_the_sandbox() -> None:
    task = sample("gsm8k", "gsm8k_train.jsonl")[0]
    trace = asyncio.run(ran(published("GSM8K"), task))
    assert trace.failure == ""
    assert trace.answer == task.ground_truth
    assert [call.node for call in trace.calls][-2:] == ["programmer", "programmer"]
    assert "NameError" in trace.calls[-1].prompt  # what the sandbox said to the first try


def test_the_published_workflow_for_humaneval_mends_what_fails_the_public_tests() -> None:
    task = sample("humaneval", "HumanEval.jsonl.gz")[0]
    assert task.extra_info["public_tests"]
    trace = asyncio.run(ran(published("HumanEval"), task))
    assert trace.failure == ""
    assert [call.node for call in trace.calls] == ["custom_code_generate"] * 3 + ["sc_ensemble", "test"]
    assert "AssertionError" in trace.calls[-1].prompt
    assert task.extra_info["solution"].strip() in (trace.answer or "")


@settings(deadline=None, max_examples=25)
@given(walks)
def test_every_workflow_round_trips_through_aflows_python(places: list[int]) -> None:
    flow = walked(places)
    written, prompts = write(flow)
    compile(written, "graph.py", "exec")
    assert read(written, prompts).fingerprint == flow.fingerprint


def test_what_aflow_has_no_operator_for_is_said_in_the_file() -> None:
    flow = single_call("AnswerGenerate")
    assert not write(flow)[0].startswith("#")
    voted = applied(flow, parse("add Vote after solve x 5"))
    written, prompts = write(voted)
    assert written.startswith("# AFlow has no Vote: add what is missing to template/operator.py.\n")
    assert read(written, prompts).fingerprint == voted.fingerprint


def test_any_text_survives_the_round_trip() -> None:
    text = 'He said "no" — \\n is no newline,\n"""quotes""" {braces} \t🙂\x07'
    node = Node("a", "Custom", {"input": (text, PROBLEM, "'")}, "P")
    flow = Workflow((node,), (node.main, "\n", text), {"P": text})
    back = read(*write(flow))
    assert back.prompts == {"P": text}
    assert back.nodes[0].inputs == node.inputs
    assert back.fingerprint == flow.fingerprint


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (
            """
            rs = await asyncio.gather(*[self.custom(problem, f"Way {i + 1}.") for i in range(2)])
            best = await self.sc_ensemble(solutions=[r["response"] for r in rs], problem=problem)
            return best["response"], COST
            """,
            "custom = Custom(problem) with PROMPT_1\ncustom_2 = Custom(problem) with PROMPT_2\n"
            "sc_ensemble = ScEnsemble([custom.response, custom_2.response], problem)\n"
            "-> sc_ensemble.response",
        ),
        (
            """
            s = await self.custom(input=problem, instruction="")
            for _ in range(2):
                r = await self.review(problem=problem, solution=s["response"])
                if r["review_result"]:
                    break
                s = await self.custom(input=problem + r["feedback"], instruction="")
            return s["response"], COST
            """,
            "custom = Custom(problem)\n"
            "review = Review(problem, custom.response)\n"
            "custom_2 = Custom(problem + review.feedback)\n"
            "review_2 = Review(problem, custom_2.response)\n"
            "custom_3 = Custom(problem + review_2.feedback)\n"
            "choose = custom_2.response if review_2.review_result else custom_3.response\n"
            "choose_2 = custom.response if review.review_result else choose.value\n-> choose_2.value",
        ),
        (
            """
            t = await self.test(problem=problem, solution=problem, entry_point=entry_point, test_loop=2)
            print("tested")
            return (t["solution"] if t.get("result") else "none"), COST
            """,
            "test = Test(problem, problem, entry_point) rounds=2\n"
            "choose = test.solution if test.result else 'none'\n-> choose.value",
        ),
        (
            """
            a = await self.custom(input=problem, instruction=prompt_custom.A + f"Mind {problem}. ")
            return a["response"].strip()
            """,
            "custom = Custom('Mind ' + problem + '. ' + problem) with A\n-> custom.response",
        ),
        (
            """
            tried = [(await self.custom(input=problem, instruction=""))["response"] for _ in range(2)]
            said = "\\n---\\n".join(tried)
            last = await self.custom(input=f"Before: {said}", instruction=prompt_custom.A)
            return last["response"], COST
            """,
            "custom = Custom(problem)\ncustom_2 = Custom(problem)\n"
            "custom_3 = Custom('Before: ' + custom.response + '\\n---\\n' + custom_2.response) with A\n"
            "-> custom_3.response",
        ),
        (
            """
            a = await self.custom(input=problem, instruction="")
            b = await self.sc_ensemble(solutions=[f"It is {a['response']}.", "41"], problem=problem)
            if a["response"] and not b["response"]:
                return a["response"], COST
            return b["response"], COST
            """,
            "custom = Custom(problem)\n"
            "join = Join('It is ' + custom.response + '.')\n"
            "sc_ensemble = ScEnsemble([join.text, '41'], problem)\n"
            "choose = '' if sc_ensemble.response else 'yes'\n"
            "choose_2 = choose.value if custom.response else ''\n"
            "choose_3 = custom.response if choose_2.value else sc_ensemble.response\n-> choose_3.value",
        ),
    ],
)
def test_loops_and_conditions_are_followed(body: str, shown: str) -> None:
    flow = read(graph(body.replace("COST", COST)), 'A = "Think. "')
    assert as_text(flow) == shown
    assert read(*write(flow)).fingerprint == flow.fingerprint


def test_arguments_with_defaults_have_these() -> None:
    body = """
        a = await self.custom(input=problem, instruction=way)
        return a["response"] if task_id is None else ""
    """
    source = graph(body).replace("entry_point: str", "task_id=None, way='Think.'")
    assert as_text(read(source)) == "custom = Custom(problem) with PROMPT_1\n-> custom.response"


def test_a_search_in_a_folder_of_another_name_with_a_prompt_in_the_graph_is_read() -> None:
    source = graph(
        "a = await self.custom(input=problem, instruction=HOW + prompt_custom.A)\nreturn a['response']",
        imports="import runs.seed_1.round_2.prompt as prompt_custom\nHOW = 'Think. '",
    )
    assert read(source, 'A = "Twice."').prompts == {"PROMPT_1": "Think. Twice."}


def test_a_part_that_is_not_there_fails_the_attempt() -> None:
    task = sample("gsm8k", "gsm8k_train.jsonl")[0]
    trace = asyncio.run(ran(read(graph("return problem.split('no such words')[1]")), task))
    assert trace.blame == "workflow"
    assert "IndexError" in trace.failure


def test_a_text_of_several_pieces_is_one_element_of_a_list() -> None:
    flow = read(
        graph(
            """
            a = await self.custom(input=problem, instruction="")
            b = await self.sc_ensemble(solutions=[f"It is {a['response']}.", "41"], problem=problem)
            return b["response"]
            """
        )
    )
    assert len(flow.by_name["sc_ensemble"].inputs["solutions"]) == 2
    assert read(*write(flow)).fingerprint == flow.fingerprint


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (graph("return problem", imports="import os"), "line 2: it imports 'os'"),
        (graph("import os\nreturn problem"), "it imports 'os'"),
        (graph("return open('/etc/passwd').read()"), r"open\('/etc/passwd'\).read\(\)` has no equivalent"),
        (graph("return __import__('os').getcwd()"), "has no equivalent"),
        (graph("return problem.__class__"), "has no equivalent"),
        (graph("while True:\n    pass\nreturn problem"), "does not end within|no end that is known"),
        (
            graph("while True:\n    a = await self.custom(input=problem, instruction='')"),
            "more than 64 steps",
        ),
        (graph("return await self(problem)"), "must not call itself"),
        (graph("return await self.__call__(problem)"), "must not call itself"),
        (graph("for i in range(10000):\n    a = await self.custom(input=problem)"), "10000 rounds, and 64"),
        (graph("a = await self.solve(problem)\nreturn a"), "not one of the operators"),
        (graph("a = await self.custom(input=problem, instruction=prompt_custom.A)"), "defines no 'A'"),
        (graph("a = await self.custom(input=problem)\nreturn a['answer']"), "Custom returns no 'answer'"),
        (graph("a = await self.custom(inputs=problem)\nreturn a['response']"), "did you mean 'input'"),
        (graph("a = await self.custom(input=problem)\nreturn a"), "all that a step returned, without a key"),
        (graph("a = await self.custom(input=problem)"), "may end without a return"),
        (graph("return solution"), "'solution' may have no value"),
        (graph("a = self.custom(input=problem)\nreturn a"), "a step that nothing awaits"),
        (graph("a = await self.custom(input=problem)\nreturn await a"), "cannot be awaited"),
        (graph("if problem < 3 < 4:\n    return problem\nreturn problem"), "`problem < 3 < 4`"),
        (graph("if problem < 3:\n    return problem\nreturn problem"), "is not a supported condition"),
        (graph("if None < 3:\n    return problem\nreturn problem"), "`None < 3` fails"),
        (graph("return 'Do {way}'.format(wy=1)"), "nothing is given for 'way'"),
        (graph("return f'{1 // 0}'"), "`1 // 0` cannot be computed"),
        (graph("return problem.split(' ')['a']"), "cannot be looked up before it runs"),
        (graph("return problem.split(' ', 1)[1]"), "has no equivalent in a workflow"),
        (graph("for i in range(len(problem)):\n    pass\nreturn problem"), "has no equivalent in a workflow"),
        (graph("for i in range(problem):\n    pass\nreturn problem"), "`problem` must be a number"),
        (graph("return 'Do {'.format(way=1)"), "cannot be filled in before it runs"),
        (graph("return problem.format(way=1)"), "cannot be filled in before it runs"),
        (
            graph("a = [s for s in [await self.custom(input=problem)] if s['response']]\nreturn a[0]"),
            "how many items",
        ),
        (graph("return [a + b for a in ['x'] for b in ['y']][0]"), "one list at a time"),
        (
            graph("return problem", init="        self.x = operator.Oracle(self.llm)"),
            "unknown operator 'Oracle'",
        ),
        (graph("return problem", init="        self.x = open('x')"), "is not AFlow's"),
        (graph("return problem") + "\n    def helper(self):\n        pass", "and nothing else"),
        ("class Workflow:\n  pass", "no `async def __call__`"),
        ("x = 1", "there is no `class Workflow`"),
        ("x = open('x')", "only `class Workflow` is expected"),
        ("def (", "it is not Python"),
        (graph("return " + "(" * 300 + "problem" + ")" * 300), "not Python|too deeply"),
        (graph("return " + "+".join(["problem"] * 5000)), "too deeply|not Python"),
    ],
)
def test_what_cannot_be_said_is_refused_with_its_line(source: str, said: str) -> None:
    with pytest.raises(NotExpressible, match=said):
        read(source)


def test_a_prompt_file_holds_texts_and_nothing_else() -> None:
    assert prompts_of('A = """x\n"""\nB = "y" "z"') == {"A": "x\n", "B": "yz"}
    assert prompts_of('A = "x"\nasync def __call__(self, problem):\n    return A') == {"A": "x"}
    for source in ("import os", "A = open('x')", "print(1)", "A = 1"):
        with pytest.raises(NotExpressible, match=r"prompt\.py, line 1"):
            prompts_of(source)


def test_a_search_of_aflows_is_read_and_continued(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "GSM8K", data_set="GSM8K")
    first, second = published("GSM8K"), ensemble()
    folder.path.mkdir()
    folder.write(FolderRound(1, second, (0.5, 0.6), 0.002, log=[{"question": "q", "right_answer": "1"}]))
    folder.write(FolderRound(2, first, (0.7,), 0.004, RoundExperience(1, "add Programmer", 0.55, 0.7)))
    folder.write(FolderRound(3, first, (0.4,), 0.004, RoundExperience(1, "remove it", 0.55, 0.4)))

    told = json.loads((folder.path / "processed_experience.json").read_text())
    assert told == {
        "1": {
            "score": 0.55,
            "success": {"2": {"modification": "add Programmer", "score": 0.7}},
            "failure": {"3": {"modification": "remove it", "score": 0.4}},
        }
    }
    results = json.loads((folder.path / "results.json").read_text())
    assert [(entry["round"], entry["score"]) for entry in results] == [(1, 0.5), (1, 0.6), (2, 0.7), (3, 0.4)]
    assert json.loads((folder.path / "round_2" / "experience.json").read_text())["father node"] == 1

    rounds = Folder(folder.path).rounds()
    assert [round.number for round in rounds] == [1, 2, 3]
    assert rounds[0].score == pytest.approx(0.55)
    assert rounds[0].log == [{"question": "q", "right_answer": "1"}]
    assert rounds[1].workflow is not None
    assert rounds[1].workflow.fingerprint == first.fingerprint
    assert rounds[1].experience == RoundExperience(1, "add Programmer", 0.55, 0.7)


def test_a_round_that_cannot_be_expressed_does_not_hide_the_others(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "workflows")
    folder.path.mkdir()
    folder.write(FolderRound(1, ensemble(), (0.5,)))
    (folder.path / "round_2").mkdir()
    (folder.path / "round_2" / "graph.py").write_text("import os\n")
    one, two = folder.rounds()
    assert one.workflow is not None
    assert two.workflow is None
    assert "round_2/graph.py, line 1: it imports 'os'" in two.refusal
    with pytest.raises(UserError, match="no such folder"):
        Folder(tmp_path / "nowhere").rounds()


def test_a_workflow_read_is_held_to_limits_as_any_other() -> None:
    source = graph(
        """
        for _ in range(30):
            a = await self.custom(input=problem, instruction="")
            problem = problem + a["response"]
        return problem
        """
    )
    flow = read(source)
    assert any("30 calls" in said for said in flow.problems(WorkflowLimits(nodes=100, depth=100)))
    assert Ref("task", "problem") in flow.output
