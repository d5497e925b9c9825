"""Search: the index over a corpus, and servers that are asked over HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from aiohttp import web

import toolwright
from tests.ports import free_port
from toolwright.failures import InfrastructureFailure, UserError
from toolwright.tools.call import ToolRequest
from toolwright.tools.toolbox import Toolbox

from .conftest import Box

Make = Callable[..., Box]

DOCUMENTS = [
    {"title": "Lutetia", "text": "The old name of Paris, on the Seine."},
    {"title": "Roma", "text": "Built on seven hills beside the Tiber."},
    {"title": "Bern", "text": "A town in a bend of the Aare."},
]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "toolwright" / "search"


def json_lines(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return str(path)


def test_a_corpus_is_searched_and_its_index_kept(box: Make, tmp_path: Path, cache: Path) -> None:
    pytest.importorskip("bm25s")
    corpus = json_lines(tmp_path / "docs.jsonl", DOCUMENTS)
    made = box({"search": {"corpus": corpus, "topk": 2}})
    assert made.schemas()["search"]["parameters"]["required"] == ["query"]
    assert made.call("search", query="what has seven hills?").text == (
        "Doc 1(Title: Roma) Built on seven hills beside the Tiber."
    )
    assert made.call("search", query="xyzzy").text == "(nothing was found)"
    assert made.call("search", query=" ").trouble == "raised"
    (kept,) = cache.iterdir()
    before = kept.stat().st_mtime_ns
    assert "Lutetia" in box({"search": {"corpus": corpus}}).call("search", query="Paris").text
    assert kept.stat().st_mtime_ns == before
    json_lines(tmp_path / "docs.jsonl", DOCUMENTS[:1])
    box({"search": {"corpus": corpus}}).call("search", query="Paris")
    assert len(list(cache.iterdir())) == 2


def test_a_parquet_corpus_with_contents(box: Make, tmp_path: Path) -> None:
    pytest.importorskip("bm25s")
    rows = [{"id": str(i), "contents": f'"{row["title"]}"\n{row["text"]}'} for i, row in enumerate(DOCUMENTS)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "docs.parquet")
    made = box({"search": {"corpus": str(tmp_path / "docs.parquet"), "topk": 1}})
    assert made.call("search", query="Aare").text == 'Doc 1(Title: "Bern") A town in a bend of the Aare.'


def test_a_corpus_leaves_the_memory_of_a_gpu_alone_where_jax_is_installed(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text('{"text": "one"}\n')
    # What JAX sees when bm25s imports it: without this setting it reserves three quarters of the GPU.
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "__init__.py").write_text(
        "import os; print('preallocate:', os.environ.get('XLA_PYTHON_CLIENT_PREALLOCATE'))"
    )
    code = (
        "from pathlib import Path; from toolwright.tools.corpus import Corpus; Corpus(Path('corpus.jsonl'))"
    )
    path = os.pathsep.join([str(tmp_path), str(Path(toolwright.__file__).parents[1])])
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path, "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout == "preallocate: false\n"


def test_a_corpus_that_is_missing_or_malformed_is_an_error(box: Make, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="set either `corpus`"):
        Toolbox({"search": {}})
    with pytest.raises(UserError, match=r"tools\.search: corpus=.*no such file"):
        Toolbox({"search": {"corpus": str(tmp_path / "none.jsonl")}})
    corpus = json_lines(tmp_path / "docs.jsonl", [{"body": "x"}])
    with pytest.raises(UserError, match=r"document 1 has neither `contents` nor `text`.*\['body'\]"):
        box({"search": {"corpus": corpus}}).call("search", query="x")


class Server:
    """A search server of both kinds, in a thread, that notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.failures = 0
        self._started = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        assert self._started.wait(120)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        app = web.Application()
        app.router.add_post("/retrieve", self._retrieve)
        app.router.add_post("/api", self._api)
        app.router.add_get("/api", self._api)
        self._runner = web.AppRunner(app)
        self._loop.run_until_complete(self._runner.setup())
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        self._loop.run_until_complete(site.start())
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        self._started.set()
        self._loop.run_forever()

    async def _retrieve(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.asked.append(body)
        if self.failures:
            self.failures -= 1
            return web.Response(status=503, text="warming up")
        found = [
            [{"document": {"contents": f'"{query}"\npassage'}, "score": 1.0}] * body["topk"]
            for query in body["queries"]
        ]
        return web.json_response({"result": found})

    async def _api(self, request: web.Request) -> web.Response:
        self.asked.append(await request.json() if request.method == "POST" else dict(request.query))
        if request.headers.get("x-key") != "k":
            return web.Response(status=401, text="who are you?")
        results = [{"page": {"name": f"n{i}"}, "snippet": f"s{i}"} for i in range(9)]
        return web.json_response({"web": {"results": results}})

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(120)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(120)
        self._loop.close()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.stop()


def test_queries_of_many_attempts_travel_together(server: Server) -> None:
    box = Toolbox({"search": {"url": f"{server.url}/retrieve", "topk": 2}})

    async def many() -> list[str]:
        calls = [box.call(ToolRequest("search", {"query": f"q{i}"}), attempt=str(i)) for i in range(20)]
        answers = await asyncio.gather(*calls)
        await box.close()
        return [answer.text for answer in answers]

    answers = asyncio.run(many())
    assert answers[7] == 'Doc 1(Title: "q7") passage\nDoc 2(Title: "q7") passage'
    assert len(server.asked) == 1
    assert server.asked[0] == {"queries": [f"q{i}" for i in range(20)], "topk": 2, "return_scores": True}


def test_a_server_that_is_not_ready_is_retried(box: Make, server: Server) -> None:
    server.failures = 2
    assert "passage" in box({"search": {"url": f"{server.url}/retrieve"}}).call("search", query="q").text
    assert len(server.asked) == 3


def test_a_template_reads_any_json_api(box: Make, server: Server) -> None:
    template = {
        "url": f"{server.url}/api",
        "headers": {"x-key": "k"},
        "results": "web.results",
        "text": "{page.name}\n{snippet}",
        "topk": 2,
    }
    told = "Doc 1(Title: n0) s0\nDoc 2(Title: n1) s1"
    posted = box({"search": {**template, "request": {"q": "about {query}", "count": "{topk}"}}})
    assert posted.call("search", query="{topk}").text == told
    assert server.asked == [{"q": "about {topk}", "count": 2}]
    got = box({"search": {**template, "request": {"q": "{query}"}, "method": "GET"}})
    assert got.call("search", query="a b").text == told
    assert server.asked[-1] == {"q": "a b"}
    with pytest.raises(UserError, match="answered 401: who are you"):
        box({"search": {**template, "headers": {}, "request": {"q": "{query}"}}}).call("search", query="q")


def test_a_server_that_is_away_is_named_within_its_limit(box: Make) -> None:
    url = f"http://127.0.0.1:{free_port()}/retrieve"
    with pytest.raises(InfrastructureFailure, match=f"the search server {url} cannot be reached"):
        box({"search": {"url": url, "max_retries": 2}}).call("search", query="q")
