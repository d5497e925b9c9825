"""A server starts fast, knows its callers, gives up what nobody waits for, and ends in order."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import anthropic
import openai
import pytest

from toolwright.cli import main

from .conftest import Served, serving

pytestmark = pytest.mark.xdist_group("serve")
LONG = {"prompt": "ab", "max_tokens": 400, "temperature": 2.0, "n": 128, "seed": 0}


def seconds(pid: int) -> float:
    """Processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_it_starts_with_little_more_work_than_torch_itself(taught: Path) -> None:
    """In processor time, on the same machine: it takes a third more."""
    alone = subprocess.run(
        [sys.executable, "-c", "import time, torch; print(time.process_time())"],
        check=True,
        capture_output=True,
    )
    with serving(taught) as running:
        assert running.ask("GET", "/health") == (200, {"status": "ok"})
        assert seconds(running.process.pid) < 3 * float(alone.stdout)


@pytest.fixture(scope="module")
def guarded(taught: Path) -> Iterator[Served]:
    """Open to the network, with a token, and turning callers away early."""
    options = ("--host", "0.0.0.0", "--queue-limit", "4")
    with serving(taught, *options, TOOLWRIGHT_SERVE_TOKEN="secret") as running:
        running.url = running.url.replace("0.0.0.0", "127.0.0.1")
        yield running


def test_a_token_is_asked_of_everyone_in_either_sdks_way(guarded: Served) -> None:
    url = guarded.url
    assert guarded.ask("GET", "/health")[0] == 200
    assert guarded.ask("GET", "/v1/models")[0] == guarded.ask("GET", "/metrics")[0] == 401
    assert guarded.ask("GET", "/v1/models", headers={"x-api-key": "secret"})[0] == 200
    assert [m.id for m in openai.OpenAI(base_url=url + "/v1", api_key="secret").models.list()]
    assert [m.id for m in anthropic.Anthropic(base_url=url, api_key="secret").models.list()]
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=url + "/v1", api_key="guess", max_retries=0).models.list()


def test_more_than_the_queue_holds_is_turned_away(guarded: Served) -> None:
    client = openai.OpenAI(base_url=guarded.url + "/v1", api_key="secret", max_retries=0)
    with pytest.raises(openai.RateLimitError):
        client.completions.create(model=guarded.name, prompt="a", n=5, max_tokens=4)
    assert client.completions.create(model=guarded.name, prompt="a", n=4, max_tokens=4).choices


@pytest.mark.parametrize("stream", [False, True])
def test_a_caller_who_leaves_is_not_written_for(served: Served, stream: bool) -> None:
    before = served.metric("serve_aborted")

    async def leave_early() -> None:
        async with openai.AsyncOpenAI(base_url=served.url + "/v1", api_key="none", max_retries=0) as client:
            asked = asyncio.create_task(
                client.completions.create(model=served.name, stream=stream, **LONG)  # type: ignore[call-overload]
            )
            while await asyncio.to_thread(served.metric, "serve_under_way") == 0:
                assert stream or not asked.done(), "answered before anybody could leave"
                await asyncio.sleep(0.01)
            if stream:
                await (await asked).close()
            else:
                asked.cancel()
                await asyncio.gather(asked, return_exceptions=True)

    asyncio.run(leave_early())
    until = time.monotonic() + 120
    while served.metric("serve_under_way") > 0 and time.monotonic() < until:
        time.sleep(0.05)
    assert served.metric("serve_under_way") == 0
    assert served.metric("serve_aborted") > before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_finishes_what_was_begun_and_leaves_with_0(taught: Path, number: signal.Signals) -> None:
    """A hundred answers on four slots: most have not begun when it is told to stop, and all are written."""
    with serving(taught, "--slots", "4", "--drain-s", "300") as running:

        async def asked_while_it_stops() -> list[str]:
            texts = [""] * 100
            async with openai.AsyncOpenAI(base_url=running.url + "/v1", api_key="none") as client:
                stream = await client.chat.completions.create(
                    model=running.name,
                    messages=[{"role": "user", "content": "hello"}],
                    temperature=0,
                    n=len(texts),
                    stream=True,
                )
                async for chunk in stream:
                    if not any(texts) and chunk.choices[0].delta.content:
                        running.process.send_signal(number)
                    texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
            return texts

        assert asyncio.run(asked_while_it_stops()) == ["hello, world"] * 100
        assert running.process.wait(timeout=120) == 0


def test_what_cannot_be_served_is_said_with_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TOOLWRIGHT_SERVE_TOKEN", raising=False)
    for words, message in (
        ([str(tmp_path), "--port=0"], "is not a model folder"),
        ([str(tmp_path / "nothing"), "--port=0"], "is not a folder"),
        ([str(tmp_path), "--port=0", "--slots=0"], "--slots 0: expected a positive integer"),
        ([str(tmp_path), "--port=0", "--threads=0"], "--threads 0: expected a positive integer"),
        ([str(tmp_path), "--port=0", "--queue-limit=0"], "--queue-limit 0: expected a number from 1 on"),
        ([str(tmp_path), "--port=0", "--drain-s=nan"], "--drain-s nan: expected a number from 0 on"),
        ([str(tmp_path), "--port=99999"], "cannot listen on 127.0.0.1:99999"),
        ([str(tmp_path), "--host=0.0.0.0"], "set a token with --token or in TOOLWRIGHT_SERVE_TOKEN"),
    ):
        assert main(["serve", *words]) == 2
        assert message in capsys.readouterr().err


def test_half_a_request_is_nobodys(served: Served) -> None:
    place = urlsplit(served.url)
    with socket.create_connection((place.hostname, place.port)) as half:
        half.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"content-length: 100\r\n\r\n{"
        )
    assert served.ask("GET", "/health")[0] == 200
