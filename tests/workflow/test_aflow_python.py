"""What is written as AFlow's Python does, run as Python, what the workflow does in the interpreter."""

from __future__ import annotations

import asyncio
import functools
import re
from textwrap import indent
from types import SimpleNamespace
from typing import Any, Literal

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.workflow.programs import built, walks
from tests.workflow.test_aflow import COST, PUBLISHED, graph, published
from tests.workflow.test_program import walked
from toolwright.providers import ChatReply
from toolwright.trajectory import Task
from toolwright.workflow.aflow.read import NotExpressible, prompts_of, read
from toolwright.workflow.aflow.write import TEMPLATES, write
from toolwright.workflow.interpreter import CodeRun, WorkflowInterpreter, seed_of
from toolwright.workflow.operators import operator
from toolwright.workflow.program import Workflow

INFO = {"entry_point": "f", "public_tests": ["x"]}
TASK = Task("t", [{"role": "user", "content": "What?"}], "1", "numeric", INFO)


def answer(prompt: str) -> str:
    """A model whose answers follow from the prompt, in every form that an operator reads."""
    number = seed_of(prompt)
    letter = "A"
    if "<solution_letter>" in prompt:  # by what the solutions say, not by where they stand
        shown = re.split(r"\n\n(?:Which solution|Put the letter)", prompt.partition("\n\nA:\n")[2])[0]
        solutions = re.split(r"\n\n[B-P]:\n", shown)
        letter = chr(ord("A") + solutions.index(min(solutions)))
    return (
        f"{number % 1000} <solution_letter>{letter}</solution_letter>"
        f"<review_result>{'true' if number % 2 else 'false'}</review_result>"
        f"<feedback>{number % 97}</feedback><answer>{number % 89}</answer>"
        f"<solution>{number % 83}</solution>\n"
        f"```python\ndef solve():\n    return {number % 79}\n```"
    )


class Runner:
    async def run(self, code: str) -> CodeRun:
        number = seed_of(code)
        return CodeRun(number % 3 > 0, str(number % 71), "it failed")

    async def close(self) -> None:
        """Nothing was started."""


class Chat:
    name = "follows"
    waits = False

    async def complete(self, messages: list[dict[str, Any]], **how: Any) -> ChatReply:
        return ChatReply(answer(messages[-1]["content"]))


def aflow_operator(kind: str) -> Any:
    """An operator as AFlow's Python calls it."""

    async def call(
        *given: Any, votes: int = 5, instruction: str = "", mode: str = "", **inputs: Any
    ) -> dict[str, Any]:
        async def ask(prompt: str) -> str:
            return answer(prompt)

        own = operator(kind)
        inputs = dict(zip(own.ports, given, strict=False)) | inputs
        settings = {"rounds": inputs.pop("test_loop")} if "test_loop" in inputs else {}
        settings |= {name: inputs.pop(name) for name in own.settings if name in inputs}
        settings |= {"votes": votes} if "votes" in own.settings else {}
        step = SimpleNamespace(
            ask=ask,
            run_code=Runner().run,
            task=TASK,
            sample=0,
            note=lambda text: None,
            instructed=lambda text: instruction + ("\n" if instruction[-1:].strip() else "") + text,
        )
        return await own(step, {port: inputs.get(port, "") for port in own.ports}, settings)  # type: ignore[arg-type]

    return lambda llm, vote_count=5: functools.partial(call, votes=vote_count)


class Operators:
    def __getattr__(self, kind: str) -> Any:
        return aflow_operator(kind)


class Template:
    """The operators of a data set's template, and no others."""

    def __init__(self, data_set: str) -> None:
        for kind in TEMPLATES[data_set]:
            setattr(self, kind, aflow_operator(kind))


class Shared(Operators):
    """AFlow's scripts/operators.py: a review's verdict is text, and Format needs its mode."""

    def __getattr__(self, kind: str) -> Any:
        def made(llm: Any, **settings: Any) -> Any:
            inner = aflow_operator(kind)(llm, **settings)

            async def call(**inputs: Any) -> dict[str, Any]:
                found = await inner(**inputs)
                if kind == "Format" and inputs.get("mode") != "xml_fill":
                    return {"response": "all that was said"}
                return {
                    key: str(value).lower() if isinstance(value, bool) else value
                    for key, value in found.items()
                }

            return call

        return made


