"""Many attempts at once: each by itself, each limited, each failure sorted where it happens."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

from toolwright.agents.attempt import seed_of
from toolwright.agents.rollout import AttemptRequest, Rollout
from toolwright.config import schema
from toolwright.engines.native.engine import NativeEngine
from toolwright.failures import UserError
from toolwright.trajectory import Task, Trajectory

OWN = Path(__file__).with_name("agents.py")
TOKENIZER = tiny.characters()
ENDLESS = tiny.characters(ends=False)
MODEL = tiny.decoder(context=128)


def rollout_of(agent: str = "single_turn", *, slots: int = 8, ends: bool = False, **config: Any) -> Rollout:
    """`agent`: a registered one, or the name of a class in this folder's `agents.py`."""
    tokenizer = TOKENIZER if ends else ENDLESS
    engine = NativeEngine(
        schema.EngineConfig(slots=slots, timeout_s=120),
        decoder=MODEL,
        tokenizer=tokenizer,
        dtype=torch.float32,
    )
    name = agent if agent == "single_turn" else f"{OWN}:{agent}"
    settings = {"max_tokens": 6, "timeout_s": 120.0, "retry_pause_s": 0.01, **config}
    return Rollout(schema.RolloutConfig(agent=name, **settings), engine, tokenizer)


def wanted(count: int, **trouble: dict[str, Any]) -> list[AttemptRequest]:
    """`t2={"trouble": "hang"}`: what happens to the attempt at the second task."""
    made = []
    for i in range(count):
        prompt = [{"role": "user", "content": f"{i}+{i}="}]
        task = Task(f"t{i}", prompt, extra_info=trouble.get(f"t{i}", {}))
        made.append(AttemptRequest(task, group=f"g{i}", index=0, seed=seed_of("test", i)))
    return made


def run(rollout: Rollout, asked: list[AttemptRequest], **more: Any) -> list[Trajectory]:
    return asyncio.run(rollout.run(asked, **more))


def essence(trajectory: Trajectory) -> list[tuple[str, list[int], list[float]]]:
    """All that must not change; times may."""
    return [(s.source, s.tokens, s.log_probs) for s in trajectory.segments]


def kind(trajectory: Trajectory) -> str | None:
    return trajectory.failure.kind if trajectory.failure else None


def test_a_step_reward_that_is_no_number_fails_the_task() -> None:
    (trajectory,) = run(rollout_of("Boundless"), wanted(1))
    assert kind(trajectory) == "task"
    assert "gave step 2 the reward nan" in trajectory.failure.message


class TestSingleTurn:
    def test_is_one_prompt_and_one_answer(self) -> None:
        rollout = rollout_of(ends=True)
        for asked, trajectory in zip(wanted(5), run(rollout, wanted(5)), strict=True):
            prompt, answer = trajectory.segments
            assert (prompt.source, answer.source) == ("prompt", "policy")
            assert prompt.text == TOKENIZER.render(asked.task.prompt)
            assert prompt.tokens == TOKENIZER.encode(prompt.text)
            assert len(answer.log_probs) == len(answer.tokens)
            assert trajectory.response == TOKENIZER.decode(answer.tokens)
            assert trajectory.stop in ("eos", "length")
            assert trajectory.failure is None

    def test_answers_come_in_the_order_they_were_asked_for(self) -> None:
        trajectories = run(rollout_of(slots=2), wanted(7))
        assert [t.task.id for t in trajectories] == [f"t{i}" for i in range(7)]
        assert [(t.group, t.seed) for t in trajectories] == [(w.group, w.seed) for w in wanted(7)]

    def test_follows_from_its_seed(self) -> None:
        first, again = run(rollout_of(slots=2), wanted(4)), run(rollout_of(slots=8), wanted(4)[::-1])[::-1]
        assert [essence(t) for t in first] == [essence(t) for t in again]

    def test_a_temperature_of_the_callers_goes_before_the_configured(self) -> None:
        rollout = rollout_of(temperature=1.0)
        other = [AttemptRequest(w.task, w.group, w.index, w.seed + 1) for w in wanted(3)]
        greedy = [run(rollout, asked, temperature=0.0) for asked in (wanted(3), other)]
        assert [essence(t) for t in greedy[0]] == [essence(t) for t in greedy[1]]

    def test_knows_how_long_it_took_and_with_which_weights(self) -> None:
        rollout = rollout_of()
        rollout.engine.publish(5)
        (trajectory,) = run(rollout, wanted(1))
        assert 0 < trajectory.timings["generate_s"] <= trajectory.timings["attempt_s"]
        assert trajectory.weights_version == 5

    def test_nothing_asked_is_nothing_answered(self) -> None:
        assert run(rollout_of(), []) == []


