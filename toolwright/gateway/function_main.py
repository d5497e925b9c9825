"""The process that imports an agent's function once, and forks the workers that call it.

Each socket that arrives on standard input gets a worker: a line of JSON in, a line of JSON out, one attempt
after the other. What the function prints goes to standard error.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import json
import os
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable
from typing import Any

SAID = 4000  # characters of an exception


def main(reference: str) -> None:
    control, sys.stdout = socket.socket(fileno=os.dup(0)), sys.stderr
    from toolwright.registry import load_object

    function = load_object(reference)
    gc.freeze()  # a worker's collections then leave the pages alone that all of them share
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    control.send(b"\n")
    while received := socket.recv_fds(control, 1, 1)[1]:
        with socket.socket(fileno=received[0]) as connection:
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os.setsid()
                control.close()
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                _serve(function, connection)
                os._exit(0)


def _serve(function: Callable[..., Any], connection: socket.socket) -> None:
    lines = connection.makefile("r", encoding="utf-8")
    connection.sendall(b"%d\n" % os.getpid())
    for line in lines:
        connection.sendall(json.dumps(_called(function, json.loads(line))).encode() + b"\n")


def _called(function: Callable[..., Any], request: dict[str, Any]) -> dict[str, Any]:
    """Call the function. Returns its result, or the text of its exception."""
    os.environ.update(request["env"])
    os.chdir(request["folder"])
    try:
        takes = len(inspect.signature(function).parameters)
        returned = function(*(request["task"], request["policy"])[:takes])
        if inspect.isawaitable(returned):
            returned = asyncio.run(_awaited(returned))
        json.dumps(returned)
    except Exception as error:
        text = "".join(traceback.format_exception_only(error)).strip()
        return {"error": text[-SAID:]}
    finally:
        os.chdir(tempfile.gettempdir())
    return {"returned": returned}


async def _awaited(work: Any) -> Any:
    return await work


if __name__ == "__main__":
    main(sys.argv[1])
