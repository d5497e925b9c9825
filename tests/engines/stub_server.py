"""A server with OpenAI's completions over a native engine: what servers do, and what some of them do not."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from toolwright.engines import Completion, Sampling
from toolwright.engines.delivery import checksum, received
from toolwright.engines.native.engine import NativeEngine
from toolwright.models import huggingface


@dataclass
class StubServer:
    """`ids`: whether tokens are told as ids, in a field, by name or not at all. `trouble`: answers with an
    error that come first. `patience`: seconds before each answer. `page`: what it says instead of any.
    `takes_weights`: whether it does what our extension adds to vLLM's server."""

    engine: NativeEngine
    ids: str = "field"
    temperature_counts: bool = False  # whether log-probabilities are those at the temperature
    trouble: list[int] = field(default_factory=list)
    patience: float = 0.0
    page: str | None = None
    takes_weights: bool = False
    asked: list[dict[str, Any]] = field(default_factory=list)
    given_up: int = 0
    url: str = ""

    def __enter__(self) -> StubServer:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        asyncio.run_coroutine_threadsafe(self._open(), self.loop).result(120)
        return self

    async def _open(self) -> None:
        app = web.Application()
        app.add_routes([web.get("/v1/models", self._models), web.post("/v1/completions", self._complete)])
        if self.takes_weights:
            app.add_routes(
                [web.post("/collective_rpc", self._call), web.post("/reset_prefix_cache", self._forget)]
            )
        # Whoever hangs up has given up.
        self.runner = web.AppRunner(app, handler_cancellation=True)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self.runner.addresses[0][1]}"

    async def _models(self, request: web.Request) -> web.Response:
        if self.page is not None:
            return web.Response(text=self.page)
        return web.json_response({"data": [{"id": "policy", "max_model_len": 48}]})

    async def _call(self, request: web.Request) -> web.Response:
        body = await request.json()
        if body["method"] == "toolwright_whole_distribution":
            return web.json_response({"results": [["toolwright"]]})
        weights, decoder = received(body["args"][0]), self.engine.decoder
        decoder.load_state_dict(huggingface.from_hub(weights, decoder.shape, Path()))
        self.engine.publish(self.engine.weights_version + 1)
        return web.json_response({"results": [{"checksum": str(checksum(weights)), "differing": []}]})

    async def _forget(self, request: web.Request) -> web.Response:
        return web.json_response({})  # weights that are published leave nothing to forget

    async def _complete(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.asked.append(body)
        if self.trouble:
            return web.Response(status=self.trouble.pop(0), text="out of order")
        if self.page is not None:
            return web.Response(text=self.page)
        try:
            await asyncio.sleep(self.patience)
        except asyncio.CancelledError:
            self.given_up += 1
            raise
        sampling = Sampling(
            temperature=body["temperature"],
            top_k=body.get("top_k", 0),
            max_tokens=body["max_tokens"],
            seed=body["seed"],
            stop=tuple(body.get("stop", ())),
        )
        said = await self.engine.generate(body["prompt"], sampling, attempt=str(len(self.asked)))
        return web.json_response({"choices": [self._choice(said, sampling)]})

    def _choice(self, said: Completion, sampling: Sampling) -> dict[str, Any]:
        likeliest = -0.1 * (sampling.temperature if self.temperature_counts else 1.0)
        names = [f"token_id:{token}" if self.ids == "name" else "x" for token in said.tokens]
        told = {
            "tokens": names,
            "token_logprobs": said.log_probs,
            "top_logprobs": [{"x": likeliest}],
        }
        own = {"token_ids": said.tokens} if self.ids == "field" else {}
        return {"text": said.text, "logprobs": told, **own}

    def __exit__(self, *error: object) -> None:
        asyncio.run_coroutine_threadsafe(self.runner.cleanup(), self.loop).result(120)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()