class TestAnAgentOfTheUsers:
    def test_takes_turns_with_a_tool(self) -> None:
        (trajectory,) = run(rollout_of("Calculator", max_turns=3), wanted(1))
        sources = [segment.source for segment in trajectory.segments]
        assert sources == ["prompt", "policy", "tool", "policy", "tool", "policy"]
        assert [step.anchor for step in trajectory.steps] == ["turn 0", "turn 1", "turn 2"]
        assert [step.reward for step in trajectory.steps] == [1.0, 0.0, 1.0]
        assert trajectory.counts == {"tool_calls": 3}
        assert trajectory.stop == "turns"

    def test_every_turn_sees_exactly_the_tokens_before_it(self) -> None:
        for trajectory in run(rollout_of("Calculator", slots=2, max_turns=3), wanted(5)):
            log_probs = tiny.logits(MODEL, trajectory.tokens).log_softmax(-1)
            sampled = [value for step in trajectory.steps for value in step.log_probs]
            places = [place for place, on in enumerate(trajectory.mask) if on]
            found = [float(log_probs[p - 1, trajectory.tokens[p]]) for p in places]
            assert sampled == pytest.approx(found, abs=1e-5)

    def test_gives_its_place_back_when_it_is_done(self) -> None:
        rollout = rollout_of("Calculator", slots=3, max_turns=2)
        run(rollout, wanted(7))
        assert isinstance(rollout.engine, NativeEngine)
        assert sorted(rollout.engine.cache.free) == [0, 1, 2]

    def test_that_asks_the_policy_nothing_leaves_nothing_to_learn_from(self) -> None:
        (trajectory,) = run(rollout_of("Silent"), wanted(1))
        assert trajectory.failure is not None
        assert trajectory.failure.kind == "task"
        assert "ended without asking the policy for anything" in trajectory.failure.message

    def test_that_asks_before_it_opens_is_a_bug(self) -> None:
        with pytest.raises(ValueError, match="start with a prompt"):
            run(rollout_of("Hasty"), wanted(1))

    @pytest.mark.parametrize(
        ("name", "why"),
        [("NoAgent", "an agent is a class with `async def attempt`"), ("asyncio", "it is a module")],
    )
    def test_a_reference_that_is_not_an_agent_is_refused(self, name: str, why: str) -> None:
        with pytest.raises(UserError, match=f"is not an agent; {why}"):
            rollout_of(name)

    def test_a_misspelt_agent_is_pointed_out(self) -> None:
        with pytest.raises(UserError, match="has no 'Calculatr'; did you mean 'Calculator'"):
            rollout_of("Calculatr")