def run_as_python(
    written: str,
    prompts: dict[str, str],
    problem: str = "What?",
    *,
    template: Any = None,
    shared: Any = None,
) -> str:
    imports = ("import ", "from ")
    source = "\n".join(line for line in written.splitlines() if not line.strip().startswith(imports))
    llm = SimpleNamespace(get_usage_summary=lambda: {"total_cost": 0.0})
    names: dict[str, Any] = {
        "operator": template or Operators(),
        "operators": shared or Operators(),
        "prompt_custom": SimpleNamespace(**prompts),
        "create_llm_instance": lambda config: llm,
        "DatasetType": str,
        "Literal": Literal,
        "asyncio": asyncio,
    }
    exec(compile(source, "graph.py", "exec"), names)
    arguments = [problem, "f"] if "entry_point: str" in written else [problem]
    said, _ = asyncio.run(names["Workflow"]("w", None, "X")(*arguments))
    return said


def run_here(workflow: Workflow, problem: str = "What?") -> str:
    task = Task("t", [{"role": "user", "content": problem}], "1", "numeric", INFO)
    trace = asyncio.run(WorkflowInterpreter(Chat(), runner=Runner()).run(workflow, task))
    assert not trace.failure
    return trace.answer or ""


def same_both_ways(workflow: Workflow) -> None:
    written, prompts = write(workflow)
    assert run_as_python(written, prompts_of(prompts)) == run_here(workflow)


@settings(deadline=None, max_examples=30)
@given(walks)
def test_any_workflow(places: list[int]) -> None:
    same_both_ways(walked(places))


@pytest.mark.parametrize("name", ["GSM8K", "HumanEval"])
def test_the_published_ones(name: str) -> None:
    same_both_ways(published(name))
    source, prompts = ((PUBLISHED[name] / f"{part}.txt").read_text() for part in ("graph", "prompt"))
    assert run_as_python(source, prompts_of(prompts)) == run_here(published(name))


EXPORTED = {
    "GSM8K": ["add Revise after solve", "add Format after revise"],
    "MATH": ["add MdEnsemble after solve x 3", "set md_ensemble votes 4", "add Format after md_ensemble"],
    "HotpotQA": ["add ScEnsemble after solve x 3", "add Format after sc_ensemble"],
    "DROP": ["add ScEnsemble after solve x 2", "add AnswerGenerate into sc_ensemble"],
    "MBPP": ["add Revise after solve"],
}


@pytest.mark.parametrize("data_set", EXPORTED)
@pytest.mark.parametrize("problem", ["What?", "Why?", "When?", "Where?"])
def test_an_export_runs_with_the_operators_of_aflows_template(data_set: str, problem: str) -> None:
    flow = built(*EXPORTED[data_set])
    written, prompts = write(flow, data_set=data_set)
    assert read(written, prompts).fingerprint == flow.fingerprint
    ran = run_as_python(written, prompts_of(prompts), problem, template=Template(data_set), shared=Shared())
    assert ran == run_here(flow, problem)


