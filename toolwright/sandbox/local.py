"""A server of one's own, in a process of its own, for as long as a block lasts."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from toolwright.failures import InfrastructureFailure
from toolwright.sandbox import kernel

_START = (
    "import sys; sys.path.insert(0, {package!r});"
    "from toolwright.cli.sandbox import main; sys.exit(main(sys.argv[1:]))"
)
RETRY_S = 0.3
_PACKAGE = str(Path(__file__).resolve().parents[2])


def command(*options: str) -> list[str]:
    """How to start the command from this very package, installed or not."""
    return [sys.executable, "-c", _START.format(package=_PACKAGE), *options]


def _stop_with_parent() -> None:
    """A server started for a block stops when the process that started it is killed in the middle."""
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGTERM)


@contextlib.contextmanager
def local_server(*options: str) -> Iterator[str]:
    """Serves on a free port of the loopback and gives the URL."""
    process, url = _started("0", options)
    try:
        yield url
    finally:
        _ended(process)


@contextlib.contextmanager
def lasting_server(*options: str, died: Callable[[str], None]) -> Iterator[str]:
    """As `local_server`, and started again at the same address whenever it dies; `died` is told each time."""
    process, url = _started("0", options)
    present, closing = [process], threading.Event()

    def watch() -> None:
        while True:
            code = present[0].wait()
            if closing.is_set():
                return
            died(f"the sandbox server {url} (pid {present[0].pid}) died with exit code {code}")
            _ended(present[0])
            while not closing.is_set():
                try:
                    present[0], _ = _started(url.rpartition(":")[2].strip("/"), options)
                    break
                except InfrastructureFailure:  # the port may not be free yet
                    closing.wait(RETRY_S)

    # The server is told to stop when the thread that started it ends, so this one has to outlast it.
    watcher = threading.Thread(target=watch, name="sandbox", daemon=True)
    watcher.start()
    try:
        yield url
    finally:
        closing.set()
        present[0].terminate()
        watcher.join(40)
        _ended(present[0])


def _started(port: str, options: Sequence[str]) -> tuple[subprocess.Popen[str], str]:
    # A file and not a pipe: nobody reads it while the server runs, and a full pipe would stop the server.
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            command("serve", "--port", port, *options),
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            preexec_fn=_stop_with_parent,
        )
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith("serving on "):
            _ended(process)
            said.seek(0)
            raise InfrastructureFailure(f"the sandbox did not start: {said.read().strip()}")
    return process, line.removeprefix("serving on ").strip()


def _ended(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(40)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
