"""An agent that improves in place: served, recorded, scored, trained offline, and judged again."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from tests import tiny
from toolwright import record
from toolwright.cli import main
from toolwright.config import schema
from toolwright.config.compose import Source, resolve
from toolwright.failures import UserError
from toolwright.observe.metrics import Metrics
from toolwright.tasks.builtin.recorded import recorded
from toolwright.tasks.record_folder import Feedback, RecordFolder, conversations, written
from toolwright.trainer import building
from toolwright.trainer.loop import train
from toolwright.trainer.preparation import prepare

from .conftest import Served, serving
from .taught import teach

pytestmark = pytest.mark.xdist_group("serve")
HELLO: Any = [{"role": "user", "content": "hello"}]
WHY: Any = [{"role": "user", "content": "why?"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("served") / "record"


@pytest.fixture(scope="module")
def recording(taught: Path, folder: Path) -> Iterator[Served]:
    with serving(taught, "--slots", "32", "--record", str(folder)) as running:
        yield running


def ask(served: Served, messages: Any, **fields: Any) -> dict[str, Any]:
    body = {"model": served.name, "messages": messages, "max_tokens": 16, "return_token_ids": True, **fields}
    code, answer = served.ask("POST", "/v1/chat/completions", body)
    assert code == 200, answer
    return dict(answer)


def score(served: Served, id: str, score: float, **fields: Any) -> None:
    code, said = served.ask("POST", "/v1/feedback", {"id": id, "score": score, **fields})
    assert (code, said["score"]) == (200, score), said


def stored(folder: Path, *ids: str) -> dict[str, Any]:
    """The answers of these ids, once they are written."""
    for _ in range(200):
        found = RecordFolder(folder).answers()
        if all(id in found for id in ids):
            return found
        time.sleep(0.1)
    raise AssertionError(f"{ids} were not written, only {list(found)}")


def test_an_answer_is_kept_with_the_tokens_and_log_probabilities_that_were_sampled(
    recording: Served, folder: Path
) -> None:
    answer = ask(recording, HELLO, logprobs=True, n=2, temperature=0.7)
    one, two = answer["choices"]
    found = stored(folder, answer["id"], f"{answer['id']}/1")
    for id, choice in ((answer["id"], one), (f"{answer['id']}/1", two)):
        (kept,) = record.load(Path(found[id].file), [found[id].row])
        prompt, said = kept.segments
        assert said.tokens == choice["token_ids"]
        assert said.log_probs == pytest.approx([t["logprob"] for t in choice["logprobs"]["content"]])
        assert len(prompt.tokens) == answer["usage"]["prompt_tokens"]
        assert (kept.task.prompt, found[id].temperature) == (HELLO, 0.7)
    assert found[answer["id"]].group == found[f"{answer['id']}/1"].group
    assert folder.stat().st_mode & 0o077 == 0


def test_both_sdks_give_the_id_that_a_score_is_posted_for(recording: Served, folder: Path) -> None:
    client = openai.OpenAI(base_url=f"{recording.url}/v1", api_key="none")
    chat = client.chat.completions.create(model=recording.name, messages=HELLO, max_tokens=16)
    client.post("/feedback", body={"id": chat.id, "score": 1, "text": "thanks"}, cast_to=object)
    streamed = list(
        client.chat.completions.create(model=recording.name, messages=HELLO, max_tokens=16, stream=True)
    )
    score(recording, streamed[0].id, 0.5)
    other = anthropic.Anthropic(base_url=recording.url, api_key="none")
    message = other.messages.create(model=recording.name, messages=HELLO, max_tokens=16)
    other.post("/v1/feedback", body={"id": message.id, "score": -1.0}, cast_to=object)
    stored(folder, chat.id, streamed[0].id, message.id)
    given = RecordFolder(folder).feedback()
    assert [given[id].score for id in (chat.id, streamed[0].id, message.id)] == [1.0, 0.5, -1.0]
    assert given[chat.id].text == "thanks"
    learned = {one.last.id for one in conversations(RecordFolder(folder))}
    assert {chat.id, streamed[0].id, message.id} <= learned


def test_turns_of_a_conversation_are_one_attempt_and_no_token_is_learned_twice(
    recording: Served, folder: Path
) -> None:
    said = [*HELLO]
    ids, tokens = [], []
    for question in ("again?", "and?", None):
        answer = ask(recording, said, seed=len(said))
        ids.append(answer["id"])
        tokens.append(answer["choices"][0]["token_ids"])
        said += [answer["choices"][0]["message"], {"role": "user", "content": str(question)}]
    branch = ask(recording, [*said[:-3], {"role": "user", "content": "else?"}])
    score(recording, branch["id"], 0.25)
    score(recording, ids[0], 0.5)
    score(recording, ids[2], 1.0)
    found = stored(folder, *ids, branch["id"])
    assert [found[id].parent for id in ids] == [None, ids[0], ids[1]]
    talks = {one.last.id: one for one in conversations(RecordFolder(folder))}
    assert ids[0] not in talks, "its score is that of a turn of the longer one"
    whole = written(talks[ids[2]].plain()["turns"])
    assert [s.source for s in whole] == ["prompt", "policy", "environment", "policy", "environment", "policy"]
    assert [s.tokens for s in whole if s.source == "policy"] == tokens
    assert [s.reward for s in whole if s.source == "policy"] == [0.5, None, 1.0]
    assert "again?" in whole[2].text
    shared = written(talks[branch["id"]].plain()["turns"])
    assert [s.source for s in shared][-1] == "policy"
    assert [s.source for s in shared].count("policy") == 1, "the turns before are the other one's"
    both = [t for s in shared for t in s.tokens]
    assert len(both) == branch["usage"]["total_tokens"]


def test_a_score_of_the_answer_alone_leaves_the_turns_before_it_as_context(
    recording: Served, folder: Path
) -> None:
    first = ask(recording, HELLO, seed=5)
    second = ask(recording, [*HELLO, first["choices"][0]["message"], *HELLO], seed=6)
    score(recording, second["id"], 1.0, scope="answer")
    stored(folder, second["id"])
    (talk,) = [one for one in conversations(RecordFolder(folder)) if one.last.id == second["id"]]
    assert [s.source for s in written(talk.plain()["turns"])] == [
        "prompt",
        "environment",
        "environment",
        "policy",
    ]


@pytest.mark.parametrize(
    ("body", "code", "why"),
    [
        ({"id": "chatcmpl-none", "score": 1}, 404, "there is no answer 'chatcmpl-none' in the record"),
        ({"id": "x"}, 400, "score: Field required"),
        ({"id": "x", "score": "good"}, 400, "score: "),
        ({"id": "x", "score": 1e9}, 400, "score: "),
        ({"id": "", "score": 1}, 400, "id: "),
        ({"id": "x", "score": 1, "text": "a" * 20_000}, 400, "text: "),
        ({"id": "x", "score": 1, "scope": "week"}, 400, "scope: "),
        (b"{", 400, "the body is not JSON"),
    ],
)
def test_a_score_that_is_none_is_refused(recording: Served, body: Any, code: int, why: str) -> None:
    given, said = recording.ask("POST", "/v1/feedback", body)
    assert given == code
    assert why in said["error"]["message"]


def test_a_server_without_a_record_takes_no_scores(served: Served) -> None:
    code, said = served.ask("POST", "/v1/feedback", {"id": "x", "score": 1})
    assert (code, "--record DIR" in said["error"]["message"]) == (404, True)


def test_the_record_outlives_its_server_and_scores_need_its_token(taught: Path, tmp_path: Path) -> None:
    folder = tmp_path / "record"
    with serving(taught, "--record", str(folder)) as running:
        id = ask(running, HELLO)["id"]
    assert list(RecordFolder(folder).answers()) == [id]
    with serving(taught, "--record", str(folder), TOOLWRIGHT_SERVE_TOKEN="secret") as running:
        assert running.ask("POST", "/v1/feedback", {"id": id, "score": 1})[0] == 401
        headers = {"authorization": "Bearer secret"}
        assert running.ask("POST", "/v1/feedback", {"id": id, "score": 1}, headers)[0] == 200
    assert len(conversations(RecordFolder(folder))) == 1


def test_the_oldest_answers_go_where_there_is_no_room(
    recording: Served, folder: Path, tmp_path: Path
) -> None:
    ids = [ask(recording, HELLO)["id"] for _ in range(2)]
    found = stored(folder, *ids)
    kept = [record.load(Path(found[id].file), [found[id].row])[0] for id in ids]
    small = RecordFolder(tmp_path)
    small.create()
    for one in kept:
        small.save([one], limit=1)
    assert list(small.answers()) == [ids[1]]


def test_a_line_of_feedback_that_was_cut_short_is_left_out(tmp_path: Path) -> None:
    folder = RecordFolder(tmp_path)
    folder.create()
    folder.add_feedback(Feedback("a", 1.0))
    with (tmp_path / "feedback.jsonl").open("a") as file:
        file.write('{"id": "b", "sco\n')
    folder.add_feedback(Feedback("a", 0.0))
    assert {id: one.score for id, one in folder.feedback().items()} == {"a": 0.0}


def test_what_is_no_record_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a record"):
        recorded(folder=str(tmp_path))
    RecordFolder(tmp_path).create()
    with pytest.raises(UserError, match="has no scored answers"):
        recorded(folder=str(tmp_path))


def configured(folder: Path, model: Path, *own: str) -> schema.Config:
    words = [
        "task=recorded",
        f"task.params.folder={folder}",
        f"model.path={model}",
        "run.threads=1",
        "rollout.temperature=2",
        "algorithm=reinforce_plus_plus",
        *own,
    ]
    config = resolve(Source(), list({word.split("=")[0]: word for word in words}.values())).config
    assert isinstance(config, schema.Config)
    return config


@pytest.fixture(scope="module")
def liked(recording: Served, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A record of 192 answers to "why?", of which those are liked that the model was not taught."""
    ids = []
    for seed in range(3):
        answer = ask(recording, WHY, n=64, max_tokens=3, seed=seed * 1000, temperature=2.0)
        for number, choice in enumerate(answer["choices"]):
            text = str(choice["message"]["content"])
            score(recording, answer["id"], float(text[:1] != "h"), choice=number)
            ids.append(f"{answer['id']}/{number}" if number else answer["id"])
    found, given = stored(folder, *ids), RecordFolder(folder).feedback()
    apart = RecordFolder(tmp_path_factory.mktemp("liked"))
    apart.create()
    apart.save([record.load(Path(found[id].file), [found[id].row])[0] for id in ids], limit=1 << 30)
    for id in ids:
        apart.add_feedback(given[id])
    return apart.path


