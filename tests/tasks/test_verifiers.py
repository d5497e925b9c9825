"""Environments of the package verifiers: their loop asks our policy, their rubric is the reward."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import random
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from toolwright.agents.rollout import AttemptRequest, Rollout
from toolwright.cli import main
from toolwright.config import schema
from toolwright.failures import UserError
from toolwright.models.tokenizer import Tokenizer
from toolwright.observe.metrics import Metrics
from toolwright.rewards import Scorer
from toolwright.tasks import TaskSet, load
from toolwright.trajectory import Trajectory

pytest.importorskip("verifiers", reason="needs the extra 'verifiers'")
if importlib.util.find_spec("verifiers.envs") is None:
    pytest.skip("this version of verifiers has no load_environment", allow_module_level=True)


def import_beside_the_tests(name: str) -> None:
    """verifiers describes tools by a package named `agents`, as a folder of tests is named too."""
    path, own = list(sys.path), {n: m for n, m in sys.modules.items() if n.partition(".")[0] == "agents"}
    tests = Path(__file__).parents[1]
    try:
        sys.path[:] = [entry for entry in path if Path(entry).resolve() != tests]
        for module in own:
            del sys.modules[module]
        importlib.import_module(name)
    finally:
        sys.path[:] = path
        for module in [n for n in sys.modules if n.partition(".")[0] == "agents"]:
            del sys.modules[module]
        sys.modules.update(own)


import_beside_the_tests("verifiers.utils.env_utils")
import_beside_the_tests("verifiers.utils.tool_utils")

from agents.scripted import ScriptedEngine, saying  # noqa: E402

WORLDS = str(Path(__file__).with_name("verifiers_worlds.py"))
CALL = '<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>'


def tasks(**params: Any) -> TaskSet:
    config = schema.TaskConfig(name="verifiers", params={"id": WORLDS, **params}, held_out_size=2)
    return load(config, seed=0)


def attempt(kind: str, *turns: str, row: int = 3, **rollout: Any) -> tuple[Trajectory, ScriptedEngine]:
    """The attempt at the question 3 + 3 of a policy that says these turns."""
    found = tasks(args={"kind": kind})
    (task,) = [one for one in (*found.train, *found.held_out) if one.ground_truth == str(2 * row)]
    tokenizer = Tokenizer.characters("".join(sorted({*found.alphabet, "…"})))
    engine = ScriptedEngine(tokenizer, saying(tokenizer, *(f"{turn}<|end|>" for turn in turns)))
    config = schema.RolloutConfig(
        **{"max_tokens": 200, "retries": 0, "max_turns": 9, "call_format": "hermes", **rollout}
    )
    (one,) = asyncio.run(Rollout(config, engine, tokenizer).run([AttemptRequest(task, "g", 0, seed=0)]))
    asyncio.run(Scorer(schema.Reward(), default=found.scorer).score([one]))
    return one, engine


def test_a_single_turn_is_scored_by_the_rubric() -> None:
    right, _ = attempt("single", "6")
    assert (right.reward, right.accuracy, right.stop, right.turns) == (1.25, 1.0, "done", 1)
    assert "Be brief." in right.segments[0].text
    assert "What is 3 + 3?" in right.segments[0].text
    wrong, _ = attempt("single", "perhaps 7")
    assert (wrong.reward, wrong.accuracy) == (0.0, 0.0)


def test_many_turns_go_on_from_the_tokens_that_were_sampled() -> None:
    played, engine = attempt("guessing", "4", "5", "6")
    assert (played.reward, played.turns, played.stop) == (1.25, 3, "done")
    assert "That was try 2." in played.segments[4].text
    for (prompt, said), (after, _) in zip(engine.seen["g/0"], engine.seen["g/0"][1:], strict=False):
        assert after[: len(prompt) + len(said)] == prompt + said


def test_its_own_limit_of_turns_ends_an_attempt_with_a_score() -> None:
    played, _ = attempt("guessing", "4")
    assert (played.reward, played.turns, played.stop) == (0.25, 4, "done")


def test_tools_are_described_called_and_answered() -> None:
    played, _ = attempt("tools", "I double. " + CALL % ("double", '{"number": 3}'), "6")
    assert '"double"' in played.segments[0].text
    assert "what is doubled" in played.segments[0].text
    assert played.segments[2].text.count("6") == 1
    assert (played.reward, played.turns, played.counts["tool_calls"]) == (1.25, 2, 1)


def test_a_call_that_cannot_be_read_or_is_unknown_is_reported() -> None:
    played, _ = attempt("tools", "<tool_call>{</tool_call>", CALL % ("halve", "{}"), "6")
    assert "cannot be read" in played.segments[2].text
    assert "halve" in played.segments[4].text
    assert (played.counts["format_faults"], played.reward) == (1, 1.25)


def test_a_stateful_tool_gets_the_state_of_its_own_attempt() -> None:
    for _ in range(2):
        played, _ = attempt("stateful", CALL % ("count", '{"by": 2}'), CALL % ("count", '{"by": 4}'), "done")
        assert "now 6" in played.segments[4].text
        assert '"state"' not in played.segments[0].text
        assert played.reward == 1.0


def test_a_reward_that_raises_is_a_failure_and_never_a_score() -> None:
    played, _ = attempt("broken", "6")
    assert played.reward is None
    assert played.failure is not None
    assert "a reward of the verifiers environment raised IndexError" in played.failure.message


def test_an_environment_that_rewrites_the_conversation_is_refused() -> None:
    played, _ = attempt("rewriting", "4")
    assert played.failure is not None
    assert "rewrites the conversation" in played.failure.message


def test_rows_are_tasks_and_some_are_held_out() -> None:
    found = tasks()
    assert (len(found.train), len(found.held_out)) == (4, 2)
    assert {one.ground_truth for one in found.train}.isdisjoint(one.ground_truth for one in found.held_out)
    own = tasks(args={"held_out": True})
    assert (len(own.train), [one.ground_truth for one in own.held_out]) == (6, ["0", "2"])
    assert own.held_out[1].prompt[-1] == {"role": "user", "content": "What is 1 + 1?"}


@pytest.mark.parametrize(
    ("params", "why"),
    [
        (
            {"id": "no-such-environment"},
            "loaded by verifiers: ValueError: Could not import 'no-such-environment'",
        ),
        ({"id": "nowhere.py"}, "nowhere.py"),
        ({"args": {"kind": "unheard"}}, "cannot be loaded by verifiers: KeyError: 'unheard'"),
        ({"args": {"colour": 1}}, "unexpected keyword argument 'colour'"),
        ({"args": {"kind": "group"}}, "its rubric scores groups"),
    ],
)
def test_what_cannot_be_loaded_is_reported(params: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError, match=why):
        tasks(**params)


def test_the_signals_of_the_process_stay_as_they_are() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    tasks(args={"limit": 3})
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_rows_with_an_answer_can_be_demonstrated() -> None:
    found = tasks()
    assert found.demonstrate is not None
    assert found.demonstrate(found.train[0], random.Random(0)) == [
        {"role": "assistant", "content": found.train[0].ground_truth}
    ]


def test_an_answer_is_demonstrated_within_the_tags_that_are_paid() -> None:
    found = tasks(args={"kind": "tagged"})
    assert found.demonstrate is not None
    (shown,) = found.demonstrate(found.train[0], random.Random(0))
    assert shown["content"] == f"<backward>\n{found.train[0].ground_truth}\n</backward>"


def test_an_answer_that_its_environment_does_not_pay_is_not_demonstrated() -> None:
    found = tasks(args={"kind": "numbered"})
    assert found.demonstrate is not None
    with pytest.raises(UserError, match="does not count the answer of its own row"):
        found.demonstrate(found.train[0], random.Random(0))


@pytest.mark.slow
def test_a_warm_start_learns_on(tmp_path: Path) -> None:
    """Words of three letters backward, by a tiny model that was shown some; judged by words it never saw."""
    common = ["task=verifiers", f"task.params.id={WORLDS}", "task.params.args.kind=backward"]
    common += ["task.held_out_size=64", "model.context=32", "run.threads=1", f"run.dir={tmp_path}"]
    size = ["model.layers=2", "model.width=48", "model.heads=4", "model.kv_heads=4", "model.ffn=96"]
    warm = ["steps=90", "batch=16", "optimizer.lr=5e-3", "run.name=warm"]
    assert main(["sft", *common, *size, *warm]) == 0
    own = ["rollout.max_tokens=6", "rollout.prompts=32", "rollout.samples=8", "train.steps=40"]
    own += ["eval.every=0", f"model.path={tmp_path}/warm/model", "update.policy.lr=2e-3", "run.name=better"]
    assert main(["train", *common, *own]) == 0
    rows = Metrics.read(tmp_path / "better/metrics.jsonl")
    before, after = (row["held_out/accuracy"] for row in rows if "held_out/accuracy" in row)
    assert after > before + 0.25