class TestFailures:
    """Infrastructure is tried again from the same seed, a task's fault is not, a bug stops everything."""

    @pytest.mark.parametrize("retries", [0, 1, 3])
    def test_infrastructure_is_tried_again_up_to_the_limit(self, retries: int) -> None:
        rollout = rollout_of("Unlucky", retries=retries)
        trajectories = run(rollout, wanted(3, t1={"trouble": "server"}))
        assert [kind(t) for t in trajectories] == [None, "infrastructure", None]
        assert trajectories[1].failure is not None
        assert trajectories[1].failure.message == "the search server is gone"
        assert dict(rollout.agent.tries) == {"g0/0": 1, "g1/0": retries + 1, "g2/0": 1}  # type: ignore[attr-defined]

    def test_what_was_tried_again_is_what_it_would_have_been(self) -> None:
        rollout = rollout_of("Unlucky", retries=2)
        shaken = run(rollout, wanted(3, t1={"trouble": "server", "times": 2}))
        assert set(rollout.agent.seeds["g1/0"]) == {wanted(3)[1].seed}  # type: ignore[attr-defined]
        assert len(rollout.agent.seeds["g1/0"]) == 3  # type: ignore[attr-defined]
        calm = run(rollout_of("Unlucky"), wanted(3))
        assert [kind(t) for t in shaken] == [None] * 3
        assert [essence(t) for t in shaken] == [essence(t) for t in calm]

    def test_a_tasks_fault_is_not_tried_again(self) -> None:
        rollout = rollout_of("Unlucky", retries=3)
        trajectories = run(rollout, wanted(2, t0={"trouble": "task"}))
        assert [kind(t) for t in trajectories] == ["task", None]
        assert trajectories[0].failure is not None
        assert trajectories[0].failure.message == "this task has no answer"
        assert trajectories[0].reward is None, "it is not scored 0"
        assert rollout.agent.tries["g0/0"] == 1  # type: ignore[attr-defined]

    def test_a_bug_is_raised_and_nothing_goes_on_behind_it(self) -> None:
        rollout = rollout_of("Unlucky", retries=3)

        async def run_then_look() -> int:
            with pytest.raises(KeyError, match="a bug"):
                await rollout.run(wanted(4, t1={"trouble": "bug"}, t2={"trouble": "hang"}))
            return len([task for task in asyncio.all_tasks() if "_persist" in repr(task)])

        assert asyncio.run(run_then_look()) == 0
        assert rollout.agent.tries["g1/0"] == 1  # type: ignore[attr-defined]
        assert not any(kind(t) for t in run(rollout, wanted(4))), "and the engine is as good as before"

    def test_a_prompt_that_does_not_fit_costs_its_own_attempt(self) -> None:
        asked = wanted(2)
        long = Task("long", [{"role": "user", "content": "1" * 200}])
        trajectories = run(rollout_of(), [asked[0], AttemptRequest(long, "long", 0, 0), asked[1]])
        assert [kind(t) for t in trajectories] == [None, "task", None]


class TestTimeouts:
    LIMIT = 2.5

    def test_an_attempt_that_hangs_is_infrastructures_fault_and_named(self) -> None:
        rollout = rollout_of("Unlucky", timeout_s=self.LIMIT, retries=1)
        trajectories = run(rollout, wanted(3, t1={"trouble": "hang"}))
        assert [kind(t) for t in trajectories] == [None, "infrastructure", None]
        assert trajectories[1].failure is not None
        assert trajectories[1].failure.message == "attempt g1/0 took longer than rollout.timeout_s=2.5"
        assert rollout.agent.tries["g1/0"] == 2  # type: ignore[attr-defined]

    def test_a_wait_of_the_agents_own_is_not_blamed_on_the_limit(self) -> None:
        (trajectory,) = run(rollout_of("Unlucky", retries=0), wanted(1, t0={"trouble": "socket"}))
        assert trajectory.failure is not None
        assert trajectory.failure.kind == "infrastructure"
        assert trajectory.failure.message == "attempt g0/0 timed out: no answer from search:80"

    def test_an_attempt_that_hung_once_is_repeated_with_the_same_result(self) -> None:
        asked = wanted(3, t1={"trouble": "hang", "times": 1})
        shaken = run(rollout_of("Unlucky", timeout_s=self.LIMIT), asked)
        assert [essence(t) for t in shaken] == [essence(t) for t in run(rollout_of("Unlucky"), wanted(3))]

    @pytest.mark.parametrize("slots", [1, 8])
    def test_one_that_hangs_does_not_delay_the_others(self, slots: int) -> None:
        """Not even where there is a single slot: a hung attempt sits between two turns and holds none."""
        rollout = rollout_of("Unlucky", slots=slots, timeout_s=self.LIMIT, retries=0)
        started = time.perf_counter()
        trajectories = run(rollout, wanted(6, t2={"trouble": "hang"}))
        assert time.perf_counter() - started < 6 * self.LIMIT, "one limit, not one for each"
        assert [kind(t) for t in trajectories] == [None, None, "infrastructure", None, None, None]
        hung = trajectories.pop(2)
        assert max(t.timings["attempt_s"] for t in trajectories) < hung.timings["attempt_s"]


def test_seeds_follow_from_names_and_differ() -> None:
    seeds = {seed_of(a, b) for a in range(20) for b in ("x", "y")}
    assert len(seeds) == 40
    assert seed_of(3, "x") == seed_of("3", "x")
    assert all(0 <= seed < 2**63 for seed in seeds)
