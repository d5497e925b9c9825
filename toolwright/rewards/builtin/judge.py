"""A model as judge, over any endpoint that speaks OpenAI's chat completions. The SDK retries."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from toolwright.failures import InfrastructureFailure, TaskFailure, UserError
from toolwright.rewards import SCORERS
from toolwright.rewards.item import Item
from toolwright.rewards.judgement import TEMPLATE, Judgement, Rule

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_RETRIED = (408, 409, 429)  # by the SDK, and 5xx
_LONGEST_PAUSE_S = 10.0  # of the SDK between two tries


@SCORERS.register("judge")
class Judge:
    """The last number that `rule`, or else `pattern`, finds in the reply, divided by `most`: from 0 to 1."""

    def __init__(
        self,
        *,
        limit_s: float,
        base_url: str,
        model: str,
        api_key_env: str | None = None,
        template: str = TEMPLATE,
        rule: Rule = "score",
        pattern: str | None = None,
        most: Annotated[float, Field(gt=0)] = 10.0,
        temperature: Annotated[float, Field(ge=0)] = 0.0,
        max_tokens: Annotated[int, Field(gt=0)] = 512,
        concurrency: Annotated[int, Field(gt=0)] = 16,
        retries: Annotated[int, Field(ge=0)] = 3,
        request: dict[str, Any] | None = None,
    ) -> None:
        """`api_key_env` names the variable with the key; `request` holds further fields of the body."""
        self._limit_s, self._retries = limit_s, retries
        self._base_url, self._model = base_url.rstrip("/"), model
        self._url = f"{self._base_url}/chat/completions"
        self._judgement = Judgement(
            template=template, rule=rule, pattern=pattern, most=most, where="reward.params.judge"
        )
        self._body = {"temperature": temperature, "max_tokens": max_tokens, **(request or {})}
        self._key = _key(api_key_env)
        self._slots = asyncio.Semaphore(concurrency)
        self._client: AsyncOpenAI | None = None

    def check(self, item: Item) -> None:
        """Accepts any ground truth: the judge sees it as it is."""

    async def open(self) -> None:
        self._opened()

    async def judge(self, item: Item) -> dict[str, float]:
        async with self._slots:
            reply = await self._ask(self._judgement.question(item))
        return {"score": self._judgement.score(reply, f"the judge at {self._url}")}

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()
            self._client = None

    def _opened(self) -> AsyncOpenAI:
        if self._client is None:
            from openai import AsyncOpenAI  # here: runs without a judge need not wait for the import

            self._client = AsyncOpenAI(
                base_url=self._base_url,
                api_key=self._key or "none",
                timeout=self._limit_s,
                max_retries=self._retries,
            )
        return self._client

    async def _ask(self, question: str) -> str:
        """The judge's reply. Raises a failure of the kind that fits the server's error."""
        import openai

        # The SDK limits the wait for each part of an answer; this limits the wait for all of it.
        whole_s = (self._retries + 1) * (self._limit_s + _LONGEST_PAUSE_S)
        try:
            async with asyncio.timeout(whole_s):
                answer = await self._opened().chat.completions.create(
                    model=self._model,
                    messages=[{"role": "user", "content": question}],
                    extra_body=self._body,
                    extra_headers=None if self._key else {"Authorization": openai.Omit()},
                )
        except (openai.APITimeoutError, TimeoutError):
            error = f"no answer within reward.timeout_s={self._limit_s:g} s"
        except openai.APIConnectionError as failure:
            error = f"{type(failure.__cause__).__name__}: {failure.__cause__}"
        except openai.APIStatusError as failure:
            status, text = failure.status_code, failure.response.text[:300]
            if status in (400, 413, 422):  # too long for its context, or refused: a fault of this attempt
                raise TaskFailure(f"the judge at {self._url} refused with {status}: {text}") from None
            if status < 500 and status not in _RETRIED:
                raise UserError(
                    f"the judge at {self._url} answered {status}: {text}; check base_url, model and "
                    "api_key_env in reward.params.judge"
                ) from None
            error = f"answered {status}: {text}"
        else:
            try:
                return answer.choices[0].message.content or ""
            except (AttributeError, IndexError, TypeError):
                raise TaskFailure(f"the judge at {self._url} sent no completion: {answer!s:.300}") from None
        raise InfrastructureFailure(f"the judge at {self._url}: {error}, {self._retries + 1} times")


def _key(api_key_env: str | None) -> str | None:
    if api_key_env is None:
        return None
    key = os.environ.get(api_key_env)
    if not key:
        raise UserError(f"reward.params.judge.api_key_env: the environment has no {api_key_env}")
    return key
