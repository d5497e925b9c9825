"""The action language: read, written, applied, enumerated."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from tests.workflow.programs import DIVERSE, OPERATORS, built, walks
from toolwright.failures import UserError
from toolwright.workflow.apply import applied, legal
from toolwright.workflow.diagram import as_text
from toolwright.workflow.edits import Add, NamedPrompt, parse
from toolwright.workflow.graph import WorkflowLimits
from toolwright.workflow.program import Workflow, single_call
from toolwright.workflow.simulate import PROMPTS

TWO = dict(list(PROMPTS.items())[:2])


@settings(deadline=None, max_examples=15)
@given(walks)
def test_what_is_legal_reads_back_runs_and_changes_something(places: list[int]) -> None:
    workflow = single_call()
    limits = WorkflowLimits(calls=12)
    for place in places:
        found = legal(workflow, OPERATORS, prompts=TWO, limits=limits)
        meanings = [after.fingerprint for after in found.values()]
        assert len(set(meanings)) == len(meanings)
        for edit, after in found.items():
            assert parse(str(edit)) == edit
            assert not after.problems(limits)
            assert applied(workflow, edit, TWO) == after
            assert Workflow.from_json(after.to_json()).live == after.live == after.nodes
        before = workflow.to_json()
        edit = list(found)[place % len(found)]
        after = found[edit]
        assert workflow.to_json() == before
        workflow = after


@pytest.mark.parametrize(
    ("edits", "shown"),
    [
        (["add Format after solve"], "format = Format(problem, solve.response)\n-> format.solution"),
        (
            ["add ScEnsemble after solve x 5", "set solve prompt STEPS_PROMPT"],
            "solve = Custom(problem) x5 with STEPS_PROMPT\n"
            "sc_ensemble = ScEnsemble([solve.response], problem)\n-> sc_ensemble.response",
        ),
        (
            ["add Revise after solve"],
            "review = Review(problem, solve.response)\n"
            "revise = Revise(problem, solve.response, review.feedback)\n"
            "choose = solve.response if review.review_result else revise.solution\n-> choose.value",
        ),
        (
            ["add Programmer after solve", "set programmer attempts 1"],
            "programmer = Programmer(problem, solve.response) attempts=1\n"
            "choose = programmer.output if programmer.output else solve.response\n-> choose.value",
        ),
        (
            ["replace solve AnswerGenerate"],
            "answer_generate = AnswerGenerate(problem)\n-> answer_generate.answer",
        ),
        (
            ["add Custom after solve", "rewire output solve.response"],
            "solve = Custom(problem)\n-> solve.response",
        ),
        (["add Custom after solve", "rewire custom.input task.problem"], "custom = Custom(problem)"),
    ],
)
def test_an_edit_does_what_it_says(edits: list[str], shown: str) -> None:
    assert shown in as_text(built(*edits))


def test_removing_undoes_adding() -> None:
    for edits, gone in (
        (["add Format after solve"], "format"),
        (["add ScEnsemble after solve x 3"], "sc_ensemble"),
        (["add Revise after solve"], "choose"),
        (["add Programmer after solve"], "programmer"),
        (["add Custom after solve with STEPS_PROMPT"], "custom"),
    ):
        assert applied(built(*edits), parse(f"remove {gone}")).fingerprint == single_call().fingerprint
    fewer = applied(built(*DIVERSE), parse("remove answer_generate"))
    assert fewer.fingerprint == built(*DIVERSE[:2], DIVERSE[3]).fingerprint


def test_a_new_prompt_comes_with_its_text() -> None:
    edit = parse('set solve prompt MINE="Say \\"yes\\"\\nand why."')
    after = applied(single_call(), edit)
    assert after.prompts == {"MINE": 'Say "yes"\nand why.'}
    assert parse(str(edit)) == edit
    again = applied(after, Add("Custom", "solve", prompt=NamedPrompt("MINE", "Other words.")))
    assert set(again.prompts.values()) == {'Say "yes"\nand why.', "Other words."}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "begin with add, remove"),
        ("destroy solve", "begin with add, remove"),
        ("add Custom", "add OPERATOR after NODE"),
        ("add Custom after solve x many", "add OPERATOR after NODE"),
        ("remove", "remove NODE"),
        ("rewire solve task", "is not a reference"),
        ("set solve prompt 7", "set NODE prompt PROMPT"),
        ("add Custom after nobody", "there is no node 'nobody'"),
        ("add Review after solve", "add Revise, which brings a review"),
        ("add Costum after solve", "did you mean 'Custom'"),
        ("add Format after solve x 3", "compares several"),
        ("add Custom into solve", "does not compare several"),
        ("set solve prompt NOBODY", "no prompt 'NOBODY' is known"),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(text: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        applied(single_call(), parse(text))
