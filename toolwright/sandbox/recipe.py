"""A worker's first minute: told what to be, it forks its zygotes and begins to serve."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import struct
import sys
from typing import Any, NoReturn

from toolwright.sandbox import kernel, view, wire
from toolwright.sandbox.launch import host_user
from toolwright.sandbox.limits import Limits
from toolwright.sandbox.nursery import Nursery
from toolwright.sandbox.zygote import Recipe

LIGHT, LOADED, TOOLS = "light", "loaded", "tools"
_COMMON = (
    "bisect", "collections", "copy", "datetime", "functools", "heapq", "itertools", "json", "math",
    "operator", "random", "re", "string", "time", "typing",
)  # fmt: skip


def main(descriptor: int) -> NoReturn:
    """Reads its instructions from the server, and never returns."""
    server = socket.socket(fileno=descriptor)
    kernel.name_process("sandbox-worker")
    told = _instructions(server)
    folder = "" if "mount" in told["layers"] else _folder(told)
    try:
        nurseries = _nurseries(told, folder)
    except Exception as error:
        server.sendall(wire.frame(wire.READY, 0, json.dumps({"error": str(error)}).encode()))
        os._exit(1)
    # Imported after the zygotes were forked: every library they hold is paid for at each fork.
    from toolwright.sandbox.worker import Worker

    Worker(server, nurseries, folder).serve()


def _folder(told: dict[str, Any]) -> str:
    """Where runs write when they have no file system of their own."""
    import tempfile

    folder = tempfile.mkdtemp(prefix="toolwright-sandbox-")
    os.chmod(folder, 0o711)
    if "user" in told["layers"] and os.geteuid() == 0:
        os.chown(folder, host_user(told["index"]), -1)
    return folder


def _instructions(server: socket.socket) -> dict[str, Any]:
    header = server.recv(4, socket.MSG_WAITALL)
    if len(header) < 4:
        os._exit(0)
    return json.loads(server.recv(struct.unpack("<I", header)[0], socket.MSG_WAITALL))


def _nurseries(told: dict[str, Any], folder: str) -> dict[str, Nursery]:
    layers, limits = frozenset(told["layers"]), Limits(**told["limits"])
    spare, index = told["runs_per_worker"], told["index"]
    # One worker, one core: a process that moves makes both cores drop what they know of its memory.
    available = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {available[index % len(available)]})
    python = view.of_python()
    preload = tuple(name for name in told["preload"] if importlib.util.find_spec(name))

    def recipe(shown: view.View, modules: tuple[str, ...]) -> Recipe:
        return Recipe(layers=layers, limits=limits, shown=shown, preload=modules, folder=folder)

    nurseries = {LIGHT: Nursery(recipe(python, _COMMON), index=index, spare=spare)}
    if preload:
        nurseries[LOADED] = Nursery(recipe(python, (*_COMMON, *preload)), index=index, spare=1)
    if told["tools"]:
        nurseries[TOOLS] = Nursery(recipe(view.of_tools(told["tools"]), ()), index=index, spare=0)
    return nurseries


if __name__ == "__main__":
    main(int(sys.argv[1]))
