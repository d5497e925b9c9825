"""The loop: the same search whoever runs it, however often it is killed; nothing is paid for twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from toolwright.workflow.edits import parse
from toolwright.workflow.graph import Node, Ref
from toolwright.workflow.pool import ExperiencePool
from toolwright.workflow.program import Workflow
from toolwright.workflow.proposers import Editor, UniformProposer, WorkflowState
from toolwright.workflow.tree import Proposal

from .searches import OPERATORS, searched, told


@pytest.mark.parametrize("select", ["guided", "aflow"])
def test_the_same_seed_is_the_same_search(select: str) -> None:
    one, other = (searched(None, select=select) for _ in range(2))
    assert told(one) == told(other)
    assert one.best.number == other.best.number
    assert told(one) != told(searched(None, select=select, seed=4))


@pytest.mark.parametrize("select", ["guided", "aflow"])
def test_the_budget_is_kept_to_the_run(select: str, tmp_path: Path) -> None:
    pool = ExperiencePool(tmp_path / "pool.db")
    found = searched(pool, select=select, runs=101)
    assert found.tree.runs <= 101
    assert pool.spent()[0] == found.tree.runs
    assert found.why in ("budget", "converged")


def test_every_candidate_is_kept_with_what_came_of_it(tmp_path: Path) -> None:
    pool = ExperiencePool(tmp_path / "pool.db")
    found = searched(pool)
    kept = pool.by_search("test")
    assert [one.number for one in kept] == [c.number for c in found.tree]
    for one, candidate in zip(kept, found.tree, strict=True):
        assert one.tasks == len(candidate.runs)
        program = pool.workflow(one.child)
        assert program is not None
        assert Workflow.from_json(program).fingerprint == candidate.workflow.fingerprint
        if one.edit:
            parse(one.edit)


def test_over_the_same_pool_nothing_is_paid_for_again(tmp_path: Path) -> None:
    pool = ExperiencePool(tmp_path / "pool.db")
    first = searched(pool)
    paid = pool.spent()

    class Closed:
        async def run(self, workflow: Workflow, runs: Sequence[tuple[str, int]]) -> dict[object, object]:
            known = pool.paid("simulated-3/validation", workflow.fingerprint)
            return {run: known[run] for run in runs}

    again = searched(pool, runner=Closed())  # type: ignore[arg-type]
    assert told(again) == told(first)
    assert pool.spent() == paid


def test_killed_and_gone_on_with_it_is_the_search_that_was_never_killed(tmp_path: Path) -> None:
    whole = searched(None)
    path = tmp_path / "pool.db"
    root = Path(__file__).resolve().parents[2]
    ends = []
    for _ in range(30):
        running = subprocess.Popen(
            [sys.executable, "-m", "tests.workflow.searches", str(path), "0.1"],
            cwd=root,
            stdout=subprocess.PIPE,
            text=True,
        )
        before = ExperiencePool(path).spent()[0]
        limit = time.monotonic() + 240
        while running.poll() is None and time.monotonic() < limit:
            if len(ends) < 3 and ExperiencePool(path).spent()[0] >= before + 40:
                os.kill(running.pid, signal.SIGKILL)
                break
            time.sleep(0.01)
        out, _ = running.communicate()
        ends.append(running.returncode)
        if "done" in out:
            break
    assert ends[-1] == 0
    assert -signal.SIGKILL in ends
    pool = ExperiencePool(path)
    assert pool.spent()[0] == whole.tree.runs  # nothing lost, nothing twice
    assert told(searched(pool)) == told(whole)


class Hostile(UniformProposer):
    """First workflows that must not run, then every legal edit."""

    async def propose(self, state: WorkflowState, again: int) -> Sequence[Proposal]:
        if again:
            return await super().propose(state, again - 1)
        loop = Node("solve", "Custom", {"input": (Ref("solve", "response"),)})
        many = Node("solve", "Custom", {"input": (Ref("task", "problem"),)}, repeat=10_000)
        strange = Node("solve", "os.system", {"input": (Ref("task", "problem"),)})
        bad = [Workflow((node,), (Ref("solve", "response"),)) for node in (loop, many, strange)]
        return [Proposal(f"bad {n}", made) for n, made in enumerate(bad)]


def test_what_must_not_run_is_refused_recorded_and_the_search_goes_on(tmp_path: Path) -> None:
    pool = ExperiencePool(tmp_path / "pool.db")
    found = searched(pool, proposer=Hostile(Editor(OPERATORS)))
    refused = [c for c in found.tree if c.failure]
    assert {c.edit for c in refused} == {"bad 0", "bad 1", "bad 2"}
    assert all(not c.runs for c in refused)
    assert not found.best.failure
    assert len(found.tree) > 10
    failures = {one.edit: one.failure for one in pool.by_search("test") if one.failure}
    assert {c.edit: c.failure for c in refused}.items() <= failures.items()


def test_a_search_finds_something_better() -> None:
    gains = []
    for seed in (3, 4, 5):
        found = searched(None, seed=seed, runs=300)
        gains.append(found.scores[found.best.number][0] - found.scores[0][0])
    assert sum(gains) / 3 > 0.08