BODIES = {
    "without a problem": """
        solutions = []
        for _ in range(3):
            s = await self.custom(input=problem, instruction="Answer.")
            solutions.append(s["response"])
        best = await self.sc_ensemble(solutions)
        return best["response"], COST
    """,
    "without a problem, by name": """
        a = await self.custom(input=problem, instruction="A")
        b = await self.custom(input=problem, instruction="B")
        best = await self.sc_ensemble(solutions=[a["response"], b["response"]])
        last = await self.custom(input=f"{problem} {best['response']}", instruction="Short.")
        return last["response"], COST
    """,
    "votes": """
        answers = [(await self.custom(input=problem, instruction=""))["response"] for _ in range(3)]
        best = await self.md_ensemble(solutions=answers, problem=problem, mode="xml_fill")
        return best["solution"], COST
    """,
    "verdict as text": """
        s = await self.custom(input=problem, instruction="A")
        r = await self.review(problem=problem, solution=s["response"])
        if str(r["review_result"]).strip().lower() == "false":
            return r["feedback"], COST
        return s["response"], COST
    """,
    "tries": """
        solutions = []
        for attempt in range(3):
            s = await self.custom(input=f"{problem} {attempt}", instruction="Try.")
            t = await self.test(problem=problem, solution=s["response"], entry_point=entry_point, test_loop=1)
            if t["result"]:
                solutions.append(t["solution"])
                break
        if solutions:
            best = await self.sc_ensemble(solutions=solutions, problem=problem)
            return best["response"], COST
        return "none of them", COST
    """,
    "while": """
        s = await self.custom(input=problem, instruction="")
        r = await self.review(problem=problem, solution=s["response"])
        sol, i = s["response"], 0
        while not r["review_result"] and i < 3:
            x = await self.revise(problem=problem, solution=sol, feedback=r["feedback"])
            sol = x["solution"]
            r = await self.review(problem=problem, solution=sol)
            i += 1
        return sol, COST
    """,
    "meets": """
        s = await self.custom(input=problem, instruction="A")
        r = await self.review(problem=problem, solution=s["response"])
        if not r["review_result"]:
            s = await self.custom(input=problem + r["feedback"], instruction="B")
            note = "changed"
        else:
            note = "kept"
        f = await self.custom(input=f"{note}: {s['response']}", instruction="C")
        return f["response"], COST
    """,
    "words": """
        s = await self.custom(input=problem, instruction="A")
        try:
            r = await self.review(problem=problem, solution=s["response"])
        except Exception as error:
            return str(error), COST
        if "1" not in r["feedback"]:
            s = await self.custom(input=problem + r.get("remarks", "none"), instruction="B")
        if "4" in r["feedback"]:
            return "four", COST
        return s["response"], COST
    """,
    "nested": """
        answers = []
        for way in ["one", "two"]:
            s = await self.custom(input=problem, instruction=f"Way {way}.")
            r = await self.review(problem=problem, solution=s["response"])
            if r["review_result"]:
                answers.append(s["response"])
            else:
                x = await self.revise(problem=problem, solution=s["response"], feedback=r["feedback"])
                answers.append(x["solution"])
        answers += [f"or {answers[0]}"]
        best = await self.sc_ensemble(solutions=answers, problem=problem)
        p = await self.programmer(problem=problem, analysis=best["response"])
        return (p["output"] if p["output"] else best["response"]), COST
    """,
    "two conditions": """
        s = await self.custom(input=problem, instruction="A")
        r = await self.review(problem=problem, solution=s["response"])
        p = await self.programmer(problem=problem)
        if p["output"] and r["review_result"]:
            return p["output"], COST
        if not r["review_result"] or "3" in r["feedback"]:
            return r["feedback"], COST
        return s["response"], COST
    """,
    "texts compared": """
        a = await self.custom(input=problem, instruction="A")
        b = await self.custom(input=problem, instruction="B")
        c = await self.custom(input=problem, instruction="A")
        if a["response"] == b["response"]:
            return "never", COST
        if a["response"].strip() != c["response"]:
            return "never either", COST
        return b["response"], COST
    """,
    "remarks, or none": """
        s = await self.custom(input=problem, instruction="A")
        r = await self.review(problem=problem, solution=s["response"])
        return (s["response"] if r["feedback"] else "none"), COST
    """,
    "one of several words": """
        s = await self.custom(input=problem, instruction="A")
        r = await self.review(problem=problem, solution=s["response"])
        best = s["response"]
        if str(r["review_result"]).lower() in ["yes", "true"]:
            best = r["feedback"]
        if r["feedback"].strip().lower() not in ("none", "4", "42"):
            best = best + "!"
        return best, COST
    """,
    "a yes or no kept for later": """
        s = await self.custom(input=problem, instruction="A")
        r = await self.review(problem=problem, solution=s["response"])
        good, best = False, None
        if "1" in r["feedback"]:
            good = r["review_result"]
            best = s["response"]
        even = good and "2" in s["response"]
        if good:
            return s["response"], COST
        if even or best is not None:
            return "found", COST
        return r["feedback"], COST
    """,
    "nothing on one way": """
        s = await self.custom(input=problem, instruction="A")
        r = await self.review(problem=problem, solution=s["response"])
        note = "" if r["review_result"] else r["feedback"]
        f = await self.custom(input=f"{problem} {note}", instruction="B")
        return f["response"], COST
    """,
    "the first that is there": """
        p = await self.programmer(problem=problem)
        s = await self.custom(input=problem, instruction="A")
        return p["output"] or s.get("answer") or s["response"], COST
    """,
    "words filled in": """
        solutions = []
        for way in ["numbers", "a drawing"]:
            how = "By {way} ({0}).".format(len(solutions), way=way)
            s = await self.custom(input=problem, instruction=how)
            solutions.append(s["response"])
        last = await self.custom(input="{}: {}".format(problem, solutions[-1]), instruction="")
        return last["response"], COST
    """,
    "started, then awaited": """
        started = [self.custom(input=problem, instruction=f"Way {n}.") for n in range(2)]
        first, second = await asyncio.gather(*started)
        third = self.custom(input=first["response"], instruction="C")
        more = []
        for one in [first, second]:
            more.append(self.custom(input=one["response"], instruction="D"))
        said = [one["response"] for one in await asyncio.gather(*more)]
        last = await third
        text = "\\n".join(f"{n}. {one}" for n, one in enumerate(said, 1))
        best = await self.custom(input=f"{text} {last['response']}", instruction="")
        return best["response"], COST
    """,
    "a list that may be shorter": """
        solutions = []
        for n in range(2):
            s = await self.custom(input=f"{problem} {n}", instruction="A")
            r = await self.review(problem=problem, solution=s["response"])
            if r["review_result"]:
                if "1" in r["feedback"]:
                    solutions.append(s["response"])
        if len(solutions) > 1:
            best = await self.sc_ensemble(solutions=solutions, problem=problem)
            return best["response"], COST
        return solutions[0] if solutions else "none", COST
    """,
    "a part of a text": """
        s = await self.custom(input=problem, instruction="A")
        if "<answer>" in s["response"]:
            said = s["response"].split("<answer>")[1].split("</answer>")[0].strip()
        else:
            said = s["response"]
        words = s["response"].split()
        return said + ": " + words[-1], COST
    """,
    "some of a list": """
        ways = ["numbers", "a drawing", "words"]
        solutions = [
            (await self.custom(input=problem, instruction=way))["response"]
            for n, way in enumerate(ways)
            if n != 1 and "x" not in way
        ]
        return solutions[0] + solutions[1], COST
    """,
}


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("problem", ["What?", "Why?", "When?", "Where?", "Who?", "Which?"])
def test_what_is_read_does_what_it_did(name: str, problem: str) -> None:
    source = graph(BODIES[name].replace("COST", COST))
    flow = read(source)
    assert not flow.problems()
    assert read(*write(flow)).fingerprint == flow.fingerprint
    assert run_as_python(source, {}, problem) == run_here(flow, problem)
    assert run_as_python(write(flow)[0], prompts_of(write(flow)[1]), problem) == run_here(flow, problem)


