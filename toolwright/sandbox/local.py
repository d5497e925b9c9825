"""Starts a sandbox server in a process of its own for the length of a block."""

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
    """The command line of `toolwright sandbox`, from this package, installed or not."""
    return [sys.executable, "-c", _START.format(package=_PACKAGE), *options]


def _stop_with_parent() -> None:
    """Makes the server stop when the process that started it is killed."""
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGTERM)


@contextlib.contextmanager
def local_server(*options: str) -> Iterator[str]:
    """Serves on a free port of the loopback and gives the URL."""
    process, url = _start("0", options)
    try:
        yield url
    finally:
        _stop(process)


@contextlib.contextmanager
def lasting_server(*options: str, died: Callable[[str], None]) -> Iterator[str]:
    """Like `local_server`, but starts the server again at the same address if it dies, and calls `died`."""
    process, url = _start("0", options)
    present, closing = [process], threading.Event()

    def watch() -> None:
        while True:
            code = present[0].wait()
            if closing.is_set():
                return
            died(f"the sandbox server {url} (pid {present[0].pid}) died with exit code {code}")
            _stop(present[0])
            while not closing.is_set():
                try:
                    present[0], _ = _start(url.rpartition(":")[2].strip("/"), options)
                    break
                except InfrastructureFailure:  # the port may not be free yet
                    closing.wait(RETRY_S)

    # The server stops when the thread that started it ends, so this thread must outlive it.
    watcher = threading.Thread(target=watch, name="sandbox", daemon=True)
    watcher.start()
    try:
        yield url
    finally:
        closing.set()
        present[0].terminate()
        watcher.join(40)
        _stop(present[0])


def _start(port: str, options: Sequence[str]) -> tuple[subprocess.Popen[str], str]:
    # A file and not a pipe: nobody reads it while the server runs, and a full pipe would stop the server.
    with tempfile.TemporaryFile("w+") as stderr:
        process = subprocess.Popen(
            command("serve", "--port", port, *options),
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            preexec_fn=_stop_with_parent,
        )
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith("serving on "):
            _stop(process)
            stderr.seek(0)
            raise InfrastructureFailure(f"the sandbox did not start: {stderr.read().strip()}")
    return process, line.removeprefix("serving on ").strip()


def _stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(40)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
