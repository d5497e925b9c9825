"""Conversations of one attempt: what goes on keeps its tokens, what was edited is a branch."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from openai import AsyncOpenAI

from toolwright.agents.attempt import Attempt
from toolwright.algorithms import aggregate
from toolwright.batch import Batch
from toolwright.config import schema
from toolwright.gateway.messages import MessageKey
from toolwright.gateway.server import AttemptAddress
from toolwright.learner.objective import Objective
from toolwright.learner.policy import Policy
from toolwright.models.attention import PackedAttention
from toolwright.record import from_table, load, save, to_table
from toolwright.trajectory import ROOT, Segment, Task, Trajectory

from .programs import ADD, is_what_was_sampled, one, rows, scripted

Message = dict[str, Any]


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def client(address: AttemptAddress) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{address.url}/v1", api_key="any", max_retries=0)


async def say(api: AsyncOpenAI, messages: list[Message], **more: Any) -> Message:
    reply = await api.chat.completions.create(model="m", messages=messages, **more)
    return reply.choices[0].message.model_dump(exclude_none=True)


def parents(trajectory: Trajectory) -> list[int | None]:
    return [segment.parent for segment in trajectory.segments]


def test_a_conversation_that_goes_on_is_one_sequence() -> None:
    async def program(address: AttemptAddress, attempt: Attempt) -> None:
        api, messages = client(address), [user("go")]
        for text in ("and?", "then?"):
            messages += [await say(api, messages), user(text)]
        await say(api, messages)

    trajectory, engine = one(program)
    assert parents(trajectory) == [None] * 6
    assert [s.source for s in trajectory.segments] == ["prompt", "policy", *["environment", "policy"] * 2]
    assert trajectory.counts["branches"] == 0
    is_what_was_sampled([trajectory], engine)


def test_compaction_begins_a_sequence_of_its_own() -> None:
    async def program(address: AttemptAddress, attempt: Attempt) -> None:
        api, messages = client(address), [user("go")]
        for _ in range(2):
            messages += [await say(api, messages), user("more")]
        summary = [user("go"), user("so far: " + str(len(messages)))]
        summary += [await say(api, summary), user("and?")]
        await say(api, summary)

    trajectory, engine = one(program)
    assert parents(trajectory) == [None] * 4 + [ROOT] + [None] * 3
    assert trajectory.counts["branches"] == 1
    assert len(trajectory.steps) == 4
    is_what_was_sampled([trajectory], engine)


def test_two_sub_agents_and_the_one_that_asked_them_are_three_sequences() -> None:
    async def program(address: AttemptAddress, attempt: Attempt) -> None:
        api, messages = client(address), [user("go")]
        messages.append(await say(api, messages))
        for name in "ab":
            sub = [{"role": "system", "content": f"You are {name}."}, user("help")]
            sub += [await say(api, sub), user("more")]
            await say(api, sub)
        await say(api, [*messages, user("they say so")])

    trajectory, engine = one(program)
    assert len(trajectory.sequences) == 3
    assert [len(path) for path in trajectory.sequences] == [4, 4, 4]
    assert trajectory.segments[-2].parent == 1  # it goes on from its own turn
    is_what_was_sampled([trajectory], engine)


def test_a_retried_turn_shares_all_but_what_was_sampled() -> None:
    async def program(address: AttemptAddress, attempt: Attempt) -> None:
        api, messages = client(address), [user("go")]
        for _ in range(2):
            said = await say(api, messages)
        await say(api, [*messages, said, user("and?")])

    trajectory, engine = one(program)
    assert parents(trajectory) == [None, None, 0, None, None]
    first, second = trajectory.steps[:2]
    assert first.tokens != second.tokens  # another seed
    is_what_was_sampled([trajectory], engine)


def test_an_edited_turn_branches_after_the_last_one_in_common() -> None:
    async def program(address: AttemptAddress, attempt: Attempt) -> None:
        api, messages = client(address), [user("go")]
        messages += [await say(api, messages), user("two")]
        await say(api, messages)
        await say(api, [*messages, {"role": "assistant", "content": "edited"}, user("three")])

    trajectory, engine = one(program)
    edited = trajectory.segments[4]
    assert edited.parent == 1  # the first turn, whose tokens were sampled, is kept as it is
    assert "edited" in edited.text
    is_what_was_sampled([trajectory], engine)


def test_several_choices_share_their_prompt() -> None:
    async def program(address: AttemptAddress, attempt: Attempt) -> None:
        reply = await client(address).chat.completions.create(model="m", messages=[user("go")], n=3)
        assert len({choice.message.content for choice in reply.choices}) == 3

    trajectory, engine = one(program)
    assert parents(trajectory) == [None, None, 0, 0]
    is_what_was_sampled([trajectory], engine)


def test_requests_at_the_same_time_are_sequences_side_by_side() -> None:
    async def program(address: AttemptAddress, attempt: Attempt) -> None:
        api = client(address)
        await asyncio.gather(*(say(api, [user(f"part {n}")]) for n in range(6)))

    trajectory, engine = one(program)
    assert len(trajectory.sequences) == 6
    is_what_was_sampled([trajectory], engine)


CALLS = 'I add.<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call><|im_end|>'


@pytest.mark.parametrize("change", ["none", "white space", "arguments", "no words", "no id"])
def test_a_turn_that_comes_back_in_other_words_is_recognised(change: str) -> None:
    engine, tokens = scripted(CALLS, "5<|im_end|>")

    async def program(address: AttemptAddress, attempt: Attempt) -> None:
        api = client(address)
        said = await say(api, [user("go")], tools=[ADD])
        (call,) = said["tool_calls"]
        if change == "white space":
            said["content"] = "  I add. \n"
        elif change == "arguments":
            call["function"]["arguments"] = '{"b":3,"a":2}'
        elif change == "no words":
            said["content"] = None
        elif change == "no id":
            call["id"] = "x"
        tool = {"role": "tool", "tool_call_id": call["id"], "content": "5"}
        await say(api, [user("go"), said, tool], tools=[ADD])

    trajectory, engine = one(program, engine=engine, tokens=tokens, call_format="hermes")
    assert parents(trajectory) == [None] * 4
    assert trajectory.segments[2].source == "tool"
    assert trajectory.counts["tool_calls"] == 1
    assert trajectory.counts["rewritten"] == (change in ("white space", "no words"))
    is_what_was_sampled([trajectory], engine)


def test_thoughts_that_a_client_leaves_out_are_kept() -> None:
    engine, tokens = scripted("<think>hm</think>yes<|im_end|>", "no<|im_end|>")

    async def program(address: AttemptAddress, attempt: Attempt) -> None:
        api = client(address)
        await say(api, [user("go")])
        await say(api, [user("go"), {"role": "assistant", "content": "yes"}, user("sure?")])

    trajectory, engine = one(program, engine=engine, tokens=tokens)
    assert len(trajectory.sequences) == 1
    assert trajectory.counts["rewritten"] == 1
    is_what_was_sampled([trajectory], engine)


def test_a_message_that_only_resembles_a_turn_is_not_taken_for_it() -> None:
    said = MessageKey("assistant", "it is 5")
    assert not MessageKey("assistant", "it is 6").means(said)
    assert not MessageKey("user", "it is 5").means(said)
    assert not MessageKey("assistant", "it is 5", (("add", "{}"),)).means(said)
    assert not MessageKey("user", "go ").means(MessageKey("user", "go"))


def test_plain_text_that_goes_on_keeps_its_tokens() -> None:
    async def program(address: AttemptAddress, attempt: Attempt) -> None:
        api, text = client(address), "one two"
        for _ in range(3):
            reply = await api.completions.create(model="m", prompt=text, max_tokens=6)
            text += reply.choices[0].text + " and"

    trajectory, engine = one(program)
    is_what_was_sampled([trajectory], engine)
    for row in rows(trajectory):
        assert row


def branched() -> Trajectory:
    """A tree: a prompt, a turn, two ways on from it, and a sequence of its own."""
    made = Trajectory(Task("t", []), "g")
    made.append(Segment("prompt", [3, 4, 5]))
    made.append(Segment("policy", [6, 7], [-1.0, -1.1]))
    made.append(Segment("tool", [8, 9]))
    made.append(Segment("policy", [10, 11, 12], [-1.2, -1.3, -1.4]))
    made.append(Segment("prompt", [13, 14], parent=ROOT))
    made.append(Segment("policy", [15], [-1.5]))
    made.append(Segment("environment", [16], parent=1))
    made.append(Segment("policy", [17, 18], [-1.6, -1.7]))
    return made


class TestBatch:
    def test_each_sampled_token_is_an_action_once(self) -> None:
        batch = Batch.pack([branched(), tiny.trajectory([("prompt", [3, 4]), ("policy", [5])], group="g")])
        assert batch.rows == [[10, 3, 8], [3]]
        assert batch.lengths == [21, 3]
        assert batch.tokens[batch.actions].tolist() == [6, 7, 10, 11, 12, 15, 17, 18, 5]
        assert batch.action_lengths == [8, 1]
        assert batch.steps.tolist() == [0, 0, 1, 1, 1, 2, 3, 3, 0]

    def test_beginnings_in_common_are_computed_once(self) -> None:
        batch = Batch.pack([branched()])
        assert batch.shared_prompts() == [(0, 0), (1, 0), (0, 5)]

    def test_it_can_be_cut_and_joined(self) -> None:
        whole = Batch.pack([branched(), *tiny.conversations(3, seed=1), branched()])
        order = [4, 1, 0, 3, 2]
        again = whole.select(order).select([order.index(n) for n in range(5)])
        assert again.rows == whole.rows
        assert torch.equal(again.tokens, whole.tokens)
        assert torch.equal(again.actions, whole.actions)
        assert whole.between(4, 5).rows == [whole.rows[4]]


def test_a_tree_is_kept_as_it_is(tmp_path: Path) -> None:
    made = branched()
    made.result = {"answer": "5", "exit_code": 0}
    (again,) = from_table(to_table([made]))
    assert again == made
    save(tmp_path / "step.parquet", [made, tiny.trajectory([("prompt", [1]), ("policy", [2])])])
    kept, plain = load(tmp_path / "step.parquet")
    assert kept.sequences == made.sequences == [[0, 1, 2, 3], [4, 5], [0, 1, 6, 7]]
    assert kept.result == made.result
    assert (plain.result, plain.sequences) == (None, [[0, 1]])


@pytest.mark.parametrize("aggregation", aggregate.names())
def test_the_gradient_is_that_of_the_same_sequences_by_hand(aggregation: str) -> None:
    """Each row alone, from a log-probability on: the loss of an attempt is written out here."""
    others = tiny.conversations(3, seed=2)
    attempts = [branched(), *others]
    worth = [1.5, -0.5, 0.25, -1.0]
    learned, by_hand = policy_of(), policy_of()
    batch = Batch.pack(attempts)
    batch.columns["advantages"] = torch.cat(
        [torch.full((count,), value) for count, value in zip(batch.action_lengths, worth, strict=True)]
    )
    batch.columns["old_log_prob"] = learned.statistics(batch)["log_prob"]
    objective = Objective(schema.Algorithm(loss="ppo", aggregate=aggregation), norm_tokens=16)
    gradients = gradients_of(learned, batch, objective)

    total, sequences = sum(batch.action_lengths), len(attempts)
    loss = torch.zeros(())
    for attempt, value in zip(attempts, worth, strict=True):
        seen: set[int] = set()
        log_probs = []
        for path in attempt.sequences:  # one row after the other, nothing shared
            row = [token for number in path for token in attempt.segments[number].tokens]
            all_of_row = log_probs_of(by_hand, row)
            place = 0
            for number in path:
                segment = attempt.segments[number]
                if segment.source == "policy" and number not in seen:
                    seen.add(number)
                    log_probs.append(all_of_row[place - 1 : place - 1 + len(segment.tokens)])
                place += len(segment.tokens)
        own = torch.cat(log_probs)
        gain = -value * (own - own.detach()).exp()
        loss = (
            loss
            + {
                "token-mean": gain.sum() / total,
                "seq-mean-token-sum": gain.sum() / sequences,
                "seq-mean-token-mean": gain.mean() / sequences,
                "seq-mean-token-sum-norm": gain.sum() / (sequences * 16),
            }[aggregation]
        )
    by_hand.decoder.zero_grad()
    loss.backward()
    for (name, one_of), other in zip(gradients.items(), by_hand.decoder.parameters(), strict=True):
        assert other.grad is not None, name
        torch.testing.assert_close(one_of, other.grad, rtol=1e-4, atol=1e-6)


def policy_of() -> Policy:
    return Policy(
        tiny.decoder(), schema.OptimizerConfig(), total_updates=1, temperature=1.0, micro_tokens=None,
        dtype=torch.float32,
    )  # fmt: skip


def gradients_of(policy: Policy, batch: Batch, objective: Objective) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}

    def note() -> dict[str, float]:
        found.update({n: p.grad.clone() for n, p in policy.decoder.named_parameters() if p.grad is not None})
        return {"skipped": 0.0, "lr": 0.0}

    policy.optimizer.step = note  # type: ignore[method-assign, assignment]
    policy.update(batch, objective)
    return found


def log_probs_of(policy: Policy, row: list[int]) -> torch.Tensor:
    """Of each token but the first, given those before it."""
    tokens = torch.tensor(row)
    attend = PackedAttention([len(row)], torch.device("cpu"))
    logits = policy.decoder.head(policy.decoder.hidden(tokens, attend.positions, attend))
    return logits.log_softmax(-1)[:-1].gather(1, tokens[1:, None])[:, 0]