TEXTS = st.sampled_from(['s["response"]', 'r["feedback"]', "note", '"x"', '""'])
CONDITIONS = st.recursive(
    st.sampled_from(['r["review_result"]', "ok", "note", "best is None", "len(items) > 1"])
    | st.builds('"{}" in r["feedback"]'.format, st.integers(0, 9))
    | st.builds("{} != {}".format, TEXTS, TEXTS)
    | st.builds("r['feedback'].lower() in [{}, '4']".format, TEXTS),
    lambda inner: (
        st.builds("not ({})".format, inner)
        | st.builds("({}) {} ({})".format, inner, st.sampled_from(["and", "or"]), inner)
    ),
    max_leaves=3,
)
STATEMENTS = st.recursive(
    st.builds("ok = {}".format, CONDITIONS)
    | st.builds("note = {} + {}".format, TEXTS, TEXTS)
    | st.builds("note = {} if {} else {}".format, TEXTS, CONDITIONS, TEXTS)
    | st.builds("best = {}".format, TEXTS)
    | st.builds("items.append({})".format, TEXTS),
    lambda inner: (
        st.builds("{}\n{}".format, inner, inner)
        | st.builds("if {}:\n{}".format, CONDITIONS, inner.map(lambda body: indent(body, "    ")))
        | st.builds("if {}:\n    return note + 'e', COST\n{}".format, CONDITIONS, inner)
    ),
    max_leaves=5,
)


@settings(deadline=None, max_examples=60)
@given(STATEMENTS, CONDITIONS, st.sampled_from(["What?", "Why?", "When?"]))
def test_any_branches_do_what_they_did(statements: str, last: str, problem: str) -> None:
    body = (
        's = await self.custom(input=problem, instruction="A")\n'
        'r = await self.review(problem=problem, solution=s["response"])\n'
        'ok, note, best, items = False, "n", None, []\n'
        f"{statements}\nfor item in items:\n    note += item\n"
        f"return note + (best or 'none') + ('y' if {last} else 'n'), COST"
    )
    source = graph(body.replace("COST", COST))
    try:
        flow = read(source)
    except NotExpressible as error:
        assume("more than 64 steps" not in str(error))
        raise
    assert run_as_python(source, {}, problem) == run_here(flow, problem)
    written, prompts = write(flow)
    assert run_here(read(written, prompts), problem) == run_here(flow, problem)
