"""A service as an agent: a POST for each attempt, whose answer, or a later call, ends it."""

from __future__ import annotations

from urllib.parse import urlsplit

import aiohttp
import orjson

from toolwright.agents.attempt import Attempt
from toolwright.config import schema
from toolwright.failures import InfrastructureFailure, UserError
from toolwright.gateway.program import TEXT_KEPT, ProgramAgent, ProgramEnd, task_data
from toolwright.gateway.server import AttemptAddress
from toolwright.gateway.session import Session
from toolwright.models.tokenizer import Tokenizer

LATER = 202  # accepted: the service posts its result to the attempt when it is done


class ServiceAgent(ProgramAgent):
    """`rollout.agent.url`. The answer's JSON, or its text, is the result."""

    kind = "url"
    usual_concurrency = 1024

    def __init__(self, config: schema.RolloutConfig, tokenizer: Tokenizer) -> None:
        super().__init__(config, tokenizer)
        url = urlsplit(self.program.url or "")
        if url.scheme not in ("http", "https") or not url.hostname:
            raise UserError(
                "rollout.agent.url: expected an address such as http://127.0.0.1:9000/run, found "
                f"{self.program.url!r}"
            )

    @property
    def label(self) -> str:
        return f"the service {self.program.url}"

    async def run(self, attempt: Attempt, address: AttemptAddress, session: Session) -> ProgramEnd:
        body = {
            "task": task_data(attempt.task),
            "base_url": f"{address.url}/v1",
            "anthropic_base_url": address.url,
            "api_key": address.key,
            "model": self.program.model,
        }
        headers = {"content-type": "application/json"}
        limit = aiohttp.ClientTimeout(total=None)  # the attempt has one
        try:
            async with (
                aiohttp.ClientSession(timeout=limit) as client,
                client.post(self.program.url or "", data=orjson.dumps(body), headers=headers) as reply,
            ):
                status, raw = reply.status, await reply.content.read(TEXT_KEPT)
        except (aiohttp.ClientError, OSError) as error:
            raise InfrastructureFailure(f"{self.label} does not answer: {error}") from None
        text = raw.decode("utf-8", "replace")
        if status >= 500:
            raise InfrastructureFailure(f"{self.label} answered {status}: {text[:500]}")
        if status >= 400:
            return ProgramEnd(trouble=f"answered {status}: {text[:500]}", facts={"status": status})
        if status == LATER:
            await session.finished.wait()
            return ProgramEnd(facts={"status": status})
        return ProgramEnd(_answer(text), facts={"status": status, "output": text})


def _answer(text: str) -> str:
    """`answer` of a JSON object; else the text as it is."""
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
    if isinstance(found, dict):
        given = found.get("answer")
        return "" if given is None else str(given)
    return found if isinstance(found, str) else text