def chance_of_liking(folder: Path) -> float:
    """How probable a first token is that is liked."""
    decoder, tokenizer = building.build_model(schema.Model(path=str(folder), context=512), "", seed=0)
    prompt = tokenizer.opening(WHY).tokens
    chances = (tiny.logits(decoder, prompt)[-1] / 2).softmax(-1)
    return 1 - float(chances[tokenizer.encode("h")[0]])


def test_training_on_the_record_makes_liked_answers_likelier(
    liked: Path, taught: Path, tmp_path: Path
) -> None:
    own = [f"run.dir={tmp_path}", "rollout.prompts=48", "train.steps=8", "update.policy.lr=1e-3"]
    run = train(configured(liked, taught, *own), command=["toolwright", "train"])
    before, after = chance_of_liking(taught), chance_of_liking(run / "model")
    assert 0.1 < before < 0.9
    assert after > before + 0.1
    rows = [row for row in Metrics.read(run / "metrics.jsonl") if "reward/mean" in row]
    assert rows[0]["reward/mean"] == pytest.approx(before, abs=0.25)
    assert rows[0]["correction/weight_mean"] == pytest.approx(1.0, abs=0.2)
    assert rows[-1]["gap/abs_mean"] > rows[0]["gap/abs_mean"]
    learned = record.load(sorted((run / "rollouts").glob("*.parquet"))[0])
    assert {one.stop for one in learned} == {"done"}


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["algorithm=grpo"], "compares answers to one prompt: set rollout.samples"),
        (["algorithm=remax"], "needs greedy attempts, but a record has none"),
        (["rollout.temperature=0.5"], "sampled at temperature 2, and rollout.temperature=0.5"),
        (["algorithm=grpo", "rollout.samples=500"], "answers must have the same prompt"),
        (["model.path=null"], "with another tokenizer"),
        (["algorithm=dpo"], "learns from compared answers"),
    ],
)
def test_a_run_that_cannot_learn_from_the_record_says_so(
    liked: Path, taught: Path, words: list[str], why: str
) -> None:
    with pytest.raises(UserError, match=why):
        prepare(configured(liked, taught, *words))


