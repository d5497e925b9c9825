"""The value: what one workflow taught is shared with those that resemble it, and with later searches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from toolwright.workflow.pool import Experience, ExperiencePool
from toolwright.workflow.program import Workflow, single_call
from toolwright.workflow.proposers import Editor
from toolwright.workflow.value import Belief, Columns, Prior, features

EDITOR = Editor(("Custom", "AnswerGenerate", "ScEnsemble", "Format"))


def made(*edits: str) -> Workflow:
    workflow = single_call()
    for edit in edits:
        workflow = EDITOR.edits(workflow)[edit]
    return workflow


FORMAT = made("add Format after solve")
VOTE = made("add ScEnsemble after solve x 3")
BOTH = made("add ScEnsemble after solve x 3", "add Format after sc_ensemble")


def believed(prior: Prior | None = None, *, shared: bool = True) -> tuple[Belief, Columns]:
    columns = Columns()
    rows = [columns.row(features(w)) for w in (single_call(), FORMAT)]
    belief = Belief(columns, rows[0], prior=prior, shared=shared)
    columns.row(features(BOTH))
    belief.fit(np.array(rows), np.array([0.0, 0.3]), np.array([1e-6, 0.001]))
    return belief, columns


def test_what_format_taught_is_expected_of_others_that_end_with_it() -> None:
    belief, columns = believed()
    rows = np.array([columns.row(features(w)) for w in (BOTH, VOTE)])
    (both, vote), (sd_both, sd_vote) = belief.untried(rows)
    assert both > vote + 0.05
    assert sd_both > 0.03
    assert sd_vote > 0.03


def test_who_ran_is_believed_by_its_runs_and_the_start_is_where_it_is() -> None:
    belief, _ = believed()
    mean, sd = belief.tried()
    assert mean[0] == pytest.approx(0.0, abs=1e-6)
    assert mean[1] == pytest.approx(0.3, abs=0.02)
    assert sd[1] < 0.05


def test_left_to_itself_a_workflow_teaches_nothing_about_others() -> None:
    belief, columns = believed(shared=False)
    mean, _ = belief.untried(np.array([columns.row(features(BOTH))]))
    assert mean[0] == pytest.approx(0.0)


def test_earlier_searches_are_where_a_search_begins(tmp_path: Path) -> None:
    pool = ExperiencePool(tmp_path / "pool.db")
    for number in range(6):
        told = [(single_call(), 0.4), (FORMAT, 0.6), (VOTE, 0.45), (BOTH, 0.66)]
        for place, (workflow, score) in enumerate(told):
            pool.keep_workflow(workflow.fingerprint, workflow.to_json())
            one = Experience(
                f"s{number}", place, f"d{number}", "a", "", "", "", workflow.fingerprint, 0.4, score, 40
            )
            pool.learn([one])
    prior = Prior.from_pool(pool)
    assert prior.mean["has Format"] > prior.mean["has ScEnsemble"]
    columns = Columns()
    start = columns.row(features(single_call()))
    rows = np.array([columns.row(features(w)) for w in (FORMAT, VOTE)])
    belief = Belief(columns, start, prior=prior)
    belief.fit(start[None], np.zeros(1), np.array([1e-6]))
    mean, _ = belief.untried(rows)
    assert mean[0] > 0.12
    assert mean[0] > mean[1] + 0.05
    assert Prior.from_pool(pool, without=[f"d{n}" for n in range(6)]) == Prior()
