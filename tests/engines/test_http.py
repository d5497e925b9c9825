"""The http engine and servers of all sorts: what cannot be learned from is refused, what breaks is named."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import tiny
import torch

from tests.waiting import wait_until
from toolwright.config import schema
from toolwright.engines import Sampling
from toolwright.engines.http import HttpEngine
from toolwright.failures import InfrastructureFailure, UserError

from .conftest import ask_one, make
from .stub_server import StubServer
from .test_contract import ENDLESS, PROMPT

MODEL = tiny.decoder()
Serve = Callable[..., StubServer]
Meet = Callable[..., HttpEngine]


@pytest.fixture
def serve() -> Iterator[Serve]:
    with ExitStack() as stack:
        yield lambda **how: stack.enter_context(StubServer(make("native", MODEL, ENDLESS), **how))


@pytest.fixture
def meet() -> Iterator[Meet]:
    made = []

    def one(url: str | None, **settings: Any) -> HttpEngine:
        config = schema.EngineConfig(name="http", url=url, **{"timeout_s": 120.0, **settings})
        made.append(HttpEngine(config, decoder=MODEL, tokenizer=ENDLESS, dtype=torch.float32))
        return made[-1]

    yield one
    for engine in made:
        asyncio.run(engine.close())


class TestMeeting:
    def test_the_shorter_context_counts(self, serve: Serve, meet: Meet) -> None:
        engine = meet(serve().url + "/v1/")
        assert engine.context == 48
        assert len(ask_one(engine, PROMPT, Sampling(max_tokens=1000)).tokens) == 48 - len(PROMPT)

    @pytest.mark.parametrize("ids", ["field", "name"])
    def test_tokens_come_as_they_were_sampled(self, serve: Serve, meet: Meet, ids: str) -> None:
        answer = ask_one(meet(serve(ids=ids).url), PROMPT, Sampling(max_tokens=9))
        assert len(answer.tokens) == len(answer.log_probs) == 9
        assert answer.text == ENDLESS.decode(answer.tokens)

    def test_a_server_that_tells_only_text_is_refused(self, serve: Serve, meet: Meet) -> None:
        with pytest.raises(UserError, match="without token ids"):
            meet(serve(ids="none").url)

    def test_a_missing_url_is_refused(self, meet: Meet) -> None:
        with pytest.raises(UserError, match=r"engine\.url must be the server's address"):
            meet(None)

    def test_nobody_there_is_said_at_once(self, meet: Meet) -> None:
        with pytest.raises(
            UserError, match=r"engine\.url=http://127\.0\.0\.1:9: .* failed 2 times to answer"
        ):
            meet("http://127.0.0.1:9", params={"retries": 1})

    def test_a_model_that_is_not_served(self, serve: Serve, meet: Meet) -> None:
        with pytest.raises(UserError, match=r"engine\.params\.model=polcy: .* did you mean 'policy'"):
            meet(serve().url, params={"model": "polcy"})

    def test_a_setting_that_is_not_known(self, serve: Serve, meet: Meet) -> None:
        with pytest.raises(UserError, match=r"engine\.params\.retry: .* did you mean 'retries'"):
            meet(serve().url, params={"retry": 1})

    @pytest.mark.parametrize("retries", [-1, "many", 1.5, None])
    def test_a_number_of_retries_that_is_none(self, meet: Meet, retries: Any) -> None:
        with pytest.raises(UserError, match=r"engine\.params\.retries=.*: expected a number"):
            meet("http://127.0.0.1:9", params={"retries": retries})

    @pytest.mark.parametrize("page", ["<html>welcome</html>", "[]", '{"data": [1]}', "5"])
    def test_a_server_of_something_else(self, serve: Serve, meet: Meet, page: str) -> None:
        with pytest.raises(UserError, match=r"/v1/models"):
            meet(serve(page=page).url)

    def test_the_key_is_read_where_it_is_said_to_be(
        self, serve: Serve, meet: Meet, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with pytest.raises(UserError, match="the environment has no MY_KEY"):
            meet(serve().url, params={"api_key_env": "MY_KEY"})
        monkeypatch.setenv("MY_KEY", "secret")
        assert meet(serve().url, params={"api_key_env": "MY_KEY"}).headers == {
            "Authorization": "Bearer secret"
        }


class TestWhatCannotBeLearnedFrom:
    def test_a_server_without_a_way_for_weights_says_so(self, serve: Serve, meet: Meet) -> None:
        engine = meet(serve().url)
        assert not engine.takes_weights
        with pytest.raises(UserError, match="does not accept weights: start vLLM's server with"):
            engine.publish(1)

    def test_log_probabilities_before_the_temperature_serve_a_temperature_of_1_alone(
        self, serve: Serve, meet: Meet
    ) -> None:
        engine = meet(serve().url)
        assert ask_one(engine, PROMPT, Sampling(temperature=1.0)).tokens
        assert ask_one(engine, PROMPT, Sampling(temperature=0.0)).tokens
        with pytest.raises(UserError, match=r"rollout\.temperature=0\.7 cannot be learned from"):
            ask_one(engine, PROMPT, Sampling(temperature=0.7))

    def test_those_at_the_temperature_serve_any_without_filters(self, serve: Serve, meet: Meet) -> None:
        engine = meet(serve(temperature_counts=True).url)
        assert ask_one(engine, PROMPT, Sampling(temperature=0.7)).tokens
        with pytest.raises(UserError, match=r"rollout\.top_k=3 cannot be learned from"):
            ask_one(engine, PROMPT, Sampling(top_k=3))


class TestTrouble:
    def test_a_server_out_of_order_is_asked_again(self, serve: Serve, meet: Meet) -> None:
        server = serve()
        engine = meet(server.url)
        server.trouble = [503, 429]
        assert ask_one(engine, PROMPT, Sampling(max_tokens=3)).tokens

    def test_a_server_that_stays_out_of_order_is_named(self, serve: Serve, meet: Meet) -> None:
        server = serve()
        engine = meet(server.url, params={"retries": 1})
        server.trouble = [500, 502]
        with pytest.raises(InfrastructureFailure, match=r"failed 2 times to answer .* 502: out of order"):
            ask_one(engine, PROMPT, Sampling())

    def test_a_request_that_the_server_refuses_is_not_repeated(self, serve: Serve, meet: Meet) -> None:
        server = serve()
        engine = meet(server.url)
        before = len(server.asked)
        server.trouble = [400, 400]
        with pytest.raises(UserError, match="refuses a turn of one: 400"):
            ask_one(engine, PROMPT, Sampling())
        assert len(server.asked) == before + 1

    def test_a_dead_server_is_reported_within_its_retries(self, serve: Serve, meet: Meet) -> None:
        server = StubServer(make("native", MODEL, ENDLESS))
        with server:
            engine = meet(server.url, params={"retries": 2})
        with pytest.raises(InfrastructureFailure, match="failed 3 times to answer"):
            ask_one(engine, PROMPT, Sampling())

    def test_a_turn_that_is_given_up_hangs_up(self, serve: Serve, meet: Meet) -> None:
        server = serve()
        engine = meet(server.url)
        server.patience = 600.0

        async def give_up() -> None:
            before = len(server.asked)
            task = asyncio.create_task(engine.generate(PROMPT, Sampling(), attempt="a"))
            while len(server.asked) == before:
                await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        asyncio.run(give_up())
        wait_until(lambda: server.given_up, "the server has heard of it")
        assert server.given_up == 1

    @pytest.mark.parametrize("page", ["<html>", "{}", '{"choices": []}', '{"choices": [{"token_ids": []}]}'])
    def test_an_answer_that_is_none_is_named(self, serve: Serve, meet: Meet, page: str) -> None:
        server = serve()
        engine = meet(server.url)
        server.page = page
        with pytest.raises(UserError, match=server.url):
            ask_one(engine, PROMPT, Sampling())

    def test_closing_the_engine_ends_waiting_turns(self, serve: Serve, meet: Meet) -> None:
        server = serve()
        engine = meet(server.url)
        server.patience = 60.0

        async def close_meanwhile() -> None:
            task = asyncio.create_task(engine.generate(PROMPT, Sampling(), attempt="a"))
            before = len(server.asked)
            while len(server.asked) == before:
                await asyncio.sleep(0.01)
            await engine.close()
            async with asyncio.timeout(10):
                with pytest.raises(InfrastructureFailure, match="was closed"):
                    await task
            with pytest.raises(InfrastructureFailure, match="was closed"):
                await engine.generate(PROMPT, Sampling(), attempt="b")

        asyncio.run(close_meanwhile())

    def test_a_turn_that_takes_too_long_names_the_server(self, serve: Serve, meet: Meet) -> None:
        server = serve()
        engine = meet(server.url)
        server.patience, engine.timeout_s = 600.0, 0.1
        with pytest.raises(
            InfrastructureFailure, match=f"{server.url} did not finish a turn of one within 0.1 s"
        ):
            ask_one(engine, PROMPT, Sampling())
