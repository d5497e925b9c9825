"""The process of a scoring function: it receives attempts, returns verdicts, and ends with its parent."""

from __future__ import annotations

import importlib
import json
import os
import queue
import sys
import threading
import time
import traceback
from dataclasses import asdict
from multiprocessing.connection import Connection
from typing import Any

from toolwright.failures import UserError
from toolwright.registry import load_object
from toolwright.rewards.function import ScoringFunction, Verdict

GRACE_S = 5.0


def main(descriptor: int) -> None:
    # Standard output may be the parent's table or JSON, so the user's function prints to the log.
    sys.stdout = sys.stderr
    os.dup2(2, 1)
    os.set_inheritable(descriptor, False)  # children of the function must not keep the parent waiting
    connection = Connection(descriptor)
    requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(connection, requests), daemon=True).start()

    def answer(message: dict[str, Any]) -> None:
        connection.send_bytes(json.dumps(message).encode())

    request = requests.get()
    try:
        for module in request["imports"]:
            importlib.import_module(module)
        target, settings = load_object(request["reference"]), request["settings"]
        if isinstance(target, type):  # made once, with what takes long to load, and called with attempts
            target, settings = target(**settings), {}
        function = ScoringFunction(request["name"], target, settings)
    except UserError as error:
        return answer({"error": str(error)})
    except BaseException:
        tail = traceback.format_exc(limit=-4).strip()
        return answer({"error": f"{request['name']} cannot be imported:\n{tail}"})
    answer({key: getattr(function, key) for key in ("whole_batch", "reads_truth", "columns")})
    while (items := requests.get()) is not None:
        try:
            verdicts = function.judge(items)
        except UserError as error:
            verdicts = [Verdict(message=str(error))] * len(items)
        answer({"verdicts": [asdict(verdict) for verdict in verdicts]})
    return None


def _listen(connection: Connection, requests: queue.SimpleQueue[Any]) -> None:
    """Reads ahead of the function, so that the end of the parent is noticed even if the function hangs."""
    try:
        while True:
            requests.put(json.loads(connection.recv_bytes()))
    except (EOFError, OSError):
        requests.put(None)
        time.sleep(GRACE_S)
        os._exit(1)
