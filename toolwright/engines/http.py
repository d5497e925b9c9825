"""A server as an engine: one that answers OpenAI's completions with token ids, vLLM's first of all."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from toolwright.config import schema
from toolwright.engines import Completion, Sampling, registry
from toolwright.engines.delivery import WeightDelivery, checksum, compare, named_weights
from toolwright.engines.turns import check_prompt, ending, seed_at, turn_of
from toolwright.failures import InfrastructureFailure, UserError, nearest
from toolwright.models.decoder import Decoder
from toolwright.models.tokenizer import Tokenizer
from toolwright.web.loop_thread import LoopThread

T = TypeVar("T")
PAUSE_S = 0.5  # before the first retry, doubled each time
ASKED_AT_START_S = 30.0
WARM, HOT = 1.0, 2.0  # temperatures that tell by their difference what a server's log-probabilities are
NO_WEIGHTS = (
    "it does not accept weights: start vLLM's server with VLLM_SERVER_DEV_MODE=1 and --worker-extension-cls "
    "toolwright.engines.vllm_worker.WorkerExtension, or use engine=vllm"
)


class ServerRefusal(Exception):
    """The server has understood, and will not."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(f"{status}: {said}")
        self.status, self.said = status, said


@dataclass(frozen=True)
class CompletionInfo:
    """The tokens and log-probabilities of one completion."""

    tokens: list[int]
    log_probs: list[float]
    likeliest: float  # log-probability of the first place's likeliest token


