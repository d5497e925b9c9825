"""Searches over HTTP: Search-R1's `/retrieve`, or any JSON API by template."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import aiohttp

from toolwright.failures import InfrastructureFailure, UserError
from toolwright.tools.offer import ToolError
from toolwright.tools.templates import FIELD, RETRIED, at, filled

_LINGER_S = 0.005  # queries of the same moment share a request
_BACKOFF_S = 0.1
_BACKOFF_MOST_S = 5.0


@dataclass(frozen=True)
class Template:
    """The way to call and read another search API. `{query}` and `{topk}` are replaced."""

    request: Any = None  # the body of a POST, or the parameters of a GET
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=dict)
    results: str = ""  # the dotted path to the list of results
    text: str = "{contents}"  # the text of one result


class Retriever:
    """One HTTP session of one event loop. Retries until the time or the tries are used up."""

    def __init__(
        self,
        url: str,
        *,
        template: Template | None,
        topk: int,
        batch_size: int,
        concurrency: int,
        timeout_s: float,
        max_retries: int,
    ) -> None:
        self._url, self._template, self._topk = url, template, topk
        self._batch_size, self._limit_s, self._max_retries = batch_size, timeout_s, max_retries
        self._http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout_s))
        self._slots = asyncio.Semaphore(concurrency)
        self._waiting: list[tuple[str, asyncio.Future[list[str]]]] = []
        self._batches: set[asyncio.Task[None]] = set()

    async def search(self, query: str) -> list[str]:
        if self._template is not None:
            return await self._by_template(self._template, query)
        answer: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        self._waiting.append((query, answer))
        if len(self._waiting) >= self._batch_size:
            self._flush()
        elif len(self._waiting) == 1:
            asyncio.get_running_loop().call_later(_LINGER_S, self._flush)
        return await answer

    async def close(self) -> None:
        for sending in list(self._batches):
            sending.cancel()
        await self._http.close()

    def _flush(self) -> None:
        batch, self._waiting = [pair for pair in self._waiting if not pair[1].done()], []
        if batch:
            sending = asyncio.create_task(self._send(batch))
            self._batches.add(sending)
            sending.add_done_callback(self._batches.discard)

    async def _send(self, batch: list[tuple[str, asyncio.Future[list[str]]]]) -> None:
        body = {"queries": [query for query, _ in batch], "topk": self._topk, "return_scores": True}
        try:
            found = _retrieved(self._url, await self._ask("POST", self._url, json=body), len(batch))
        except asyncio.CancelledError:
            for _, answer in batch:
                answer.cancel()
            raise
        except Exception as error:
            for _, answer in batch:
                if not answer.done():
                    answer.set_exception(error)
            return
        for (_, answer), texts in zip(batch, found, strict=True):
            if not answer.done():
                answer.set_result(texts)

    async def _by_template(self, template: Template, query: str) -> list[str]:
        values = {"query": query, "topk": self._topk}
        url = FIELD.sub(lambda place: quote(str(values.get(place[1], place[0])), safe=""), self._url)
        body = filled(template.request, values)
        how = {"params": body} if template.method == "GET" else {"json": body}
        answer = await self._ask(template.method, url, headers=dict(template.headers), own_body=False, **how)
        found = at(answer, template.results)
        if not isinstance(found, list):
            raise UserError(
                f"{self._url}: the answer has no list at results={template.results!r}: {str(answer)[:200]}"
            )
        return [filled(template.text, one if isinstance(one, Mapping) else {"": one}) for one in found][
            : self._topk
        ]

    async def _ask(self, method: str, url: str, *, own_body: bool = True, **request: Any) -> Any:
        """`own_body`: the body is Search-R1's, so a refusal is not the fault of a query."""
        until = time.monotonic() + self._limit_s
        for tried in range(self._max_retries + 1):
            try:
                async with self._slots, self._http.request(method, url, **request) as response:
                    text = await response.text(errors="replace")
                    if response.status == 200:
                        return json.loads(text)
                    error_text = f"answered {response.status}: {text[:200]}"
                    if response.status not in RETRIED:
                        if own_body or response.status in (401, 403, 404, 405):
                            raise UserError(f"the search server {self._url} {error_text}")
                        raise ToolError(f"the search failed: {error_text}")
            except TimeoutError:
                error_text = f"gave no answer within {self._limit_s:g} s"
            except (aiohttp.ClientError, OSError, ValueError) as error:
                error_text = f"cannot be reached: {type(error).__name__}: {error}"
            wait = random.uniform(0, min(_BACKOFF_S * 2**tried, _BACKOFF_MOST_S)) + 0.01
            if tried == self._max_retries or time.monotonic() + wait > until:
                break
            await asyncio.sleep(wait)
        raise InfrastructureFailure(f"the search server {self._url} {error_text} (tried {tried + 1} times)")


def _retrieved(url: str, answer: Any, queries: int) -> list[list[str]]:
    """`{"result": [[{"document": {"contents": …}, "score": …}, …], …]}`, a list for each query."""
    result = answer.get("result") if isinstance(answer, dict) else None
    if not isinstance(result, list) or len(result) != queries:
        raise InfrastructureFailure(
            f"the search server {url}: {queries} queries were sent; the answer is not a list of {queries}"
        )
    return [[_document(item) for item in one] for one in result]


def _document(item: Any) -> str:
    inner = item.get("document", item) if isinstance(item, dict) else item
    if isinstance(inner, dict):
        inner = inner.get("contents") or "\n".join(
            str(inner[key]) for key in ("title", "text") if key in inner
        )
    return str(inner)
