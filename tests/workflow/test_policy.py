"""The policy: text in, edits out; its prior, its lessons by the ordinary learner, and its language."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import numpy as np
import pytest

from toolwright.workflow.edits import parse
from toolwright.workflow.environment import demonstrated, workflow
from toolwright.workflow.policy import EditPolicy, configured
from toolwright.workflow.policy_training import fresh, tokenizer, vocabulary
from toolwright.workflow.pool import Experience
from toolwright.workflow.program import single_call
from toolwright.workflow.proposers import Editor, TriedEdit, WorkflowState
from toolwright.workflow.simulate import PROMPTS

EDITOR = Editor(("Custom", "AnswerGenerate", "ScEnsemble", "Format"), PROMPTS)
STATE = WorkflowState("sim", "math", single_call(), 0.5, 0.5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fresh(tmp_path_factory.mktemp("policy"), seed=0, prompts=PROMPTS, layers=1, width=32)


def build(folder: Path, *, every: int = 8, lr: float = 3e-3, relative: bool = False) -> EditPolicy:
    config = configured(folder, [f"update.policy.lr={lr}", "run.threads=1"])
    return EditPolicy(config, EDITOR, every=every, relative=relative)


def gained(edit: str, gain: float, number: int) -> Experience:
    return Experience(
        "s", number, "sim", STATE.anchor, STATE.text, edit, "p", str(number), 0.5, 0.5 + gain, 8
    )


def test_states_and_edits_can_be_said_word_by_word() -> None:
    own = tokenizer(vocabulary(PROMPTS))
    tasks = workflow(seed=0, train_size=2, held_out_size=1, depth=1)
    for task in [*tasks.train, *tasks.held_out]:
        for message in demonstrated(task, random.Random(0)):
            tokens = own.encode_inside(message["content"])
            assert own.decode(tokens) == message["content"]
            assert own.backend.token_to_id("<|unk|>") not in tokens
            if message["role"] == "assistant":
                parse(message["content"])


def test_a_state_tells_what_happened_and_is_named_by_what_it_is() -> None:
    told = WorkflowState("sim", "math", single_call(), 0.6, 0.5, [TriedEdit("remove solve", -0.2)], 0.25)
    assert told.anchor == STATE.anchor
    assert told.operators == ["Custom"]
    assert "60.0 (+10.0 on the start)" in told.report
    assert "remove solve -> -20.0" in told.report
    assert "25 %" in told.report
    assert told.text == "math 5: solve = Custom(problem); -> solve.response"


def test_the_prior_is_the_policys_probability_of_each_legal_edit(folder: Path) -> None:
    policy = build(folder)
    options = asyncio.run(policy.propose(STATE, 0))
    assert {option.edit for option in options} == set(EDITOR.edits(STATE.workflow))
    assert np.mean([option.prior for option in options]) == pytest.approx(1.0)
    assert min(option.prior for option in options) >= 0.1 - 1e-9
    assert asyncio.run(policy.propose(STATE, 1)) == []


def test_a_lesson_makes_what_gained_likelier_than_what_lost(folder: Path) -> None:
    policy = build(folder, every=4, relative=True)
    good, bad = "add Format after solve", "set solve prompt BRIEF_PROMPT"
    assert policy.chances(STATE.text, [good, bad]) == pytest.approx([0.5, 0.5])
    for lesson in range(6):
        told = policy.learn([gained(good, 0.2, 4 * lesson + n) for n in range(2)])
        assert not told
        told = policy.learn([gained(bad, -0.2, 4 * lesson + 2 + n) for n in range(2)])
        assert told["policy/grad_norm"] > 0
    after = dict(zip([good, bad], policy.chances(STATE.text, [good, bad]), strict=True))
    assert after[good] > 0.6
    assert policy.lessons == 6


def test_lessons_follow_from_what_was_tried_and_from_nothing_else(folder: Path) -> None:
    edits = list(EDITOR.edits(STATE.workflow))[:8]
    told = [gained(edit, 0.01 * n, n) for n, edit in enumerate(edits)]
    chances = []
    for _ in range(2):
        policy = build(folder)
        policy.learn(told)
        chances.append(policy.chances(STATE.text, edits))
    assert (chances[0] == chances[1]).all()


def test_where_nothing_differs_there_is_no_lesson(folder: Path) -> None:
    policy = build(folder, every=2)
    assert policy.learn([gained("remove solve", 0.0, n) for n in range(4)]) == {}
    assert build(folder, every=0).learn([gained("remove solve", 0.1 * n, n) for n in range(9)]) == {}


def test_it_can_be_saved_and_opened_again(folder: Path, tmp_path: Path) -> None:
    policy = build(folder, every=2)
    policy.learn([gained("add Format after solve", 0.1, 0), gained("remove solve", -0.1, 1)])
    policy.save(tmp_path / "kept")
    edits = list(EDITOR.edits(STATE.workflow))
    again = build(tmp_path / "kept")
    assert again.chances(STATE.text, edits) == pytest.approx(policy.chances(STATE.text, edits), abs=1e-6)