def test_answers_to_one_prompt_are_a_group(liked: Path, taught: Path) -> None:
    prepared = prepare(configured(liked, taught, "algorithm=grpo", "rollout.samples=16"))
    assert len(prepared.train) == 192 // 16
    assert prepared.role_config.config.rollout.agent == "recorded"


def test_the_gate_lets_a_model_pass_only_if_it_is_surely_no_worse(
    taught: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"prompt": HELLO, "reward_model": {"ground_truth": "hello, world"}}
    tasks = tmp_path / "test.jsonl"
    tasks.write_text("".join(json.dumps({**row, "extra_info": {"index": n}}) + "\n" for n in range(24)))
    teach(tmp_path / "untaught", steps=1)
    same = ["eval", "task=file", "task.train=null", f"task.held_out={tasks}", "reward.function=exact"]
    same += ["rollout.max_tokens=16", "run.threads=1"]
    assert main([*same, f"model.path={taught}", "--against", str(taught), "--gate", "0"]) == 0
    assert "gate open: accuracy +0.0 points" in capsys.readouterr().err
    worse = [*same, f"model.path={tmp_path / 'untaught'}", f"--against={taught}"]
    assert main([*worse, "--gate=5"]) == 1
    assert "gate closed: accuracy -100.0 points" in capsys.readouterr().err
    assert main([*same, f"model.path={taught}", "--gate", "5"]) == 2
    assert "name the other one with --against" in capsys.readouterr().err
    assert main([*worse, "--gate", "some"]) == 2
