"""An engine's process from its parent's side, without any engine in it."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
import tiny

from toolwright.engines import process
from toolwright.engines.process import EngineProcess
from toolwright.failures import InfrastructureFailure

from .served import Server


def test_an_engine_process_that_stops_reading_blocks_no_caller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process, "FAREWELL_S", 0.5)
    deaf = EngineProcess("the deaf engine", "tests.engines.deaf", {}, limit_s=60)
    errors: list[BaseException] = []

    def ask() -> None:
        for _ in range(500):  # more than a socket holds
            deaf.ask("generate", list(range(1000)))
        deaf.limit_s = 0.1
        try:
            deaf.result("load")
        except InfrastructureFailure as error:
            errors.append(error)
        deaf.close()

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(60)
    if asking.is_alive():
        deaf.process.kill()
        pytest.fail("whoever asked is still waiting to be heard")
    assert "the deaf engine has not answered 'load' within engine.timeout_s=0.1 s" in str(errors[0])
    assert deaf.process.poll() is not None
    with pytest.raises(InfrastructureFailure, match="the deaf engine was closed"):
        deaf.ask("generate", [1])


@pytest.mark.parametrize("killed", [False, True])
def test_memory_that_it_shared_with_its_workers_goes_with_it(
    monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    monkeypatch.setattr(process, "FAREWELL_S", 0.5)
    engine = EngineProcess("the hoarder", "tests.engines.hoarding", {}, limit_s=60)
    held = Path("/dev/shm", engine.description["name"])
    assert held.exists()
    if killed:
        engine.process.kill()
        engine.process.wait()
    engine.close()
    assert not held.exists()


def test_a_killed_test_server_leaves_no_shared_memory(tmp_path: Path) -> None:
    """Which is killed with its workers, and with whoever would have cleared up after them."""
    server = Server(tmp_path / "served", tiny.decoder(), tiny.characters())
    share = (
        "from multiprocessing.shared_memory import SharedMemory; held = SharedMemory(create=True, size=64)"
    )
    command = [sys.executable, "-c", f"{share}; print(held.name, flush=True); input()"]
    pipe = subprocess.PIPE
    server.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=True)
    server.log = (tmp_path / "log.txt").open("wb")
    assert server.process.stdout is not None
    held = Path("/dev/shm", server.process.stdout.readline().decode().strip())
    assert held.exists()
    with server.process:
        server.__exit__()
    assert not held.exists()
