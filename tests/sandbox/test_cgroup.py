"""Control groups of both versions, in a tree of files that stands for the kernel's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from toolwright.sandbox import cgroup
from toolwright.sandbox.cgroup import ControlGroup

MADE = {"memory_bytes": 1 << 30, "processes": 50}


@pytest.fixture
def second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Version 2, with this process in /system/ours, to which both controllers were delegated."""
    monkeypatch.setattr(cgroup, "own_paths", lambda: {"": "system/ours"})
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids\n")
    parent = tmp_path / "system" / "ours"
    for place in (parent, parent / "worker"):
        place.mkdir(parents=True)
        (place / "cgroup.subtree_control").write_text("")
    return tmp_path


@pytest.fixture
def first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Version 1, with this process in another group for each controller."""
    monkeypatch.setattr(cgroup, "own_paths", lambda: {"memory": "a", "pids": "b", "": ""})
    for place in ("memory/a", "pids/b"):
        (tmp_path / place).mkdir(parents=True)
    return tmp_path


def test_version_2_passes_on_what_is_lacking_and_writes_its_limits(second: Path) -> None:
    parent = second / "system" / "ours"
    group = ControlGroup("worker", second)
    assert group.make(**MADE)
    assert (parent / "cgroup.subtree_control").read_text() == "+memory +pids"
    assert (parent / "worker" / "memory.max").read_text() == str(1 << 30)
    assert (parent / "worker" / "memory.swap.max").read_text() == "0"
    assert (parent / "worker" / "pids.max").read_text() == "50"
    group.add(77)
    assert (parent / "worker" / "zygotes" / "cgroup.procs").read_text() == "77"
    assert (parent / "worker" / "cgroup.subtree_control").read_text() == "+memory +pids"


def test_version_2_does_not_ask_again_for_what_it_has(second: Path) -> None:
    """A group with processes in it may not change what it passes on; it may have passed it on before."""
    control = second / "system" / "ours" / "cgroup.subtree_control"
    control.write_text("cpu memory pids\n")
    assert ControlGroup("worker", second).make(**MADE)
    assert control.read_text() == "cpu memory pids\n"


def test_version_1_has_a_folder_for_each_controller(first: Path) -> None:
    group = ControlGroup("worker", first)
    assert group.make(**MADE)
    assert (first / "memory/a/worker/memory.limit_in_bytes").read_text() == str(1 << 30)
    assert (first / "pids/b/worker/pids.max").read_text() == "50"
    group.add(77)
    assert (first / "memory/a/worker/cgroup.procs").read_text() == "77"
    assert (first / "pids/b/worker/cgroup.procs").read_text() == "77"


@pytest.mark.parametrize(
    ("version", "place", "limit", "events"),
    [
        ("first", "memory/a/worker", "memory.limit_in_bytes", "memory.oom_control"),
        ("second", "system/ours/worker", "memory.max", "memory.events.local"),
    ],
)
def test_a_run_has_a_ceiling_of_its_own_in_a_group_that_serves_again(
    version: str, place: str, limit: str, events: str, request: pytest.FixtureRequest
) -> None:
    root: Path = request.getfixturevalue(version)
    group = ControlGroup("worker", root)
    assert group.make(**MADE)
    folder = root / place / "run-1"
    folder.mkdir()
    (folder / "cgroup.procs").write_text("")
    (folder / events).write_text("under_oom 0\noom 9\noom_kill 3\noom_group_kill 0\n")
    run = group.acquire()
    run.set_limit(100 << 20)
    assert 100 << 20 < int((folder / limit).read_text()) <= 200 << 20
    assert not run.has_killed()
    (folder / events).write_text("under_oom 0\noom 9\noom_kill 4\noom_group_kill 0\n")
    assert run.has_killed()
    group.release(run)
    assert group.acquire() is run
    run.set_limit(100 << 20)
    assert not run.has_killed(), "what happened to the run before is not held against this one"


@pytest.mark.parametrize("version", ["first", "second"])
def test_a_group_that_cannot_be_created_leaves_nothing_behind(
    version: str, request: pytest.FixtureRequest
) -> None:
    root = request.getfixturevalue(version)
    blocked = root / ("memory/a" if version == "first" else "system/ours") / "blocked"
    blocked.write_text("in the way")
    assert not ControlGroup("blocked", root).make(**MADE)


@pytest.mark.parametrize("version", ["first", "second"])
def test_removing_ends_whoever_is_in_it(version: str, request: pytest.FixtureRequest) -> None:
    root = request.getfixturevalue(version)
    group = ControlGroup("worker", root)
    group.make(**MADE)
    stray = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(500)"])
    group.add(stray.pid)
    group.remove()
    assert stray.wait(60) == -9


def test_a_real_group_is_made_and_removed_where_this_user_may() -> None:
    if not cgroup.available():
        pytest.skip("this user may not make control groups here")
    group = ControlGroup(f"toolwright-test-{os.getpid()}")
    assert group.make(memory_bytes=100 << 20, processes=10)
    held = {*group._folders.values(), group.acquire()._folder}
    assert all(folder.is_dir() for folder in held)
    group.remove()
    assert not any(folder.exists() for folder in held)
