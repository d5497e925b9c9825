"""`toolwright ui` as a user starts it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

COMMAND = [sys.executable, "-m", "toolwright", "ui"]


def test_the_command_serves_until_it_is_interrupted(runs: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, str(runs), "--port", "0", "--no-browser"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith(f"2 runs of {runs} on http://127.0.0.1:")
        url = next(word for word in line.split() if word.startswith("http"))
        with urllib.request.urlopen(f"{url}api/runs", timeout=60) as answer:
            assert len(json.load(answer)["runs"]) == 2
        with urllib.request.urlopen(f"{url}api/events", timeout=60) as events:
            assert events.readline() == b"retry: 2000\n"
            process.send_signal(signal.SIGINT)
            assert events.read()  # what is left of the stream, which ends
        output, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, output, errors) == (0, "", "")


def test_the_page_needs_neither_torch_nor_ray(runs: Path) -> None:
    """They take seconds to import, and most of the memory that the page may use."""
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from toolwright.ui.app import UiApp\n"
        "from toolwright.ui.query import Query\n"
        "from toolwright.ui.run_library import RunLibrary\n"
        "from toolwright.ui.view import RUN_VIEWS\n"
        f"run = RunLibrary(Path({str(runs)!r})).get('sweep/words')\n"
        "for name in RUN_VIEWS.names():\n"
        "    path = {'attempts/item': ('1', '0')}.get(name, ())\n"
        "    if path or not name.endswith('/item'):\n"
        "        RUN_VIEWS.get(name).target(run, Query({}, path))\n"
        "print(sorted({'torch', 'ray', 'transformers'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert done.stdout == "[]\n", done.stderr
