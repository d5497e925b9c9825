"""The policy behind an endpoint of the search's own: asked over HTTP, it is the policy that learns."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from toolwright.models.attention import PackedAttention
from toolwright.workflow.policy import EditPolicy, ServedPolicy, chances, configured, serve_policy
from toolwright.workflow.policy_training import fresh
from toolwright.workflow.pool import ExperiencePool
from toolwright.workflow.simulate import PROMPTS
from toolwright.workflow.tree import Proposal

from .test_policy import EDITOR, STATE, gained

EDITS = list(EDITOR.edits(STATE.workflow))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy that knows one state by heart: every legal edit of it, one as likely as another."""
    place = tmp_path_factory.mktemp("served")
    blank = fresh(place / "fresh", seed=0, prompts=PROMPTS, layers=1, width=32)
    policy = EditPolicy(configured(blank, ["run.threads=1"]), EDITOR)
    decoder = policy.learner.policy.decoder
    optimiser = torch.optim.AdamW(decoder.parameters(), lr=1e-2)
    lessons = [policy._trajectory(STATE.text, edit, number=n) for n, edit in enumerate(EDITS)]
    tokens = torch.tensor([token for lesson in lessons for token in lesson.tokens])
    attend = PackedAttention([len(lesson.tokens) for lesson in lessons], torch.device("cpu"))
    ends = np.cumsum([len(lesson.tokens) for lesson in lessons])
    written = [len(lesson.segments[-1].tokens) for lesson in lessons]
    learned = torch.tensor(
        [n for end, long in zip(ends, written, strict=True) for n in range(end - long, end)]
    )
    for _ in range(60):
        logits = decoder.head(decoder.hidden(tokens, attend.positions, attend))
        loss = torch.nn.functional.cross_entropy(logits[learned - 1], tokens[learned])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    policy.save(place / "model")
    return place / "model"


def build(folder: Path, *, every: int = 0) -> EditPolicy:
    return EditPolicy(configured(folder, ["update.policy.lr=3e-3", "run.threads=1"]), EDITOR, every=every)


def asked(
    policy: EditPolicy, pool: ExperiencePool | None = None, *, samples: int = 24
) -> tuple[list[Proposal], list[tuple[str, float]]]:
    async def go() -> tuple[list[Proposal], list[tuple[str, float]]]:
        async with serve_policy(policy, pool=pool, search="s", samples=samples) as proposer:
            proposals = list(await proposer.propose(STATE, 0))
            assert await proposer.propose(STATE, 1) == []
            return proposals, [await proposer._drawn(STATE, number) for number in range(samples)]

    return asyncio.run(go())


def test_what_is_drawn_over_the_wire_has_the_probability_that_the_learner_gives_it(folder: Path) -> None:
    policy = build(folder)
    proposals, drawn = asked(policy)
    assert [proposal.edit for proposal in proposals] == EDITS
    legal = {edit: log_prob for edit, log_prob in drawn if edit in EDITS}
    assert len(legal) > 3
    inside = policy.chances(STATE.text, EDITS)
    known = dict(zip(EDITS, inside, strict=True))
    one, *others = legal
    for other in others:  # `chances` are relative to one another
        assert legal[other] - legal[one] == pytest.approx(math.log(known[other] / known[one]), abs=1e-3)


def test_the_same_weights_draw_the_same_edits_and_the_pool_keeps_them(folder: Path, tmp_path: Path) -> None:
    pool = ExperiencePool(tmp_path / "pool.db")
    first = asked(build(folder), pool)
    assert asked(build(folder)) == first

    async def silent(*_: object, **__: object) -> None:
        raise AssertionError("what is in the pool is not asked again")

    async def again() -> list[Proposal]:
        async with serve_policy(build(folder), pool=pool, search="s", samples=24) as proposer:
            proposer.chat.complete = silent  # type: ignore[method-assign,assignment]
            return list(await proposer.propose(STATE, 0))

    assert asyncio.run(again()) == first[0]


def test_the_next_answer_knows_what_a_lesson_has_changed(folder: Path) -> None:
    policy = build(folder, every=4)
    good, bad = EDITS[0], EDITS[1]

    async def go() -> tuple[dict[str, float], dict[str, float]]:
        async with serve_policy(policy, pool=None, search="s", samples=48) as proposer:
            before = await seen(proposer)
            for lesson in range(6):
                told = proposer.learn(
                    [gained(good, 0.2, 4 * lesson + n) for n in range(2)]
                    + [gained(bad, -0.2, 4 * lesson + 2 + n) for n in range(2)]
                )
                assert told["policy/grad_norm"] > 0
            return before, await seen(proposer)

    async def seen(proposer: ServedPolicy) -> dict[str, float]:
        return {one.edit: one.prior for one in await proposer.propose(STATE, 0)}

    before, after = asyncio.run(go())
    assert after[good] > 1.5 * before[good]
    assert after[good] > after[bad]


def test_the_port_is_closed_with_the_search(folder: Path) -> None:
    async def go() -> None:
        async with serve_policy(build(folder), pool=None, search="s", samples=2) as proposer:
            url = str(proposer.chat.inner.inner.inner._client.base_url)  # type: ignore[attr-defined]
            port = int(url.rpartition(":")[2].partition("/")[0])
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)

    asyncio.run(go())


def test_draws_become_a_prior() -> None:
    edits = ["a", "b", "c", "d"]
    assert chances(edits, [("?", -1.0), ("!", -2.0)]) == [0.25] * 4  # nothing legal: nothing said
    half, eighth = math.log(0.5), math.log(0.125)
    assert chances(edits, [("a", half), ("a", half), ("b", eighth), ("c", eighth)]) == pytest.approx(
        [0.5, 0.125, 0.125, 0.25]
    )
    # Half of what it writes is no edit: what is legal is a whole all the same.
    found = chances(edits, [("a", math.log(0.25)), ("x", -1.0)])
    assert sum(found) == pytest.approx(1.0)
    assert found == pytest.approx([0.5, 1 / 6, 1 / 6, 1 / 6])
