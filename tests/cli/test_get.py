"""`toolwright model get` against a hub in this process, which the hub's own client speaks to."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
import tiny
import torch
from safetensors.torch import load_file

from tests.json_server import PlainServer
from toolwright.models import huggingface
from toolwright.models.tokenizer import Tokenizer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(PlainServer):
    """One repository, owner/tiny, with a branch `main` and a tag `v1`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.folder = folder
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Answers(BaseHTTPRequestHandler):
    server: Hub

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        path = self.path.partition("?")[0]
        files = {
            str(f.relative_to(self.server.folder)): f for f in self.server.folder.rglob("*") if f.is_file()
        }
        for revision in ("main", "v1", COMMIT):
            if path == f"/api/models/owner/tiny/revision/{revision}":
                siblings = [{"rfilename": name} for name in files]
                about = {"id": "owner/tiny", "modelId": "owner/tiny", "sha": COMMIT, "siblings": siblings}
                return self._send(200, json.dumps(about).encode())
            if path == f"/api/models/owner/tiny/tree/{revision}":
                rows = [
                    {"type": "file", "path": n, "size": f.stat().st_size, "oid": "0"}
                    for n, f in files.items()
                ]
                return self._send(200, json.dumps(rows).encode())
            name = path.removeprefix(f"/owner/tiny/resolve/{revision}/")
            if name in files:
                return self._send(200, files[name].read_bytes())
        return self._send(404, b"{}")

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    huggingface.save(tiny.decoder(kv_heads=2), tmp_path / "repository")
    tiny.characters().save(tmp_path / "repository")
    (tmp_path / "repository" / "README.md").write_text("a card")
    server = Hub(tmp_path / "repository")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def got(hub: Hub, name: str, out: Path) -> subprocess.CompletedProcess[str]:
    """In a process of its own: the client reads where the hub is when it is imported."""
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(out.parent / "home")}
    environment = {k: v for k, v in environment.items() if k not in ("HF_HUB_OFFLINE", "HF_TOKEN")}
    command = [sys.executable, "-m", "toolwright.cli", "model", "get", name, "--out", str(out)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("revision", ["", "@v1"])
def test_a_repository(hub: Hub, tmp_path: Path, revision: str) -> None:
    done = got(hub, f"owner/tiny{revision}", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert f"/api/models/owner/tiny/revision/{revision[1:] or 'main'}" in " ".join(hub.asked)
    assert torch.equal(
        huggingface.load(tmp_path / "out").embedding.weight, tiny.decoder(kv_heads=2).embedding.weight
    )
    assert Tokenizer.load(tmp_path / "out").encode("1+1") == tiny.characters().encode("1+1")
    assert not (tmp_path / "out" / ".cache").exists()


def test_a_repository_of_pickled_weights(hub: Hub, tmp_path: Path) -> None:
    weights = load_file(hub.folder / "model.safetensors")
    (hub.folder / "model.safetensors").unlink()
    torch.save(weights, hub.folder / "pytorch_model.bin")
    done = got(hub, "owner/tiny", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert torch.equal(
        huggingface.load(tmp_path / "out").embedding.weight, tiny.decoder(kv_heads=2).embedding.weight
    )
    assert not (tmp_path / "out" / "pytorch_model.bin").exists()


@pytest.mark.parametrize(("name", "said"), [("owner/tiny@v9", "v9"), ("owner/none", "owner/none")])
def test_a_model_that_does_not_exist_is_reported(hub: Hub, tmp_path: Path, name: str, said: str) -> None:
    done = got(hub, name, tmp_path / "out")
    assert done.returncode == 2
    assert "cannot download" in done.stderr
    assert said in done.stderr
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob("out*"))


def test_a_repository_that_is_not_whole(hub: Hub, tmp_path: Path) -> None:
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors"}}
    (hub.folder / "model.safetensors").rename(hub.folder / "model-00002-of-00002.safetensors")
    (hub.folder / "model.safetensors.index.json").write_text(json.dumps(index))
    done = got(hub, "owner/tiny", tmp_path / "out")
    assert done.returncode == 2
    assert "model-00001-of-00002.safetensors is missing" in done.stderr
    assert not list(tmp_path.glob("out*"))
