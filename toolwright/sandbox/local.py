"""A server of one's own, in a process of its own, for as long as a block lasts."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from toolwright.failures import InfrastructureFailure
from toolwright.sandbox import kernel

_START = (
    "import sys; sys.path.insert(0, {package!r});"
    "from toolwright.cli.sandbox import main; sys.exit(main(sys.argv[1:]))"
)
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
    # A file and not a pipe: nobody reads it while the server runs, and a full pipe would stop the server.
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            command("serve", "--port", "0", *options),
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            preexec_fn=_stop_with_parent,
        )
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line.startswith("serving on "):
                process.wait(40)
                said.seek(0)
                raise InfrastructureFailure(f"the sandbox did not start: {said.read().strip()}")
            yield line.removeprefix("serving on ").strip()
        finally:
            process.terminate()
            try:
                process.wait(40)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()