@registry.register("http")
class HttpEngine:
    """Requests live in a thread with a loop of its own: who waits may be in any loop, or in none."""

    exact = False

    def __init__(
        self, config: schema.EngineConfig, *, decoder: Decoder, tokenizer: Tokenizer, dtype: torch.dtype
    ) -> None:
        if config.url is None:
            raise UserError(
                "engine.name=http: engine.url must be the server's address, such as http://host:port"
            )
        if not config.url.startswith(("http://", "https://")):
            raise UserError(f"engine.url={config.url}: expected an address such as http://host:port")
        self.url = config.url.rstrip("/").removesuffix("/v1")
        self.headers, self.model, self.retries = _params(config.params)
        self.decoder, self.tokenizer, self.dtype = decoder, tokenizer, dtype
        self.timeout_s, self.slots = config.timeout_s, config.slots
        self.weights_version = 0
        self._session: Any = None
        self._closed = False
        self._thread = LoopThread("http engine")
        try:
            self.context = min(decoder.shape.context, self._meet())
            self.takes_weights = self._extended()
            if self.takes_weights:
                self.publish(0)
            self.at_temperature = self._probe()
        except InfrastructureFailure as error:  # nothing has begun that could be tried again elsewhere
            self._end()
            raise UserError(f"engine.url={config.url}: {error}") from None
        except BaseException:
            self._end()
            raise

    async def generate(self, prompt: Sequence[int], sampling: Sampling, *, attempt: str) -> Completion:
        check_prompt(prompt, context=self.context, attempt=attempt)
        self._check(sampling)
        body = {
            "prompt": list(prompt),
            "max_tokens": min(sampling.max_tokens, self.context - len(prompt)),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "seed": seed_at(sampling.seed, len(prompt)),
            "stop": list(sampling.stop),
            "include_stop_str_in_output": True,
            "stop_token_ids": sorted(self.tokenizer.end_tokens),
        }
        if self._closed:
            raise InfrastructureFailure(f"the engine that asks {self.url} was closed")
        version = self.weights_version
        work = asyncio.wrap_future(self._thread.submit(self._complete(body)))
        try:
            answered = await turn_of(attempt, work, who=self.url, limit_s=self.timeout_s)
        except ServerRefusal as error:
            raise UserError(f"{self.url} refuses a turn of {attempt}: {error}") from None
        # Its own words for where a stop string ends need not be ours: what came after is not kept.
        count, stop = ending(
            self.tokenizer, answered.tokens, ends=self.tokenizer.end_tokens, stop=sampling.stop
        )
        tokens = answered.tokens[:count]
        return Completion(tokens, answered.log_probs[:count], self.tokenizer.decode(tokens), stop, version)

    def release(self, attempt: str) -> None:
        """The server keeps what it computed by its content, and lets the oldest go by itself."""

    def rest(self) -> None:
        """Do nothing: the server's memory is its own."""

    def publish(self, version: int) -> None:
        if not self.takes_weights:
            raise UserError(f"engine.url={self.url}: {NO_WEIGHTS}")
        weights = named_weights(self.decoder, self.dtype)
        with WeightDelivery({name: tensor.cpu() for name, tensor in weights.items()}) as delivery:
            sent = checksum(delivery.weights)
            call = {"method": "toolwright_load", "args": [delivery.note]}
            answers = self._asked("/collective_rpc", call, limit_s=self.timeout_s)["results"]
        compare(self.url, version, sent=sent, answers=answers)
        self._asked("/reset_prefix_cache?reset_running_requests=true", {}, limit_s=self.timeout_s)
        self.weights_version = version

    async def close(self) -> None:
        self._end()

    # What is found out before anything is sampled.

    def _meet(self) -> int:
        """Ask the server for its model's longest sequence."""
        answer = self._asked("/v1/models")
        try:
            found = {row["id"]: row for row in answer["data"]}
        except (KeyError, TypeError):
            raise UserError(
                f"engine.url={self.url}: expected a list of models at /v1/models, found "
                f"{str(answer)[:99]!r}; the server must speak OpenAI's protocol"
            ) from None
        if self.model is None:
            self.model = next(iter(found), None)
        if self.model not in found:
            raise UserError(
                f"engine.params.model={self.model}: {self.url} does not serve it; "
                f"{nearest(str(self.model), found)}"
            )
        return int(found[self.model].get("max_model_len") or self.decoder.shape.context)

    def _extended(self) -> bool:
        """True for vLLM's server with our extension; its log-probabilities are then defined as ours are."""
        try:
            answer = self._asked("/collective_rpc", {"method": "toolwright_whole_distribution"})
        except (UserError, InfrastructureFailure):
            return False
        return isinstance(answer, dict) and bool(answer.get("results"))

    def _probe(self) -> bool:
        """Check that tokens come as ids. Return True if log-probabilities are those at the temperature."""
        prompt = [min(self.tokenizer.end, self.decoder.shape.vocab - 1)]
        likeliest = []
        for temperature in (WARM, HOT):
            body = {"prompt": prompt, "max_tokens": 1, "temperature": temperature, "logprobs": 1, "seed": 1}
            try:
                likeliest.append(self._run(self._complete(body), ASKED_AT_START_S).likeliest)
            except ServerRefusal as error:
                raise UserError(f"{self.url} cannot serve this engine: it answered {error}") from None
        return abs(likeliest[0] - likeliest[1]) > 1e-4

    def _check(self, sampling: Sampling) -> None:
        """Log-probabilities must be those of the whole distribution at the temperature. With our extension
        they are; servers give them before the temperature, or after it and the filters."""
        if self.takes_weights or not sampling.temperature:
            return
        before = not self.at_temperature and sampling.temperature != 1
        wrong = {
            f"rollout.temperature={sampling.temperature:g}": before,
            f"rollout.top_k={sampling.top_k}": self.at_temperature and sampling.top_k,
            f"rollout.top_p={sampling.top_p:g}": self.at_temperature and sampling.top_p < 1,
        }
        for setting, found in wrong.items():
            if found:
                when = "before the temperature" if before else "after the filters"
                raise UserError(
                    f"{self.url} gives log-probabilities {when}, so {setting} cannot be learned from; leave "
                    "it at its default, or use a server with Toolwright's extension (docs/engines.md)"
                )

    # How it is asked.

    async def _complete(self, body: dict[str, Any]) -> CompletionInfo:
        whole = {
            "model": self.model,
            "logprobs": 0,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            "ignore_eos": True,
            "skip_special_tokens": True,
            **body,
        }
        try:
            return _answered(self.url, await self._post("/v1/completions", whole))
        except asyncio.CancelledError:
            if self._closed:  # whoever waits was not cancelled
                raise InfrastructureFailure(f"the engine that asks {self.url} was closed") from None
            raise

    async def _post(self, path: str, body: dict[str, Any] | None) -> Any:
        """Send a request. Temporary failures are tried again; a refusal is raised."""
        import aiohttp

        if self._session is None:
            limits = aiohttp.TCPConnector(limit=self.slots)
            timeout = aiohttp.ClientTimeout(total=self.timeout_s)
            self._session = aiohttp.ClientSession(connector=limits, timeout=timeout, headers=self.headers)
        trouble = ""
        for attempt in range(self.retries + 1):
            if attempt:
                await asyncio.sleep(PAUSE_S * 2 ** (attempt - 1))
            try:
                method = "GET" if body is None else "POST"
                async with self._session.request(method, self.url + path, json=body) as response:
                    said = await response.text()
            except (aiohttp.ClientError, TimeoutError) as error:
                trouble = f"{type(error).__name__}: {error}"
                continue
            if response.status == 200:
                try:
                    return json.loads(said) if said else {}
                except ValueError:
                    raise ServerRefusal(response.status, f"text that is not JSON: {said[:300]}") from None
            trouble = f"{response.status}: {said[:300]}"
            if response.status < 500 and response.status not in (408, 429):
                raise ServerRefusal(response.status, said[:300])
        raise InfrastructureFailure(f"{self.url} failed {self.retries + 1} times to answer {path}: {trouble}")

    def _asked(self, path: str, body: dict[str, Any] | None = None, limit_s: float = ASKED_AT_START_S) -> Any:
        try:
            return self._run(self._post(path, body), limit_s)
        except ServerRefusal as error:
            raise UserError(f"{self.url}{path}: {error}") from None

    def _run(self, work: Coroutine[Any, Any, T], limit_s: float) -> T:
        future = self._thread.submit(work)
        try:
            return future.result(limit_s)
        except TimeoutError:
            future.cancel()
            raise InfrastructureFailure(f"{self.url} has not answered within {limit_s:g} s") from None

    def _end(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._thread.cancel_all()  # nobody is left waiting for an answer
        if self._session is not None:
            self._run(self._session.close(), ASKED_AT_START_S)
        self._thread.close()


def _answered(url: str, answer: Any) -> CompletionInfo:
    """The tokens as ids: in a field of their own, or as `token_id:17` among the log-probabilities."""
    try:
        choice = dict(answer["choices"][0])
    except (KeyError, IndexError, TypeError, ValueError):
        raise UserError(f"{url} answers without a choice: {str(answer)[:300]}") from None
    details = choice.get("logprobs") or {}
    log_probs, named = details.get("token_logprobs"), details.get("tokens") or []
    tokens = choice.get("token_ids")
    if tokens is None and named and all(str(name).startswith("token_id:") for name in named):
        tokens = [int(str(name).removeprefix("token_id:")) for name in named]
    if not tokens or log_probs is None or len(log_probs) != len(tokens) or None in log_probs:
        raise UserError(
            f"{url} answers without token ids and their log-probabilities. Text cannot be trained on, "
            "because tokenising it again may give other tokens than were sampled. Use a server that honours "
            "return_token_ids, as vLLM's does"
        )
    first = (details.get("top_logprobs") or [None])[0] or {}
    return CompletionInfo(
        list(tokens), [float(p) for p in log_probs], max(first.values(), default=log_probs[0])
    )


def _params(params: dict[str, Any]) -> tuple[dict[str, str], str | None, int]:
    """(headers, model, retries)"""
    known = ("api_key_env", "model", "retries")
    for name in params:
        if name not in known:
            raise UserError(
                f"engine.params.{name}: the http engine has no such setting; {nearest(name, known)}"
            )
    headers = {}
    if variable := params.get("api_key_env"):
        key = os.environ.get(variable)
        if key is None:
            raise UserError(f"engine.params.api_key_env: the environment has no {variable}")
        headers["Authorization"] = f"Bearer {key}"
    retries = params.get("retries", 3)
    if not isinstance(retries, int) or isinstance(retries, bool) or retries < 0:
        raise UserError(f"engine.params.retries={retries!r}: expected a number of retries, 0 or more")
    return headers, params.get("model"), retries
